"""Which workers are registered, which queues none of them serves, and commands in their rows."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from typer.testing import CliRunner

from sqlqueue import (
    ArgumentError,
    Cause,
    Claim,
    ClaimLostError,
    Command,
    ConfigurationError,
    HandlerInfo,
    Severity,
    WorkerState,
    check,
    claim_of,
)
from sqlqueue._support.errors import WorkerTokens
from sqlqueue.cli import application
from sqlqueue.model.companions import worker_table
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from tests.support.fleet import Call, Errand, Fleet, FleetWorker, fleet, sync_fleet
from tests.support.harness import Database
from tests.support.models import Base, Task
from tests.support.rows import PAST, TOMORROW, clock

pytestmark = pytest.mark.sync_only

__all__ = ["fleet", "sync_fleet"]


def handler(queue: str, *functions: str) -> dict[str, Any]:
    known = list(functions) or None
    return {"queue": queue, "functions": known, "whole": not functions, "slots": 4, "busy": 1}


def register(db: Database, name: str, *handlers: dict[str, Any], ago: float = 0, **more: Any) -> None:
    """Write the row of a worker that reported the given number of seconds ago."""
    seen_at = clock(db) - timedelta(seconds=ago)
    facts = {"name": name, "host": "web-1", "process": 7, "claimer": 1, "version": "1.2", "memory": 5_000_000_000}
    row = {**facts, "id": f"id-{name}", "started_at": seen_at, "seen_at": seen_at, "handlers": list(handlers), **more}
    with db.engine.begin() as connection:
        connection.execute(insert(FleetWorker).values(row))


def written(db: Database, column: Any) -> dict[str, Any]:
    with db.engine.connect() as connection:
        return dict(map(tuple, connection.execute(select(FleetWorker.name, column))))


def test_workers_by_name_and_by_queue(fleet: Database) -> None:
    register(fleet, "b", handler("errand_of_fleet"), handler("fleet_call", "shop.mail"))
    register(fleet, "a", handler("errand_of_fleet"), ago=34)
    register(fleet, "c", handler("errand_of_fleet"), ago=36)
    with fleet.begin() as session:
        found = session.workers(Fleet)
        assert [each.name for each in session.workers(Call)] == ["b"]
    assert [(each.name, each.is_live) for each in found] == [("a", True), ("b", True), ("c", False)]
    worker = found[1]
    assert worker.handlers == (
        HandlerInfo(queue="errand_of_fleet", functions=None, whole=True, slots=4, busy=1),
        HandlerInfo(queue="fleet_call", functions=("shop.mail",), whole=False, slots=4, busy=1),
    )
    assert (worker.slots, worker.busy, worker.idle) == (8, 2, 6)
    assert (worker.host, worker.process, worker.version, worker.memory) == ("web-1", 7, "1.2", 5_000_000_000)
    assert (worker.last_claim_at, worker.command, worker.concurrency) == (None, None, None)


def test_of_many_workers_those_that_reported_last(fleet: Database) -> None:
    for name, ago in (("a", 3), ("b", 20), ("c", 1), ("d", 30)):
        register(fleet, name, handler("errand_of_fleet"), ago=ago)
    with fleet.begin() as session:
        assert [each.name for each in session.workers(Fleet, limit=2)] == ["a", "c"]
        assert [each.name for each in session.workers(Fleet, limit=None)] == ["a", "b", "c", "d"]
        with pytest.raises(ArgumentError, match="limit"):
            session.workers(Fleet, limit=0)


def test_the_number_of_calls_is_of_a_worker_and_not_of_a_queue(fleet: Database) -> None:
    register(fleet, "both", handler("errand_of_fleet"), handler("fleet_call"))
    register(fleet, "calls", handler("fleet_call"))
    assert fleet.committed.set_concurrency(Errand, 3) == 1
    assert written(fleet, FleetWorker.concurrency) == {"both": 3, "calls": None}


def test_unserved_queues_are_reported(fleet: Database) -> None:
    register(fleet, "dead", handler("errand_of_fleet"), ago=36)
    assert fleet.committed.unserved(Fleet) == [Errand, Call]
    register(fleet, "live", handler("fleet_call", "shop.mail"))
    with fleet.begin() as session:
        assert session.unserved(Fleet) == [Errand]
        assert session.unserved(Call) == []


def test_check_reports_them(sync_fleet: Database) -> None:
    register(sync_fleet, "dead", handler("errand_of_fleet"), ago=36)
    register(sync_fleet, "live", handler("fleet_call"))
    with sync_fleet.engine.connect() as connection:
        (found,) = [each for each in check(connection, Fleet) if each.code == "unserved-queue"]
    assert (found.severity, found.table) == (Severity.NOTE, "errand_of_fleet")
    worker_table(Fleet.metadata).drop(sync_fleet.engine)  # type: ignore[union-attr]
    with sync_fleet.engine.connect() as connection:
        (found,) = [each for each in check(connection, Fleet) if each.code == "missing-table"]
    assert (found.severity, found.table) == (Severity.ERROR, "fleet_worker")
    worker_table(Fleet.metadata).create(sync_fleet.engine)  # type: ignore[union-attr]


def test_check_reports_functions_that_no_live_worker_has_registered(sync_fleet: Database) -> None:
    ended = {"status": "completed", "finished_at": PAST}
    calls = {"shop.mail": {}, "shop.old": {"status": "scheduled", "available_at": TOMORROW}, "shop.done": ended}
    for name, values in calls.items():
        sync_fleet.insert(Call, [{"task": name, "arguments": {}, **values}])
    for names, told in ((("shop.mail",), True), ((), False)):  # the second one takes all calls
        register(sync_fleet, "live" if names else "whole", handler("fleet_call", *names))
        with sync_fleet.engine.connect() as connection:
            found = [each for each in check(connection, Fleet) if each.code == "unregistered-function"]
        assert [each.severity for each in found] == [Severity.WARNING] * told
        assert all(each.message.endswith("that no live worker has registered: shop.old") for each in found)


def test_commands_reach_live_workers(fleet: Database) -> None:
    register(fleet, "a", handler("errand_of_fleet"))
    register(fleet, "b", handler("fleet_call"))
    register(fleet, "dead", handler("errand_of_fleet"), ago=36)
    with fleet.begin() as session:
        assert session.drain_workers(Errand) == 1
        assert session.stop_workers(Fleet, "b") == 1
        assert session.stop_workers(Fleet, "nobody") == 0
        assert session.set_concurrency(Fleet, 3, "id-a") == 1
    assert written(fleet, FleetWorker.command) == {"a": Command.DRAIN, "b": Command.STOP, "dead": None}
    assert written(fleet, FleetWorker.concurrency) == {"a": 3, "b": None, "dead": None}
    with fleet.begin() as session:
        assert session.set_concurrency(Fleet, None) == 2
        assert [each.command for each in session.workers(Fleet)] == [Command.DRAIN, Command.STOP, None]
    assert set(written(fleet, FleetWorker.concurrency).values()) == {None}


def test_without_a_model_for_workers(db: Database) -> None:
    with db.begin() as session:
        assert session.workers(Base) == session.unserved(Task) == []
        with pytest.raises(ConfigurationError, match=r"class QueueWorker\(WorkerMixin, Base\):") as refused:
            session.drain_workers(Task)
    assert refused.value.model is Task


def test_the_command(sync_fleet: Database) -> None:
    register(sync_fleet, "ada", handler("errand_of_fleet"))
    url = sync_fleet.url.render_as_string(hide_password=False)

    def called(*arguments: str) -> Any:
        return CliRunner().invoke(application(), ["workers", "--url", url, "tests.support.fleet:Fleet", *arguments])

    shown = called().output
    assert "ada" in shown
    assert "No live worker serves fleet_call." in shown
    facts = json.loads(called("--json").stdout)
    assert facts["unserved"] == ["fleet_call"]
    assert [(each["name"], each["state"], each["busy"]) for each in facts["workers"]] == [("ada", "live", 1)]
    assert json.loads(called("set-concurrency", "3", "--json").stdout)["told"] == 1
    assert called("drain").exit_code == 2, "it asks first"
    assert called("drain", "--yes", "-w", "grace").exit_code == 2, "there is no such worker"
    told = json.loads(called("drain", "--yes", "-w", "ada", "--json").stdout)
    assert (told["told"], told["workers"][0]["command"], told["workers"][0]["concurrency"]) == (1, "drain", 3)


def test_why_reports_that_no_live_worker_takes_a_task(fleet: Database) -> None:
    with fleet.begin() as session:
        errand, call = Errand(), Call(task="shop.mail", arguments={})
        session.add_all([errand, call])

    def causes(task: Any) -> list[tuple[Cause, str]]:
        return [(reason.cause, reason.text) for reason in fleet.committed.why(task).reasons]

    unserved = [(Cause.UNSERVED, "no live worker serves the queue")]
    register(fleet, "dead", handler("errand_of_fleet"), handler("fleet_call", "shop.mail"), ago=36)
    assert causes(errand) == causes(call) == unserved
    register(fleet, "other", handler("errand_of_fleet"), handler("fleet_call", "shop.bill"))
    assert [cause for cause, _ in causes(errand)] == [Cause.READY]
    assert causes(call) == [(Cause.UNSERVED, "no live worker has registered the function 'shop.mail'")]
    register(fleet, "right", handler("fleet_call", "shop.mail"))
    assert [cause for cause, _ in causes(call)] == [Cause.READY]


def held(db: Database, count: int, number: int) -> list[Claim]:
    """Claim errands for the worker with this number."""
    db.insert(Errand, [{} for _ in range(count)])
    tasks = db.committed.run(claim_matching, ClaimQuery(Errand.__queue_spec__), count, tokens=WorkerTokens(number))
    return [claim_of(task) for task in tasks]


def test_the_tasks_of_a_silent_worker_are_released(fleet: Database) -> None:
    """As at the end of their leases: no attempt counts, and the worker, if it still runs, can no longer settle them."""
    register(fleet, "gone", handler("errand_of_fleet"), ago=36, claimer=5)
    register(fleet, "here", handler("errand_of_fleet"), claimer=6)
    lost, kept = held(fleet, 2, 5), held(fleet, 1, 6)
    for unknown in ("here", "nobody"):
        with pytest.raises(ArgumentError, match=unknown):
            fleet.committed.release_workers(Fleet, unknown)
    assert fleet.committed.release_workers(Fleet, "web-1") == 2
    for claim in lost:
        with pytest.raises(ClaimLostError):
            fleet.committed.complete(claim)
    again = fleet.committed.claim_many(Errand, limit=9)
    assert {claim_of(task).identity for task in again} == {claim.identity for claim in lost}
    assert {(task.crashes, task.max_attempts - task.attempt) for task in again} == {(1, 4)}
    fleet.committed.complete(kept)
    assert fleet.committed.release_workers(Fleet, "gone") == 0


def test_the_tasks_of_another_worker_are_released_by_force(fleet: Database) -> None:
    register(fleet, "here", handler("errand_of_fleet"), handler("fleet_call"), claimer=6)
    (claim,) = held(fleet, 1, 6)
    assert fleet.committed.release_workers(Call, "id-here", force=True) == 0
    assert fleet.committed.release_workers(Errand, "id-here", force=True) == 1
    with pytest.raises(ClaimLostError):
        fleet.committed.complete(claim)


@pytest.mark.requires("locks_rows")
def test_a_locked_row_is_left_and_counted(fleet: Database) -> None:
    register(fleet, "gone", handler("errand_of_fleet"), ago=36, claimer=5)
    held(fleet, 2, 5)
    with fleet.begin() as other:
        other.scalars(select(Errand).limit(1).with_for_update()).all()
        released = fleet.committed.release_workers(Fleet, "gone")
        assert (released, released.locked) == (1, 1)


def test_one_word_for_the_state_of_a_worker(fleet: Database) -> None:
    """And the explanation of a task that it runs tells it, too."""
    register(fleet, "well", handler("errand_of_fleet"), claimer=5)
    register(fleet, "blocked", handler("errand_of_fleet"), claimer=6, stalled_at=clock(fleet))
    register(fleet, "gone", handler("errand_of_fleet"), claimer=7, ago=36)
    assert {each.name: each.state for each in fleet.committed.workers(Fleet)} == {
        "well": WorkerState.LIVE,
        "blocked": WorkerState.STALLED,
        "gone": WorkerState.SILENT,
    }

    def told(number: int) -> list[tuple[Cause, str | None]]:
        (claim,) = held(fleet, 1, number)
        return [(reason.cause, reason.by) for reason in fleet.committed.why(claim).reasons][1:]

    (claim,) = held(fleet, 1, 7)
    assert "sqlqueue workers release gone" in fleet.committed.why(claim).reasons[1].text
    assert [told(number) for number in (5, 6, 7)] == [[], [(Cause.STALLED, "blocked")], [(Cause.SILENT, "gone")]]


def test_the_command_releases(sync_fleet: Database) -> None:
    register(sync_fleet, "gone", handler("errand_of_fleet"), ago=36, claimer=5)
    register(sync_fleet, "here", handler("errand_of_fleet"), claimer=6)
    held(sync_fleet, 1, 5)
    url = sync_fleet.url.render_as_string(hide_password=False)

    def called(*arguments: str) -> Any:
        command = ["workers", "--url", url, "tests.support.fleet:Fleet", *arguments]
        return CliRunner().invoke(application(), command)

    assert called("release", "--yes").exit_code == 2, "it needs a name"
    refused = called("release", "here", "--yes")
    assert (refused.exit_code, "here is live, and reported" in refused.stderr) == (2, True)
    assert called("release", "gone").exit_code == 2, "it asks first"
    assert "1 task was released." in called("release", "gone", "--yes").output


def test_rows_of_other_releases(fleet: Database) -> None:
    """Of a handler that another release has registered, only the queue must be known."""
    whole = handler("errand_of_fleet")
    register(fleet, "newer", {**whole, "mood": "good"}, {"mood": "bad"})
    register(fleet, "older", {"queue": "errand_of_fleet"})
    register(fleet, "own", whole)
    with fleet.engine.begin() as connection:
        connection.execute(update(FleetWorker).where(FleetWorker.name == "newer").values(command="dance"))
    found = {each.name: each for each in fleet.committed.workers(Errand)}
    assert fleet.committed.drain_workers(Errand) == 3
    assert found["newer"].command is None
    assert found["newer"].handlers == found["own"].handlers
    (least,) = found["older"].handlers
    assert (least.queue, least.functions, least.whole, least.slots, least.busy) == (
        "errand_of_fleet",
        None,
        False,
        0,
        0,
    )
