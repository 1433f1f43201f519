"""Faults of a server while workers use it: they keep running, and each task has its effects once."""

from __future__ import annotations

import time

import pytest

from tests.outages.models import MAX_ATTEMPTS
from tests.outages.probe import only_outages
from tests.outages.scene import BRIEF, SLOTS, WITHOUT_SESSION, Scene
from tests.support.workers import eventually

MANY = 60


def all_is_well(scene: Scene) -> None:
    """Assert that each task is completed with its effect once, and that no failure was counted."""
    scene.wait_until_done()
    assert not any(running.ended for running in scene.workers)
    rows = scene.rows()
    assert scene.receipts() == {row.id: 1 for row in rows if row.topic not in WITHOUT_SESSION}
    assert scene.calls.keys() == {row.id for row in rows}
    assert [row.error for row in rows if row.error] == []
    assert scene.counts("failed") == 0


def counted_attempts(scene: Scene, *topics: str) -> set[int]:
    """Of those that are counted against `max_attempts`, which grows with the others."""
    return {row.attempt - (row.max_attempts - MAX_ATTEMPTS) for row in scene.rows(*topics)}


def test_effects_are_exact_if_connections_are_killed(scene: Scene) -> None:
    scene.enqueue("steady", "plain", "locked", count=3 * SLOTS)
    scene.wait_until_busy("steady", "plain", "locked")
    scene.enqueue("brief", "brief-plain", count=MANY)
    with only_outages(*scene.databases):
        for _ in range(3):
            scene.server.kill_connections()
            time.sleep(0.1)
    scene.gate.set()
    all_is_well(scene)
    assert scene.counts("snoozed") >= 2 * SLOTS
    assert counted_attempts(scene, "steady", "plain", "locked") == {1}


def test_effects_are_exact_after_a_restart(scene: Scene) -> None:
    scene.enqueue("steady", "plain", "locked", count=3 * SLOTS)
    scene.wait_until_busy("steady", "plain", "locked")
    scene.enqueue("brief", "brief-plain", count=MANY)
    with only_outages(*scene.databases):
        scene.server.restart()
    scene.gate.set()
    all_is_well(scene)
    assert scene.counts("database_errors") > 0


def test_effects_are_exact_after_a_crash(scene: Scene) -> None:
    """Handlers end while the server is away, and workers begin; one is stopped meanwhile."""
    topics = ("steady", "plain", "locked")
    scene.enqueue(*topics, count=3 * SLOTS)
    scene.enqueue("held", count=1)
    scene.wait_until_busy(*topics)
    eventually(lambda: scene.ids("held") <= scene.present)
    held = scene.ids("held")
    with only_outages(*scene.databases), scene.server.crashed():
        leaver, stayer = scene.start(0, "brief"), scene.start(1, "late")
        scene.gate.set()
        eventually(lambda: scene.present == held)
        leaver.stop()
    before = scene.lease("held")
    scene.enqueue("late", count=4)
    eventually(lambda: scene.lease("held") > before)
    scene.release.set()
    all_is_well(scene)
    assert not stayer.ended
    # a claim that was committed, and of which the worker has never heard, is one attempt
    assert counted_attempts(scene, *topics, "held") <= {1, 2}
    assert {scene.calls[errand] for errand in scene.ids("plain", "held")} == {1}


def test_leases_end_while_the_server_is_frozen(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than leases last; meanwhile workers can be stopped, and others take over what they had."""
    monkeypatch.setattr("sqlqueue.worker.process.run.LAST_WORDS", 0.5)
    scene.enqueue("steady", "plain", "locked", count=3 * SLOTS)
    scene.wait_until_busy("steady", "plain", "locked")
    leavers = [scene.start(number, "left") for number in range(2)]
    scene.enqueue("left", count=4)
    eventually(lambda: scene.ids("left") <= scene.present)
    scene.enqueue("brief", "brief-plain", count=MANY)
    eventually(lambda: scene.ids("brief", "brief-plain") & scene.present)
    with scene.server.frozen():
        scene.gate.set()
        frozen = time.monotonic()
        for leaver in leavers:
            leaver.stop(at_once=True)
        time.sleep(max(0, BRIEF.total_seconds() + 0.2 - (time.monotonic() - frozen)))
    all_is_well(scene)


def test_a_server_that_refuses_work_is_an_outage(scene: Scene) -> None:
    """The server answers, and refuses work."""
    for begin, end in scene.server.case.hardships:
        scene.enqueue("steady", "plain", "brief", count=2 * SLOTS)
        scene.wait_until_busy("steady", "plain")
        with only_outages(*scene.databases, renewed=True), scene.server.suffering(begin, end):
            scene.gate.set()
            time.sleep(0.3)
        all_is_well(scene)
        assert counted_attempts(scene) == {1}
        scene.gate.clear()


def test_unwritable_outcomes_do_not_block_others(scene: Scene) -> None:
    """Whatever the driver calls the error of a constraint."""
    scene.enqueue("refused", "plain", count=2)
    eventually(lambda: scene.ids("refused", "plain") <= scene.present)
    scene.gate.set()
    scene.wait_until_done("plain")
    scene.enqueue("plain", count=1)
    scene.wait_until_done("plain")
    assert {row.status for row in scene.rows("refused")} == {"running"}
