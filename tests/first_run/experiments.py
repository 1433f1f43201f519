"""The experiments.  Each asks one question, prints what the server shows, and gives its answer in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from sqlqueue import QueueSession
from tests.first_run.lab import PAST, Lab, Lock, of_rows
from tests.support.models import Mail, Seat, Slot, Task, Visit

Experiment = Callable[[Lab], None]
NAMED = (1, 3, 50, 300)
"""The numbers of keys in one statement."""
PATIENCE = 60
"""The seconds that sessions have to claim a task."""


def named(lab: Lab) -> None:
    """Does a claim by primary key lock only the rows that it names, whatever index it finds them by?"""
    for ready in (0, *lab.ready):
        keys = lab.fill(Task, ready) or list(range(1, max(NAMED) + 1))
        for count in NAMED:
            if ready and count + 10 > ready:
                continue
            with lab.session() as session, lab.session() as other:
                mine = session.claim_many(Task, Task.id.in_(keys[:count]), limit=count, lease=None)
                lab.say(f"  {count} keys, {ready:,} ready tasks: {len(mine)} claimed")
                verdict = only_named(lab.locks(session), len(mine), _indexes(Task))
                if ready:
                    verdict += f"; another session {_claims(other, Task, 5)}"
                lab.answer(f"{count} keys of {ready:,} tasks: {verdict}")
    lab.plan("%FROM task WITH (ROWLOCK, UPDLOCK%")


def rejected(lab: Lab) -> None:
    """Are rows that a statement looks at, but does not return, unlocked at once?"""
    for lease in ("lease", "lock"):
        lab.empty(Task)
        rows: list[dict[str, Any]] = [
            {"name": "a", "attempt": 3, "status": "retryable", "available_at": PAST},
            {"name": "b", "attempt": 3, "status": "retryable", "available_at": PAST},
            {"name": "c", "attempt": 1, "status": "retryable", "available_at": PAST},
        ]
        with lab.engine.begin() as connection:
            for row in rows:  # the first two have used up their attempts
                connection.execute(insert(Task), row)
        options: dict[str, Any] = {} if lease == "lease" else {"lease": None}
        own = 0 if lease == "lease" else 1  # a claimed row is locked as written, or as read
        with lab.session() as session:
            task = session.claim(Task, **options)
            lab.say(f"  three due tasks, of which one may be claimed ({lease}): {task and task.name} is claimed")
            lab.answer(f"rows that do not match ({lease}): {kept(lab.locks(session), own)}")
        keys = lab.fill(Task, 100)
        with lab.session() as first, lab.session() as second:
            first.claim(Task, Task.id == keys[0], lease=None)
            task = second.claim(Task, **options)
            lab.say(f"  the first task is locked by another session, by its key; {task and task.id} is claimed")
            lab.answer(f"rows that are skipped ({lease}): {kept(lab.locks(second), own)}")
    keys = lab.fill(Task, 100)
    with lab.session() as session:
        savepoint = session.begin_nested()
        session.claim_many(Task, Task.id.in_(keys[:3]), limit=3, lease=None)
        savepoint.rollback()
        lab.say("  three tasks are locked by key, and the transaction is rolled back to the savepoint before:")
        still = sum(of_rows(lab.locks(session)).values())
        lab.answer(f"a rollback to a savepoint: {f'{still} LOCKS STAY' if still else 'no lock of a row is shown'}")


def composite(lab: Lab) -> None:
    """Does a statement with several composite keys read, and lock, only the rows with these keys?"""
    lab.empty(Seat, Visit, Slot)
    with lab.engine.begin() as connection:
        seats = [{"line": line, "number": n, "available_at": PAST} for line in "ab" for n in range(1, 51)]
        connection.execute(insert(Seat), seats)
        connection.execute(insert(Visit), [{"limit_key": "place", "available_at": PAST} for _ in range(30)])
    with lab.session() as session:
        session.set_limit(Visit, "place", 20)
        mine = session.claim_many(Seat, Seat.line == "a", Seat.number.in_((3, 7, 9)), limit=3)
        session.commit()
        with lab.session() as other:
            session.complete(mine)
            lab.say("  three seats of one line are completed:")
            verdict = kept(lab.locks(session), 0)
            lab.answer(
                f"three keys of one line: {verdict}; another session {_claims(other, Seat, 5, Seat.line == 'a')}"
            )
    lab.plan("%UPDATE seat%")
    with lab.session() as session, lab.session() as other:
        mine = session.claim_many(Visit, limit=2)
        lab.say(f"  {len(mine)} tasks with a limit of 20 are claimed:")
        places = {place: number for place, number in of_rows(lab.locks(session)).items() if "slot" in place.lower()}
        verdict = f"entries of slots locked for 2 tasks: {places or 'unknown'}"
        lab.answer(f"slots: {verdict}; another session {_claims(other, Visit, 5)}")
    lab.plan("%UPDATE slot%")


def optimized(lab: Lab) -> None:
    """Does optimized locking change any of this?  Does a claim skip a row that a transaction has changed?"""
    if lab.views.optimized is None:
        lab.answer("this engine has no optimized locking")
        return
    with lab.engine.connect() as connection:
        was = connection.scalar(text(lab.views.optimized))
        prepared = was is not None and lab.views.prepared and connection.scalar(text(lab.views.prepared))
    if was is None:
        lab.answer("this server has no optimized locking: use SQL Server 2025 or Azure SQL Database")
        return
    if not was:
        lab.alone(lab.views.optimize)
    try:
        lab.fill(Task, 100)
        with lab.session() as session, lab.session() as other:
            (mine, *_) = session.claim_many(Task, limit=3)
            lab.say("  a transaction has claimed 3 tasks:")
            lab.locks(session)
            lab.answer(f"after a claim that is not committed, another session {_claims(other, Task, 5)}")
            session.commit()
            session.complete(mine)
            lab.say("  one of them is completed:")
            lab.locks(session)
            lab.answer(f"after a completion that is not committed, another session {_claims(other, Task, 5)}")
        for experiment in (named, rejected, composite):
            lab.say(f"with optimized locking: {experiment.__doc__}")
            experiment(lab)
    finally:
        if not was:
            lab.alone(lab.views.restore[:-1] if prepared else lab.views.restore)


def crowded(lab: Lab) -> None:
    """Do many sessions get rows of one block at the same time, although a block has room for few transactions?"""
    lab.fill(Task, lab.sessions)
    got: list[int] = []
    changed, over = Condition(), Event()

    def claim() -> None:
        with lab.session() as session:
            task = session.claim(Task)
            with changed:
                got.append(0 if task is None else task.id)
                changed.notify_all()
            over.wait()

    with ThreadPoolExecutor(lab.sessions) as pool:
        claims = [pool.submit(claim) for _ in range(lab.sessions)]
        try:
            with changed:
                changed.wait_for(lambda: len(got) == lab.sessions or any(each.done() for each in claims), PATIENCE)
            done, waits = list(got), lab.waits()
        finally:
            over.set()
        errors = {str(error).partition("\n")[0] for each in claims if (error := each.exception())}
    tasks = [each for each in done if each]
    verdict = f"{len(set(tasks))} of {lab.sessions} sessions got a task each"
    if len(set(tasks)) < len(tasks):
        verdict += ", AND SOME GOT THE SAME ONE"
    if len(done) < lab.sessions:
        verdict += f"; {lab.sessions - len(done)} waited, for {', '.join(sorted({str(row[1]) for row in waits}))}"
    if empty := len(done) - len(tasks):
        verdict += f"; {empty} got none"
    lab.answer("; ".join((verdict, *sorted(errors))))


def ordered(lab: Lab) -> None:
    """Does a claim from several topics read the head of an index, however many tasks are ready?"""
    for ready in lab.ready:
        lab.fill(Mail, ready, topic="a")
        with lab.session() as session:
            tasks = session.claim_many(Mail, Mail.topic.in_(("a", "b")), limit=1)
            session.rollback()
        lab.say(f"  {len(tasks)} claimed of {ready:,} ready tasks:")
        steps = lab.plan("%FROM mail%ORDER BY mail.priority%")
        whole = [step.strip() for step in steps if any(word in step for word in ("ACCESS FULL", "FULL SCAN", "Scan"))]
        verdict = f"reads all of an index or table ({whole[0]})" if whole else "reads no index or table as a whole"
        lab.answer(f"a claim from two topics, of {ready:,}: {verdict if steps else 'the server shows no plan'}")


EXPERIMENTS: Mapping[str, Experiment] = {
    each.__name__: each for each in (named, rejected, composite, optimized, crowded, ordered)
}


# -- verdicts ----------------------------------------------------------------------------------------------------------


def only_named(locks: Iterable[Lock], count: int, indexes: Collection[str]) -> str:
    """Return whether these are the locks of `count` rows that were found by primary key."""
    locks = list(locks)
    if whole := [lock for lock in locks if lock.kind in ("OBJECT", "PAGE") and lock.mode in ("S", "U", "X")]:
        return f"pages or the whole table are locked ({whole[0].kind} {whole[0].mode})"
    found = of_rows(locks)
    if not found:
        return "no lock of a row is shown"
    if others := [place for place in found if place in indexes]:
        entries = ", ".join(f"{found[place]} entries of {place}" for place in others)
        return f"FOUND BY ANOTHER INDEX than the primary key: {entries} are locked"
    most = max(found.values())
    return "only these rows are locked" if most <= count else f"{most} ROWS ARE LOCKED, {most - count} too many"


def kept(locks: Iterable[Lock], count: int) -> str:
    """Return whether more than `count` rows or entries of an index are locked, but not written."""
    locks = list(locks)
    if not of_rows(locks):
        return "no lock of a row is shown"
    found = of_rows(lock for lock in locks if lock.mode == "U")
    more = {place: number - count for place, number in found.items() if number > count}
    if more:
        return "MORE STAYS LOCKED: " + ", ".join(f"{number} in {place}" for place, number in more.items())
    return "nothing else stays locked"


def _claims(session: QueueSession, model: type[Any], count: int, *where: Any) -> str:
    try:
        return f"gets {len(session.claim_many(model, *where, limit=count))} of {count} others"
    except DBAPIError as error:
        session.rollback()
        return f"FAILS: {str(error.orig).partition(chr(10))[0]}"


def _indexes(model: type[Any]) -> set[str]:
    return {str(index.name) for index in model.__table__.indexes}
