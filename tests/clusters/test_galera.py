"""A Galera cluster of three nodes: the guarantees of leases there, and the calls that are rejected."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from sqlalchemy.orm import Session

from sqlqueue import UnsupportedDialectError, Worker, check
from tests.clusters.conftest import Printed
from tests.clusters.galera import Galera
from tests.clusters.nodes import Node
from tests.clusters.workers import PATIENCE, ClusterWorkers
from tests.support import tables
from tests.support.models import Base as Models
from tests.support.models import Task, Visit
from tests.support.workers import Running, eventually

ENOUGH = 25
"""The minimum number of errands done by each node's worker: none of them starves."""
LIMIT = Visit.__queue__.limit


def start_everywhere(workers: ClusterWorkers, galera: Galera) -> None:
    for number, node in enumerate(galera.nodes):
        workers.start(node.url, f"worker {number}", is_async=number == 1)


def test_effects_are_exact_and_no_node_starves(workers: ClusterWorkers, galera: Galera, printed: Printed) -> None:
    start_everywhere(workers, galera)
    begun = time.monotonic()

    def have_all_enough() -> bool:
        if workers.undone() < 100:
            workers.enqueue(100)
        receipts = workers.receipts()
        return len(receipts) == 3 and min(receipts.values()) >= ENOUGH

    eventually(have_all_enough, within=PATIENCE)
    workers.wait_until_done()
    workers.assert_exact()
    retries = sum(running.worker._reports.counts["retries"] for running in workers.running)
    shares = ", ".join(f"{name}: {count}" for name, count in sorted(workers.receipts().items()))
    seconds = time.monotonic() - begun
    printed(f"errands by worker: {shares}; {retries} transactions lost a conflict; {seconds:.1f} s")


def test_a_node_dies_and_comes_back(workers: ClusterWorkers, galera: Galera, printed: Printed) -> None:
    node = galera.nodes[2]
    workers.enqueue(300)
    start_everywhere(workers, galera)
    eventually(lambda: sum(workers.receipts().values()) > 50, within=PATIENCE)
    node.kill()
    workers.wait_until_done()  # by the other workers, once the leases of the dead node's worker have ended
    workers.assert_exact()
    node.start()
    galera.wait_until_synced(node)
    back = time.monotonic()
    _wait_for_work(workers, "worker 2")
    printed(f"worker of the node that came back at work again after {time.monotonic() - back:.1f} s")
    workers.wait_until_done()
    workers.assert_exact()


def test_a_node_loses_its_quorum(workers: ClusterWorkers, galera: Galera, printed: Printed) -> None:
    """It responds, but rejects reads and writes until it is connected to the others again."""
    workers.enqueue(300)
    start_everywhere(workers, galera)
    eventually(lambda: sum(workers.receipts().values()) > 50, within=PATIENCE)
    counts = workers.running[0].worker._reports.counts
    before = counts["database_errors"]
    with galera.nodes[1].frozen(), galera.nodes[2].frozen():
        eventually(lambda: galera.is_refused(galera.nodes[0]), within=PATIENCE)
        eventually(lambda: counts["database_errors"] > before, within=PATIENCE)
    galera.wait_for_size(3)
    for node in galera.nodes:
        galera.wait_until_synced(node)
    back = time.monotonic()
    _wait_for_work(workers, "worker 0")
    printed(f"worker of the node that had lost its quorum at work again after {time.monotonic() - back:.1f} s")
    workers.wait_until_done()
    workers.assert_exact()


def _wait_for_work(workers: ClusterWorkers, worker: str) -> None:
    before = workers.receipts()[worker]

    def works() -> bool:
        if workers.undone() < 20:
            workers.enqueue(20)
        return workers.receipts()[worker] > before

    eventually(works, within=PATIENCE)


@pytest.fixture
def models(galera: Galera) -> Node:
    node = galera.nodes[0]
    tables.make(node.engine, Models.metadata)
    return node


def test_limits_hold_by_leases(workers: ClusterWorkers, galera: Galera, models: Node) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()
    with Session(models.engine) as session:
        session.add_all(Visit(limit_key=key) for key in ("a", "b") for _ in range(30))
        session.commit()

    def visit(task: Any) -> None:
        with lock:
            running[task.limit_key] += 1
            most[task.limit_key] = max(most[task.limit_key], running[task.limit_key])
        time.sleep(0.01)
        with lock:
            running[task.limit_key] -= 1

    for node in galera.nodes:
        worker = Worker(workers.database(node.url).sessions())
        worker.handler(Visit, concurrency=4)(visit)
        workers.running.append(Running(worker))
    done = "SELECT count(*) FROM visit WHERE status <> 'completed'"
    eventually(lambda: models.ask(done) == (0,), within=PATIENCE)
    assert most.keys() == {"a", "b"}
    assert max(most.values()) <= LIMIT


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_calls_that_rely_on_row_locks_are_rejected(
    workers: ClusterWorkers, galera: Galera, models: Node, is_async: bool
) -> None:
    database = workers.database(models.url, is_async=is_async)
    with Session(models.engine) as session:
        session.add_all([Task(), Visit(limit_key="a")])
        session.commit()
    with database.session() as actor:
        for refused in (
            lambda: actor.claim(Task, lease=None),
            lambda: actor.claim_many(Visit, limit=1, lease=None),
            lambda: actor.consume(Visit),
        ):
            with pytest.raises(UnsupportedDialectError, match="Galera") as raised:
                refused()
            assert raised.value.needed == "a claim with a lease"
            actor.rollback()
        assert actor.claim(Task) is not None
        assert actor.consume(Task) is None
        assert actor.claim(Visit) is not None
        actor.rollback()


def test_a_worker_that_relies_on_row_locks_does_not_start(workers: ClusterWorkers, models: Node) -> None:
    worker = Worker(workers.database(models.url).sessions())

    @worker.handler(Task, mode="lock")
    def handle(session: Any, task: Task) -> None: ...

    with pytest.raises(UnsupportedDialectError, match=r"mode='lock'.*Galera"):
        worker.run()


def test_check_reports_the_cluster(models: Node) -> None:
    with models.engine.connect() as connection:
        findings = {finding.code: finding for finding in check(connection, Task)}
    finding = findings["multi-primary"]
    assert (finding.severity, finding.model) == ("note", None)
    assert "lease=None" in finding.message
    assert "lease" in finding.fix
