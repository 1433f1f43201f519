"""The kinds of work to measure, and the contenders of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .clients import Clients, by_driver, by_library, by_orm
from .contest import Contender, Form
from .figures import Kind
from .hands import (
    Cycle,
    Draining,
    Enqueue,
    Enqueueing,
    Working,
    apart,
    at_most_once,
    by_copy,
    in_bulk,
    one_by_one,
    together,
    with_session,
    without_session,
)
from .plan import Plan
from .yardsticks import YARDSTICKS

_SLOWER = 5
"""Divisor of the number of jobs for contenders that commit each job."""
_Make = Callable[[Kind, str, Clients], Contender]


def drains(plan: Plan, driver: str) -> list[Form]:
    """Return the ways to claim and complete jobs."""
    batch, threads, few = plan.batch, plan.threads, max(plan.jobs // _SLOWER, 1)
    many = partial(_loops, plan, driver, in_batches=True, threads=1)
    single = partial(_loops, plan, driver, in_batches=False)
    without = _worker("worker, handler(job)", without_session, "lease")
    within = _worker("worker, handler(session, job)", with_session, "lease")
    locking = _worker("worker, mode='lock'", with_session, "lock")
    once = _worker("worker, mode='at-most-once'", without_session, "at-most-once")
    return [
        _form(f"{batch} at a time", plan.jobs, many(apart, "claim_many, complete"), without),
        _form(f"{batch} at a time, at most once", plan.jobs, many(at_most_once, "consume_many"), once),
        _form("one by one, two commits", few, single(apart, "claim, complete", threads=1)),
        _form(f"one by one, two commits, {threads} threads", few, single(apart, None, threads=threads), within),
        _form("one by one, one commit", few, single(together, "claim, complete", threads=1)),
        _form(f"one by one, one commit, {threads} threads", few, single(together, None, threads=threads), locking),
    ]


def enqueues(plan: Plan, driver: str) -> list[Form]:
    """Return the ways to enqueue jobs."""
    way = partial(_ways, driver)
    few = max(plan.jobs // _SLOWER, 1)

    def contenders(enqueue: Enqueue, ours: str) -> list[Contender]:
        return way(ours, lambda clients: partial(Enqueueing, clients=clients, enqueue=enqueue))

    forms = [
        Form(name="one by one, a commit each", jobs=few, contenders=contenders(one_by_one, "enqueue(job)")),
        Form(name="in bulk, one commit", jobs=plan.jobs, contenders=contenders(in_bulk, "enqueue(Model, rows)")),
    ]
    if driver in YARDSTICKS and YARDSTICKS[driver].copies:
        copying = [each for each in contenders(by_copy, "enqueue(Model, rows, copy=True)") if each.kind != "orm"]
        forms.append(Form(name="by COPY, one commit", jobs=plan.jobs, contenders=copying))
    return forms


def _form(name: str, jobs: int, contenders: Sequence[Contender], *more: Contender) -> Form:
    return Form(name=name, jobs=jobs, contenders=[*contenders, *more])


def _worker(who: str, handler: Callable[..., None], mode: Any) -> Contender:
    return Contender(who=who, kind="sqlqueue", make=partial(Working, handler=handler, mode=mode))


def _loops(
    plan: Plan, driver: str, cycle: Cycle, ours: str | None, *, in_batches: bool, threads: int
) -> list[Contender]:
    def loop(clients: Clients) -> partial[Draining]:
        return partial(Draining, clients=clients, cycle=cycle, in_batches=in_batches, threads=threads)

    return _ways(driver, ours, loop)


def _ways(driver: str, ours: str | None, make: Callable[[Clients], Any]) -> list[Contender]:
    """Return the driver's yardstick if there is one, the ORM's if its lock clause has an effect, and the library's."""
    yardstick = YARDSTICKS.get(driver)
    found: list[Contender] = []
    if yardstick is not None:
        found.append(Contender(who=f"{driver} by hand", kind="driver", make=make(by_driver)))
        if yardstick.skips_locked:
            found.append(Contender(who="SQLAlchemy ORM by hand", kind="orm", make=make(by_orm)))
    if ours is not None:
        found.append(Contender(who=ours, kind="sqlqueue", make=make(by_library)))
    return found
