"""The kinds of work to measure, and the contenders of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from .baselines import BASELINES
from .clients import Clients, by_driver, by_library, by_orm
from .contest import Contender, Form
from .figures import ContenderKind
from .models import Call
from .plan import Plan
from .workloads import (
    Cycle,
    Draining,
    Enqueue,
    Enqueueing,
    Register,
    Working,
    apart,
    apart_writing,
    apart_writing_each,
    at_most_once,
    by_copy,
    coroutine,
    handle,
    handle_chunks,
    in_bulk,
    one_by_one,
    run_calls,
    together,
    together_writing,
    with_session,
    without_session,
    writing,
)

_SLOWER = 5
"""Divisor of the number of jobs for contenders that commit each job."""
HAS_GREENLET = find_spec("greenlet") is not None
"""Whether workers can run coroutines."""
_Make = Callable[[ContenderKind, str, Clients], Contender]


def drains(plan: Plan, driver: str) -> list[Form]:
    """Return the ways to claim and complete jobs."""
    return [*_batch_drains(plan, driver), *_single_drains(plan, driver), *_inserting_drains(plan, driver)]


def _batch_drains(plan: Plan, driver: str) -> list[Form]:
    """Return the ways that claim many jobs at a time."""
    batch = plan.batch
    many = partial(_loops, plan, driver, in_batches=True, threads=1)
    plain = _worker("worker, handler(job)", partial(handle, handler=without_session))
    awaited = [_worker("worker, coroutine handler(job)", partial(handle, handler=coroutine))] * HAS_GREENLET
    called = replace(_worker("worker, @worker.task", run_calls), model=Call)
    once = _worker("worker, mode='at-most-once'", partial(handle, handler=without_session, mode="at-most-once"))
    return [
        _form(f"{batch} at a time", plan.jobs, many(apart, "claim_many, complete"), plain, *awaited, called),
        _form(f"{batch} at a time, at most once", plan.jobs, many(at_most_once, "consume_many"), once),
    ]


def _single_drains(plan: Plan, driver: str) -> list[Form]:
    """Return the ways that commit each job."""
    threads, few = plan.threads, _fewer(plan)
    single = partial(_loops, plan, driver, in_batches=False)
    leasing = _worker("worker, handler(session, job)", partial(handle, handler=with_session))
    locking = _worker("worker, mode='lock'", partial(handle, handler=with_session, mode="lock"), claims_late=True)
    return [
        _form("one by one, two commits", few, single(apart, "claim, complete", threads=1)),
        _form(f"one by one, two commits, {threads} threads", few, single(apart, None, threads=threads), leasing),
        _form("one by one, one commit", few, single(together, "claim, complete", threads=1)),
        _form(f"one by one, one commit, {threads} threads", few, single(together, None, threads=threads), locking),
    ]


def _inserting_drains(plan: Plan, driver: str) -> list[Form]:
    """Return the ways that commit each job with a row that its handler inserts."""
    threads, few = plan.threads, _fewer(plan)
    loops = partial(_loops, plan, driver, ours=None, in_batches=False, threads=threads)
    leasing = _worker("worker, handler(session, job)", partial(handle, handler=writing))
    locking = _worker("worker, mode='lock'", partial(handle, handler=writing, mode="lock"), claims_late=True)
    chunks = partial(_loops, plan, driver, ours=None, in_batches=True, threads=1)
    chunked = _worker("worker, handler(session, jobs)", handle_chunks)
    return [
        _form(f"inserting a row each, {plan.batch} at a time", plan.jobs, chunks(cycle=apart_writing_each), chunked),
        _form(f"inserting a row, two commits, {threads} threads", few, loops(cycle=apart_writing), leasing),
        _form(f"inserting a row, one commit, {threads} threads", few, loops(cycle=together_writing), locking),
    ]


def enqueues(plan: Plan, driver: str) -> list[Form]:
    """Return the ways to enqueue jobs."""
    way = partial(_ways, driver)

    def contenders(enqueue: Enqueue, ours: str) -> list[Contender]:
        return way(ours, lambda clients: partial(Enqueueing, clients=clients, enqueue=enqueue))

    forms = [
        Form(name="one by one, a commit each", jobs=_fewer(plan), contenders=contenders(one_by_one, "enqueue(job)")),
        Form(name="in bulk, one commit", jobs=plan.jobs, contenders=contenders(in_bulk, "enqueue(Model, rows)")),
    ]
    if driver in BASELINES and BASELINES[driver].copies:
        copying = [each for each in contenders(by_copy, "enqueue(Model, rows, copy=True)") if each.kind != "orm"]
        forms.append(Form(name="by COPY, one commit", jobs=plan.jobs, contenders=copying))
    return forms


def _fewer(plan: Plan) -> int:
    """Return the number of jobs for contenders that commit each job."""
    return max(plan.jobs // _SLOWER, 1)


def _form(name: str, jobs: int, contenders: Sequence[Contender], *more: Contender) -> Form:
    return Form(name=name, jobs=jobs, contenders=[*contenders, *more])


def _worker(name: str, register: Register, *, claims_late: bool = False) -> Contender:
    make = partial(Working, register=register)
    return Contender(name=name, kind="sqlqueue", make=make, claims_late=claims_late)


def _loops(
    plan: Plan, driver: str, cycle: Cycle, ours: str | None, *, in_batches: bool, threads: int
) -> list[Contender]:
    def loop(clients: Clients) -> partial[Draining]:
        return partial(Draining, clients=clients, cycle=cycle, in_batches=in_batches, threads=threads)

    return _ways(driver, ours, loop)


def _ways(driver: str, ours: str | None, make: Callable[[Clients], Any]) -> list[Contender]:
    return [
        Contender(name=ours if kind == "sqlqueue" and ours else name, kind=kind, make=make(clients))
        for name, kind, clients in ways(driver)
        if kind != "sqlqueue" or ours is not None
    ]


def ways(driver: str) -> list[tuple[str, ContenderKind, Clients]]:
    """Return the driver's baseline if there is one, the ORM's if its lock clause has an effect, and the library."""
    baseline = BASELINES.get(driver)
    found: list[tuple[str, ContenderKind, Clients]] = []
    if baseline is not None:
        found.append((f"{driver} by hand", "driver", by_driver))
        if baseline.skips_locked:
            found.append(("SQLAlchemy ORM by hand", "orm", by_orm))
    return [*found, ("sqlqueue", "sqlqueue", by_library)]
