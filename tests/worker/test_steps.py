"""Durable steps: what has run does not run again, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from sqlqueue import ArgumentError, AsyncSteps, Snooze, Steps, Worker, claim_of
from sqlqueue.sql import utcnow
from sqlqueue.testing import drain
from sqlqueue.worker.jobs import Wait
from tests.support.flows import Note, Page, flow, sync_flow
from tests.support.harness import Database
from tests.support.models import Ledger, Task, Voyage
from tests.support.processes import Processes
from tests.support.rows import count, end_leases, load_all
from tests.support.workers import LONG, Workers, all_are, eventually
from tests.worker.children import sail

__all__ = ["flow", "sync_flow"]

NOW, SHORT = timedelta(0), timedelta(seconds=0.2)


def enter(number: int) -> Callable[[Any], None]:
    return lambda session: session.add(Ledger(task_id=number))


def voyage(db: Database) -> Voyage:
    (found,) = load_all(db, Voyage)
    return found


def serving(db: Database, sync: Callable[[Steps, Voyage], Any], coroutine: Callable[..., Any]) -> Any:
    """Return the handler of the kind that workers of this database accept."""
    return coroutine if db.is_async else sync


def test_a_step_that_has_run_does_not_run_again(db: Database, workers: Workers) -> None:
    ran: list[Any] = []

    def fly(steps: Steps, task: Voyage) -> object:
        ran.append(steps.key("pay"))
        paid = steps.run("pay", lambda: ran.append("pay") or ("ch", 1))
        steps.run("book", enter(1))
        ran.append(paid)
        if len(ran) < 6:
            raise ValueError("again")
        steps.sleep("rest", SHORT)
        return steps.run("end", lambda: {"done": True})

    async def fly_awaited(steps: AsyncSteps, task: Voyage) -> object:
        async def pay() -> Any:
            ran.append("pay")
            return ("ch", 1)

        async def book(session: Any) -> None:
            enter(1)(session)
            await session.flush()

        async def end() -> Any:
            return {"done": True}

        ran.append(await steps.key("pay"))
        paid = await steps.run("pay", pay)
        await steps.run("book", book)
        ran.append(paid)
        if len(ran) < 6:
            raise ValueError("again")
        await steps.sleep("rest", SHORT)
        return await steps.run("end", end)

    db.insert(Voyage, [{"max_attempts": 3}])
    workers.serve(Voyage, serving(db, fly, fly_awaited))
    eventually(all_are(db, "completed", Voyage))
    key = ran[0]
    assert ran == [key, "pay", ["ch", 1], key, ["ch", 1], key, ["ch", 1], key, ["ch", 1]]
    assert count(db, Ledger) == 1
    done = voyage(db)
    assert (done.attempt, done.max_attempts, done.result) == (4, 4, {"done": True}), "the sleep counts no attempt"
    assert done.steps is not None
    assert set(done.steps["steps"]) == {"pay", "book", "rest", "end"}


def test_a_stale_process_records_nothing(db: Database, workers: Workers) -> None:
    """Neither the step nor what it has written."""

    def take_over() -> None:
        """Leave the row as the claim of another worker does."""
        db.execute(update(Voyage).values(attempt=Voyage.attempt + 1, claim_token=-7))

    def fly(steps: Steps, task: Voyage) -> None:
        def book(session: Any) -> None:
            enter(1)(session)
            session.flush()
            if not db.case.one_writer:
                take_over()

        if db.case.one_writer:
            take_over()
        steps.run("book", book)

    async def fly_awaited(steps: AsyncSteps, task: Voyage) -> None:
        async def book(session: Any) -> None:
            enter(1)(session)
            await session.flush()

        await asyncio.to_thread(take_over)
        await steps.run("book", book)

    db.insert(Voyage, [{}])
    lease = timedelta(minutes=5)  # no heartbeat notices it before the step does
    worker = workers.serve(Voyage, serving(db, fly, fly_awaited), poll=LONG, lease=lease).worker
    eventually(lambda: worker._reports.counts["lost"] == 1)
    assert voyage(db).steps is None
    assert count(db, Ledger) == 0


@pytest.mark.one_engine
def test_kills_before_and_after_each_commit(sync_db: Database, processes: Processes) -> None:
    """A step with a session has taken effect once, and one without it as often as it was not recorded."""
    sync_db.insert(Voyage, [{}])
    for number in range(4):
        for moment, kept in (("before", number), ("after", number + 1)):
            child = processes.spawn(sail, sync_db.url, moment)
            eventually(lambda child=child: child.status is not None)
            assert child.status == 9
            steps = voyage(sync_db).steps or {"steps": {}, "id": None}
            assert len(steps["steps"]) + bool(steps["id"]) == kept
            assert count(sync_db, Ledger) == max(kept - 2, 0)
            end_leases(sync_db, Voyage)
    processes.spawn(sail, sync_db.url, "").result()
    assert voyage(sync_db).status == "completed"
    assert count(sync_db, Ledger) == 2


@pytest.mark.one_engine
def test_steps_that_run_at_once_are_all_recorded(db: Database, workers: Workers) -> None:
    if not db.is_async:
        pytest.skip("coroutines only")

    async def fly(steps: AsyncSteps, task: Voyage) -> None:
        async def book(session: Any) -> int:
            await asyncio.sleep(0.01)
            return 7

        found = await asyncio.gather(*(steps.run(f"step {number}", book) for number in range(8)))
        assert found == [7] * 8

    db.insert(Voyage, [{}])
    workers.serve(Voyage, fly)
    eventually(all_are(db, "completed", Voyage))
    steps = voyage(db).steps
    assert steps is not None
    assert len(steps["steps"]) == 8


@pytest.mark.one_engine
def test_what_keeps_steps_and_what_begins_anew(sync_db: Database) -> None:
    worker, ran, fails = Worker(sync_db.sessions()), list[str](), iter([True, False, False, False])

    @worker.handler(Voyage)
    def fly(steps: Steps, task: Voyage) -> None:
        steps.run("pay", lambda: ran.append("pay"))
        if next(fails):
            raise ValueError("no")

    sync_db.insert(Voyage, [{"max_attempts": 1, "unique_key": "a"}])
    assert drain(worker, raise_errors=False) == {"discarded": 1}
    assert sync_db.committed.retry(Voyage) == 1
    drain(worker)
    assert ran == ["pay"]
    assert sync_db.committed.rerun(Voyage) == 1
    drain(worker)
    assert ran == ["pay"] * 2
    with sync_db.begin() as session:
        session.rerun(Voyage)
        running = session.claim(Voyage)
    sync_db.execute(update(Voyage).values(steps={"id": None, "steps": {"pay": {"result": None}}}))
    with sync_db.begin() as session:
        session.enqueue(Voyage, [{"unique_key": "a"}], on_conflict="rerun")
        session.complete(claim_of(running))
    assert (voyage(sync_db).status, voyage(sync_db).steps) == ("available", None)


@pytest.mark.one_engine
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_sleep_cannot_be_caught(db: Database, workers: Workers, goes_on: bool) -> None:
    """The next step raises it again, and so does the return."""
    ran: list[str] = []

    def fly(steps: Steps, task: Voyage) -> None:
        with suppress(Exception):
            steps.sleep("rest", timedelta(hours=1))
        if goes_on:
            steps.run("next", lambda: ran.append("next"))

    async def fly_awaited(steps: AsyncSteps, task: Voyage) -> None:
        async def go_on() -> None:
            ran.append("next")

        with suppress(Exception):
            await steps.sleep("rest", timedelta(hours=1))
        if goes_on:
            await steps.run("next", go_on)

    db.insert(Voyage, [{}])
    worker = workers.serve(Voyage, serving(db, fly, fly_awaited), poll=LONG).worker
    eventually(lambda: worker._reports.counts.total() >= 2)
    eventually(lambda: voyage(db).status != "running")
    assert (voyage(db).status, ran) == ("scheduled", [])


def test_a_wait_gives_the_worker_back_until_its_event_opens(flow: Database, workers: Workers) -> None:
    """Or until its deadline, or until a batch has ended; each of these tasks has a single attempt."""
    timeouts = {"early": LONG, "late": None, "between": None, "never": SHORT}

    def travel(steps: Steps, page: Page) -> Any:
        if page.name == "batch":
            steps.run("fan out", fan_out)
            return steps.wait("end", "notes")
        try:
            return steps.wait("gate", f"gate {page.name}", timeout=timeouts[page.name])
        finally:
            if page.name == "between":  # when the step has looked, and before the task waits
                flow.committed.open_event(Page, "gate between", 3)

    async def travel_awaited(steps: AsyncSteps, page: Page) -> Any:
        async def fan_out_awaited(session: Any) -> None:
            await session.run_sync(fan_out)

        if page.name == "batch":
            await steps.run("fan out", fan_out_awaited)
            return await steps.wait("end", "notes")
        try:
            return await steps.wait("gate", f"gate {page.name}", timeout=timeouts[page.name])
        finally:
            if page.name == "between":
                await asyncio.to_thread(flow.committed.open_event, Page, "gate between", 3)

    def fan_out(session: Any) -> None:
        with session.batch("notes") as notes:
            notes.add(Note, [{"name": "a"}, {"name": "b"}])

    def found() -> dict[str, tuple[str, Any]]:
        return {page.name: (page.status, page.result) for page in load_all(flow, Page)}

    flow.committed.open_event(Page, "gate early", {"n": 1})
    worker = workers.serve(Page, serving(flow, travel, travel_awaited), poll=LONG).worker
    eventually(lambda: worker._run and worker._run._latches[0]._swept)  # no later sweep helps
    flow.committed.enqueue(Page, [{"name": name, "max_attempts": 1} for name in (*timeouts, "batch")])
    ended = {"early": ("completed", {"n": 1}), "between": ("completed", 3), "never": ("completed", None)}
    waiting = {"late": ("waiting", None), "batch": ("waiting", None)}
    eventually(lambda: found() == ended | waiting)
    assert flow.committed.open_event(Page, "gate late", {"n": 2})
    assert not flow.committed.open_event(Page, "gate late", {"n": 3})
    assert flow.committed.open_event(Page, "gate never")
    with flow.begin() as session:
        session.discard(session.claim(Note), "no")
        session.complete(session.claim(Note))
    flow.committed.advance(Page)
    counts = {"completed": 1, "discarded": 1, "cancelled": 0, "skipped": 0}
    ended |= {"late": ("completed", {"n": 2}), "batch": ("completed", counts)}
    eventually(lambda: found() == ended)


@pytest.mark.one_engine
def test_a_wait_goes_on_if_it_is_woken_and_may_be_for_another_event_then(sync_flow: Database) -> None:
    worker, events = Worker(sync_flow.sessions()), ["a", "a", "b"]

    @worker.handler(Page)
    def travel(steps: Steps, page: Page) -> Any:
        return steps.wait("gate", events.pop(0) if events else "b", timeout=timedelta(hours=1))

    sync_flow.insert(Page, [{"max_attempts": 1}])
    while events:
        assert drain(worker) == {"snoozed": 1}
        assert drain(worker) == {}
        sync_flow.execute(update(Page).values(status="available", available_at=utcnow()))
    sync_flow.committed.open_event(Page, "a", 1)
    assert drain(worker) == {"snoozed": 1}
    assert drain(worker, ahead=timedelta(hours=2)) == {"completed": 1}
    assert [page.result for page in load_all(sync_flow, Page)] == [None]


@pytest.mark.parametrize("pause", ["sleep", "wait"])
def test_the_time_that_a_handler_has_run_prolongs_no_pause(sync_flow: Database, pause: str) -> None:
    worker, hour, pauses = Worker(sync_flow.sessions()), timedelta(hours=1), list[tuple[timedelta, datetime]]()

    @worker.handler(Page)
    def travel(steps: Steps, page: Page) -> None:
        time.sleep(0.1)
        try:
            steps.sleep("gate", hour) if pause == "sleep" else steps.wait("gate", "event", timeout=hour)
        except (Snooze, Wait) as signal:
            pauses.append((signal.in_ or timedelta.max, page.claimed_at or datetime.max))
            raise

    sync_flow.insert(Page, [{}])
    for _ in range(2):
        drain(worker)
        sync_flow.execute(update(Page).values(status="available", available_at=utcnow()))
    ((first, _), (second, claimed_at)), (page,) = pauses, load_all(sync_flow, Page)
    assert page.steps is not None
    until = datetime.fromisoformat(page.steps["steps"]["gate"]["until"])
    assert first == hour
    assert second <= until - claimed_at - timedelta(seconds=0.1)


def test_a_wait_for_a_batch_that_waits_for_the_task_itself_is_refused(sync_flow: Database) -> None:
    worker = Worker(sync_flow.sessions())
    worker.handler(Page)(lambda steps, page: steps.wait("end", page.name, timeout=LONG))
    with sync_flow.begin() as session, session.batch("outer") as outer:
        outer.add(Page(name="outer", max_attempts=1))
    with sync_flow.begin() as session, session.batch("inner", into="outer") as inner:
        first = inner.add(Page(name="outer", max_attempts=1))
        inner.add(Page(name="inner"), after=first)
    with sync_flow.begin() as session, session.batch("other") as other:
        other.add(Page(name="inner"))
    drain(worker, raise_errors=False)
    refused = "the batch 'outer' waits for this task, which would wait for it: neither would end"
    found = [(page.name, page.status, refused in (page.error or "")) for page in load_all(sync_flow, Page)]
    assert found == [
        ("outer", "discarded", True),
        ("outer", "discarded", True),
        ("inner", "cancelled", False),
        ("inner", "completed", False),
    ], "and of a batch that waits for something else it is not"


@pytest.mark.one_engine
def test_drain_passes_what_a_task_sleeps(sync_db: Database) -> None:
    worker, calls = Worker(sync_db.sessions()), list[int]()

    @worker.handler(Voyage)
    def fly(steps: Steps, task: Voyage) -> None:
        calls.append(task.id)
        with suppress(Exception):
            steps.sleep("rest", timedelta(hours=1))

    sync_db.insert(Voyage, [{}])
    assert drain(worker) == {"snoozed": 1}
    assert drain(worker, ahead=timedelta(hours=2)) == {"completed": 1}
    assert len(calls) == 2


@pytest.mark.one_engine
def test_drain_runs_steps_one_by_one_that_are_awaited_together(db: Database) -> None:
    """They have one session.  If one fails, the others go on."""
    failing = [2]

    def enter_late(number: int) -> Callable[[Any], Any]:
        async def enter_it(session: Any) -> None:
            await asyncio.sleep(0)
            session.add(Ledger(task_id=number))
            await session.flush()
            await asyncio.sleep(0)
            if number in failing:
                raise OSError(failing.pop())

        return enter_it

    async def fly_awaited(steps: AsyncSteps, task: Voyage) -> None:
        await asyncio.gather(*(steps.run(f"step {number}", enter_late(number)) for number in range(5)))

    def fly(steps: Steps, task: Voyage) -> None:
        with ThreadPoolExecutor(5) as threads:
            for each in [threads.submit(steps.run, f"step {number}", enter(number)) for number in range(5)]:
                each.result()
        if failing:
            raise OSError(failing.pop())

    worker = Worker(db.sessions())
    worker.handler(Voyage)(serving(db, fly, fly_awaited))
    db.insert(Voyage, [{}])
    with db.begin() as session:
        counts = session.pass_to(lambda own: drain(worker, own, raise_errors=False, ahead=timedelta(hours=1)))
        assert counts == {"failed": 1, "completed": 1}
    assert count(db, Ledger) == 5


@pytest.mark.one_engine
def test_bad_steps(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.worker.steps.MOST", 3)
    monkeypatch.setattr("sqlqueue.worker.steps.LARGEST", 2_000)

    def nest(steps: Steps) -> None:
        steps.run("outer", lambda session: steps.run("inner", nothing))

    def nothing() -> None: ...
    def twice(steps: Steps) -> None:
        steps.run("a", nothing)
        steps.run("a", nothing)

    def many(steps: Steps) -> None:
        for number in range(4):
            steps.run(f"step {number}", nothing)

    def sleep_then_run(steps: Steps) -> None:
        if steps._kept["steps"]:
            steps.run("rest", nothing)
        steps.sleep("rest", timedelta(microseconds=1))

    for complaint, act in [
        ("'a' has run before", twice),
        ("at most 3 steps", many),
        ("would take", lambda steps: steps.run("large", lambda: "x" * 2_000)),
        ("result", lambda steps: steps.run("no JSON", lambda: b"")),
        ("name", lambda steps: steps.run("", nothing)),
        ("takes nothing, or a session", lambda steps: steps.run("two", lambda one, two: None)),
        ("in a lambda", lambda steps: steps.run("class", dict)),
        ("not a function", lambda steps: steps.run("none", None)),
        ("do not nest", nest),
        ("delay", lambda steps: steps.sleep("rest", timedelta(-1))),
        ("of another kind", sleep_then_run),
        ("cannot wait for an event: derive it from FlowMixin", lambda steps: steps.wait("gate", "event")),
        ("timeout", lambda steps: steps.wait("gate", "event", timeout=timedelta(0))),
    ]:
        worker = Worker(sync_db.sessions())

        @worker.handler(Voyage)
        def fly(steps: Steps, task: Voyage, act: Any = act) -> None:
            act(steps)

        sync_db.insert(Voyage, [{"max_attempts": 1}])
        with pytest.raises(ArgumentError, match=complaint):
            drain(worker, ahead=timedelta(seconds=5))
        sync_db.committed.cancel(Voyage)


@pytest.mark.one_engine
def test_handlers_that_cannot_take_steps(sync_db: Database) -> None:
    worker = Worker(sync_db.sessions())

    def fly(steps: Steps, task: Any) -> None: ...
    async def fly_awaited(steps: AsyncSteps, task: Any) -> None: ...
    async def mistaken(steps: Steps, task: Any) -> None: ...

    for complaint, model, handler, options in [
        ("derive it from StepMixin", Task, fly, {}),
        ("mode='lock'", Voyage, fly, {"mode": "lock"}),
        ("mode='at-most-once'", Voyage, fly, {"mode": "at-most-once"}),
        ("chunk=", Voyage, fly, {"chunk": 5}),
        ("gets AsyncSteps, not Steps", Voyage, mistaken, {}),
        ("needs a worker of an async_sessionmaker", Voyage, fly_awaited, {}),
    ]:
        given: Any = options
        with pytest.raises(ArgumentError, match=complaint):
            worker.handler(model, **given)(handler)
