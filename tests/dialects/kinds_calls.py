"""The operations on other kinds of queues, by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import select

from sqlqueue import ArgumentError, QueueSession, Rate, utcnow
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.statements import ClaimRequest
from sqlqueue.kinds.limits import Free, Gate, create_slots, slots_of
from sqlqueue.lifecycle.transitions import TOKEN, claim_assignments
from sqlqueue.model.companions import worker_table
from sqlqueue.operations import turns
from sqlqueue.operations.claiming import ClaimCall, ClaimQuery
from sqlqueue.operations.history import count_old_attempts
from sqlqueue.operations.keys import View
from sqlqueue.operations.latches import Latches
from sqlqueue.operations.settling import EXPIRY, keep_steps, report_some, settle_some, waiting
from sqlqueue.operations.workers import release_held, silent_workers
from sqlqueue.outbox import claim_messages
from sqlqueue.sql import EDGE, all_but
from sqlqueue.transaction import Access
from sqlqueue.worker import registration
from tests.dialects.recorder import HANDLERS
from tests.dialects.session_calls import MINUTE, Call, claims, locked, why
from tests.support import history as past
from tests.support.fleet import Errand, Fleet
from tests.support.flows import Latch, Page
from tests.support.models import (
    Chore,
    Crawl,
    Dispatch,
    Message,
    Outgoing,
    Ping,
    Push,
    Render,
    Report,
    Transfer,
    Visit,
    Voyage,
)
from tests.support.polling import next_due


def recurring() -> Iterator[tuple[str, Call]]:
    yield "Report.enqueue(rows)", lambda s: s.enqueue(Report, [{"schedule": "PT60S"}])
    yield "Report.enqueue(rerun)", lambda s: s.enqueue(Report, [{"id": 7, "schedule": "PT60S"}], on_conflict="rerun")
    yield "Report.claim", lambda s: s.claim(Report)
    yield "Ping.claim", lambda s: s.claim(Ping)
    yield "Report.complete", lambda s: s.complete(claims(Report, 3))
    yield "Ping.complete", lambda s: s.complete(claims(Ping, 1))
    yield "Report.complete(locked)", lambda s: s.complete(locked(s, Report))
    yield "Report.fail", lambda s: s.fail(claims(Report, 3), "no")
    yield "Report.release(locked)", lambda s: s.release(locked(s, Report))
    yield "Report.rescue", lambda s: s.rescue(Report)
    yield "Report.reschedule", lambda s: s.reschedule(Report, Report.id == 7, schedule="PT60S", drift=True)
    yield "Report.reschedule(own)", lambda s: s.reschedule(Report)
    yield "Report.unschedule", lambda s: s.unschedule(Report, Report.id == 7)
    yield "Report.unschedule(locked)", lambda s: (locked(s, Report), s.unschedule(Report))
    report, chore = {"id": 1, "schedule": "PT90S"}, {"unique_key": "a", "task": "b", "schedule": "PT60S"}
    yield "Report.declare", lambda s: s.declare_schedules(Report, [report, report | {"id": 7}])
    yield "Report.declare(removing)", lambda s: s.declare_schedules(Report, [], remove_missing=True)
    yield "Chore.declare", lambda s: s.declare_schedules(Chore, [chore], Chore.note == "c", remove_missing=True)


def limited() -> Iterator[tuple[str, Call]]:
    yield "Visit.claim", lambda s: s.claim(Visit)
    yield "Visit.consume", lambda s: s.consume(Visit)
    yield "Visit.complete", lambda s: s.complete(claims(Visit, 3))
    yield "Visit.heartbeat", lambda s: s.heartbeat(claims(Visit, 3))
    yield "Visit.cancel(where)", lambda s: s.cancel(Visit, Visit.limit_key == "a")
    yield "Visit.discard(where)", lambda s: s.discard(Visit, Visit.limit_key == "a", error="no")
    yield "Visit.set_limit", lambda s: s.set_limit(Visit, "a", 3)
    yield "Visit.set_rate", lambda s: s.set_rate(Visit, "a", Rate(150, per=MINUTE))
    yield "Visit.limits", lambda s: s.limits(Visit)
    yield "Visit.next_due", lambda s: next_due(s, Visit, used_up=["a", "b"])
    yield "Visit.keys", beginning(lambda s: s.keys(Visit, first=2))
    yield "Visit.release", lambda s: s.release(claims(Visit, 3))
    yield "Visit.claim(candidates)", _claim_candidates
    yield "Visit.claim(places)", _take_places
    yield "Visit.claim(guessed keys)", _guess_keys
    yield (
        "Visit.create_slots",
        lambda s: create_slots(s, adapter_for(s.get_bind().dialect), Visit.__queue_spec__, ["a", "b"]),
    )
    yield "Message.prune", lambda s: s.prune(Message)


def _claim_candidates(session: QueueSession) -> None:
    """Send the later statements of a claim that has found tasks with a key and without one."""
    spec, adapter = Visit.__queue_spec__, adapter_for(session.get_bind().dialect)
    gate = Gate(session, adapter, spec, MINUTE)
    gate.hold({"x": 1, None: 1})
    gate._seen["x"] = datetime(2026, 1, 1, tzinfo=UTC)
    gate._stocks[0].free["x"], gate._stocks[0].unread = [Free(("x", 1), 1, 1), Free(("x", 2), 1, 1)], {"x"}
    gate.hold({"x": 2})
    for step in ClaimQuery(spec).steps:
        request = ClaimRequest(
            pick=step(9), assignments=claim_assignments(spec, "claimer", MINUTE), parameters={TOKEN: 7}
        )
        first = {"x": [(1,)], None: [(2,)]}
        with suppress(ArgumentError):  # on an engine that locks no rows, these are missing
            adapter.rows.claim_lanes(session, request, {"x": 1, None: 1}, first)
    (claim,) = claims(Visit, 1)
    gate._used = {claim.identity: [("x", 1)]}
    gate.assign([claim])


def _take_places(session: QueueSession) -> None:
    """Send the statements of a claim for places, worth one start and worth several."""
    gate = Gate(session, adapter_for(session.get_bind().dialect), Visit.__queue_spec__, MINUTE)
    for free in (Free(("x", -1), 1, 1), Free(("x", -1), 2, 3)):
        gate._known, gate._tried, gate._seen["x"] = {"x"}, set(), datetime(2026, 1, 1, tzinfo=UTC)
        gate._stocks[1].free["x"] = [free]
        gate.hold({"x": 1})
    gate._left_of([("x", -1), ("x", -2)])
    first, second, third = claims(Visit, 3)
    gate._begun = {("x", -2): 1}
    gate._used = {
        first.identity: [("x", -1)],
        second.identity: [("x", -2)],
        third.identity: [("x", -2)],
    }
    gate.assign([first, second, third])


def _guess_keys(session: QueueSession) -> None:
    """Send the statement by which a claim behind many full keys finds others, on engines that do not walk an index."""
    adapter = adapter_for(session.get_bind().dialect)
    if not adapter.rows.walks_keys:
        turns.Keys()._guess_by_slots(adapter, session, slots_of(Visit.__queue_spec__), "a", turns.MANY_LANES)


def progress() -> Iterator[tuple[str, Call]]:
    reports = [(claim, {"value": 0.5}) for claim in claims(Render, 1)]
    yield "Render.report", lambda s: report_some(s, reports)
    yield "Render.report(free)", lambda s: report_some(s, reports, waits=False)


def steps() -> Iterator[tuple[str, Call]]:
    (claim,) = claims(Voyage, 1)
    yield "Voyage.keep", lambda s: keep_steps(s, claim, {"id": None, "steps": {}})
    yield "Voyage.complete", lambda s: s.complete(claim)
    yield "Voyage.fail", lambda s: s.fail(claim, "no")


def expiry() -> Iterator[tuple[str, Call]]:
    yield "Push.claim", lambda s: s.claim(Push)
    yield "Push.enqueue(expires)", lambda s: s.enqueue(Push, [{"topic": "a"}], expires=MINUTE)
    yield "Push.end(many)", lambda s: settle_some(s, claims(Push, 3), EXPIRY)
    query = ClaimQuery(Push.__queue_spec__)
    yield "Push.end(following)", lambda s: ClaimCall(s, query, "claimer", MINUTE)._end_following(query)
    yield "Push.end(locked)", lambda s: _end_locked(ClaimCall(s, query, "claimer"))


def _end_locked(call: ClaimCall) -> None:
    call._cancel_expired(call._claim_rows(call.query, 1))


def fair() -> Iterator[tuple[str, Call]]:
    yield "Crawl.claim", beginning(lambda s: s.claim(Crawl))
    yield "Crawl.claim(of a topic)", beginning(lambda s: s.claim_many(Crawl, Crawl.topic == "a", limit=9))
    yield "Crawl.claim(of two)", beginning(lambda s: s.claim_many(Crawl, Crawl.site.in_(["a", "b"]), limit=9))
    yield "Crawl.claim(locked)", beginning(lambda s: s.claim_many(Crawl, limit=9, lease=None))
    yield "Crawl.consume", beginning(lambda s: s.consume_many(Crawl, Crawl.topic.in_(["b", "c"]), limit=9))
    yield "Crawl.claim(of keys)", _claim_of_keys
    others = all_but(Crawl.__table__.c.site, ["a", "b"])
    yield "Crawl.claim(but some)", beginning(lambda s: s.claim_many(Crawl, others, limit=9))
    yield "Crawl.keys", beginning(lambda s: s.keys(Crawl, first=2))
    yield "Crawl.pause(key)", lambda s: s.pause(Crawl, key="a")


def sequential() -> Iterator[tuple[str, Call]]:
    yield "Transfer.claim", beginning(lambda s: s.claim(Transfer))
    yield (
        "Transfer.claim(of two)",
        beginning(lambda s: s.claim_many(Transfer, Transfer.account.in_(["a", "b"]), limit=9)),
    )
    yield "Transfer.claim(locked)", beginning(lambda s: s.claim(Transfer, lease=None))
    yield "Transfer.claim(of keys)", _first_of_keys
    yield "Transfer.why", lambda s: why(s, Transfer)
    yield "Transfer.keys", beginning(_states_of_keys)


def _states_of_keys(session: QueueSession) -> None:
    """Send the statements of a look at keys that come after one, and at several of them."""
    view = View(session, Transfer)
    view.next_keys("a", 2)
    view.states(["b", "c", None], ())


def _first_of_keys(session: QueueSession) -> None:
    """Send the statements of a claim that knows keys."""
    adapter, (step,) = adapter_for(session.get_bind().dialect), ClaimQuery(Transfer.__queue_spec__).steps
    adapter.rows.next_keys(session, step(9), [EDGE, "a", "b"])
    adapter.rows.keys_after(session, step(9), "b", 128)
    adapter.rows.free_rows(session, step(9), ["a", "b"], 1)
    adapter.rows.lock_keys(session, step(9).lanes.ordered, [(7,), (8,)], 2, locks_only=False)


def beginning(call: Call) -> Call:
    """Return a claim that remembers no turns, and whose first turn is always the same."""

    def begin(session: QueueSession) -> Any:
        turns._rotations.clear()
        random.seed(7)
        return call(session)

    return begin


def _claim_of_keys(session: QueueSession) -> None:
    """Send the statements of a claim that knows keys, of which each has some tasks."""
    adapter, step = adapter_for(session.get_bind().dialect), ClaimQuery(Crawl.__queue_spec__).steps[0]
    adapter.rows.next_keys(session, step(9), [EDGE, "a", "b"])
    adapter.rows.keys_after(session, step(9), "b", 128)
    assignments = claim_assignments(Crawl.__queue_spec__, "claimer", MINUTE)
    request = ClaimRequest(pick=step(9), assignments=assignments, parameters={TOKEN: 7})
    adapter.rows.claim_lanes(session, request, {"a": 2, None: 1, "b": 6})


def outbox() -> Iterator[tuple[str, Call]]:
    for model in (Outgoing, Dispatch):
        yield f"{model.__name__}.claim_messages", beginning(lambda s, m=model: claim_messages(s, m, limit=10))
    yield "Outgoing.next_due", lambda s: next_due(s, Outgoing)
    yield "Outgoing.complete", lambda s: s.complete(claims(Outgoing, 3))


def history() -> Iterator[tuple[str, Call]]:
    parcel, flare, boat, rota = past.Parcel, past.Flare, past.Boat, past.Rota
    yield "Past.claim", lambda s: s.claim(parcel)
    yield "Past.claim(locked)", lambda s: s.claim(parcel, lease=None)
    taking_over = ClaimQuery(parcel.__queue_spec__)
    yield "Past.claim(due)", lambda s: ClaimCall(s, taking_over, "claimer", MINUTE).claim(taking_over, 10)
    yield "Past.consume", lambda s: s.consume(parcel)
    yield "Past.complete(many)", lambda s: s.complete(claims(parcel, 3))
    yield "Past.complete(deletes)", lambda s: s.complete(claims(flare, 3))
    yield "Past.fail", lambda s: s.fail(claims(parcel, 1), "no")
    yield "Past.release", lambda s: s.release(claims(parcel, 1))
    for model in (parcel, boat):
        yield f"Past.cancel({model.__name__})", lambda s, m=model: s.cancel(m, m.priority == 7)
    yield "Past.retry", lambda s: s.retry(parcel)
    for model in (parcel, rota):
        yield f"Past.rescue({model.__name__})", lambda s, m=model: s.rescue(m)
    yield "Past.history", lambda s: s.history(claims(parcel, 1)[0])
    yield "Past.prune_history", lambda s: s.prune_history(parcel)
    yield "Past.prune_history(limit)", lambda s: s.prune_history(parcel, MINUTE, limit=1_000)
    yield "Past.count_old_attempts", lambda s: count_old_attempts(s, parcel, None, cap=1_000)
    for cap in (None, 1_000):
        yield f"Past.errors({cap})", lambda s, c=cap: s.errors(parcel, cap=c)
        yield f"Past.timeline({cap})", lambda s, c=cap: s.timeline(parcel, cap=c)


def flows() -> Iterator[tuple[str, Call]]:
    spec = Page.__queue_spec__
    row = SimpleNamespace(id="x", reports_to="b", waits_for="x", members=["*", "flow_page"], waiters=["*", "flow_note"])
    row.opened_at = row.broken_at = None

    def of(session: QueueSession) -> Latches:
        return Latches.of(session, spec, Access.SKIP)

    yield "Flow.batch", _make_batch
    yield "Flow.begin", lambda s: of(s).begin()
    yield "Flow.ripe", lambda s: of(s).ripe(["a", "b"])
    yield "Flow.ripe(all)", lambda s: of(s).ripe(None)
    yield "Flow.failing", lambda s: (of(s).failing(None), of(s).failing(MINUTE))
    yield "Flow.unsealed", lambda s: of(s).unsealed(MINUTE)
    yield "Flow.of_failed", lambda s: of(s).of_failed({spec: [(7,)]})
    yield "Flow.lock", lambda s: of(s)._lock(["a", "b"], skips=True)
    yield "Flow.hold", lambda s: of(s).hold(["a", "b"])
    asked = select(Latch.__table__.c.opened_at).where(Latch.__table__.c.id == "x")
    yield (
        "Flow.share",
        lambda s: of(s)._execute(of(s).adapter.rows.locking(Latch.__table__, asked, skips=False, shared=True)),
    )
    yield "Flow.broken_links", lambda s: of(s).broken_links(["a"])
    yield "Flow.count", lambda s: of(s)._count([row])
    yield "Flow.above", lambda s: of(s).above([row])
    yield "Flow.release", lambda s: of(s).release([row])
    yield "Flow.fail", lambda s: of(s).fail([row], early=True)
    yield "Flow.broken_below", lambda s: of(s)._broken_below([row])
    yield "Flow.revive", lambda s: of(s)._revive([row], "completed")
    yield "Flow.wait", lambda s: settle_some(s, claims(Page, 2), waiting("a", MINUTE))
    yield "Flow.cancel", lambda s: s.cancel(Page, Page.name == "a")
    yield "Flow.claim", lambda s: s.claim(Page)
    yield "Flow.complete", lambda s: s.complete(claims(Page, 3))
    yield "Flow.prune", lambda s: s.prune(Page, MINUTE)
    yield "Flow.prune_batches", lambda s: s.prune_batches(Page, MINUTE, limit=1_000)


def _make_batch(session: QueueSession) -> None:
    with session.batch("a") as batch:
        group = batch.add(Page, [{"name": "b"}, {"name": "c"}])
        batch.add(Page, [{"name": "d"}], after=group)


def registry() -> Iterator[tuple[str, Call]]:
    spec, table = Errand.__queue_spec__, worker_table(Fleet.metadata)
    facts = {"id": "x", "name": "a", "host": "b", "process": 7, "birth": "c", "claimer": 8, "version": "1"}
    moments = {"started_at": utcnow(-MINUTE), "seen_at": utcnow(), "stalled_at": None, "last_claim_at": None}
    row = {**facts, **moments, "memory": 9, "handlers": HANDLERS}
    yield "Fleet.report", lambda s: registration._report(s, spec, table, row)
    yield "Fleet.read", lambda s: registration._read(s, spec, table, "x")
    yield "Fleet.leave", lambda s: registration._leave(s, spec, table, "x")
    yield "Fleet.forget", lambda s: registration._forget(s, spec, table)
    yield "Fleet.workers", lambda s: s.workers(Fleet)
    yield "Fleet.unserved", lambda s: s.unserved(Fleet)
    yield "Fleet.drain_workers", lambda s: s.drain_workers(Fleet)
    yield "Fleet.release_held", lambda s: release_held(s, spec, 8, "x")
    yield "Fleet.silent_workers", lambda s: silent_workers(s, spec, "b")
    yield "Fleet.set_concurrency", lambda s: s.set_concurrency(Fleet, 3)
    yield "Fleet.why", lambda s: why(s, Errand)
