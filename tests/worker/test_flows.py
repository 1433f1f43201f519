"""Workers start what waits for the ends of other tasks, also if the process that ended these has died since."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.suite.test_flows import ends
from tests.support.flows import Note, Page, flow
from tests.support.harness import Database
from tests.support.workers import Workers, eventually

pytestmark = pytest.mark.sync_only

__all__ = ["flow"]


@pytest.mark.parametrize("hints", ["kept", "lost"])
def test_a_worker_releases_what_waits(flow: Database, workers: Workers, hints: str, monkeypatch: Any) -> None:
    if hints == "lost":
        monkeypatch.setattr("sqlqueue.worker.looking.LatchWatch.note", lambda *_: None)
        monkeypatch.setattr("sqlqueue.worker.looking.SWEEP_SHARE", 1)  # the sweeps of a busy machine are slow
    with flow.begin() as session, session.batch("crawl") as batch:
        first = batch.add(Page, [{"name": f"page {n}"} for n in range(20)])
        last = batch.add(Page(name="last"), after=first)
        batch.add(Page(name="refund"), after=last, when="failed")
        batch.then(Note(name="end"), when="final")
    ran: list[str] = []

    def handle(task: Any) -> None:
        ran.append(task.name)
        if task.name == "last":
            raise ValueError("boom")

    worker = workers.make()
    worker.handler(Page)(handle)
    worker.handler(Note)(handle)
    with workers.start(worker):
        eventually(lambda: ends(flow, Note)["end"] == "completed")
    counts = Counter(ran)
    assert counts == {**{f"page {n}": 1 for n in range(20)}, "last": 2, "refund": 1, "end": 1}
