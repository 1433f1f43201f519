"""What a session's transaction has of its queues: its connection, claims and notifications, and the rows that it sees.

A rollback undoes what it has claimed and announced.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias, cast

from sqlalchemy import Connection, Engine, Table, event, false, select
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.orm import InstanceState, ORMExecuteState, Session, SessionTransaction, scoped_session
from sqlalchemy.orm.attributes import instance_state, set_committed_value
from sqlalchemy.sql.base import ExecutableOption
from sqlalchemy.util import immutabledict

from ._support import checks
from ._support.errors import ArgumentError, Claim, IllegalTransitionError, UnsettledClaimError
from ._support.private import entity_criteria, is_flushing, options_of
from ._support.texts import host_name, key_text
from .dialects import adapter_for
from .dialects.base import Adapter
from .dialects.connections import READ_COMMITTED, wrapping
from .dialects.statements import Unreadable
from .model.declaration import LONGEST_NAME, QueueMixin
from .queue.spec import Criterion, Identity, QueueSpec, Where, spec_of

running: ContextVar[Any] = ContextVar("sqlqueue.job")
"""The job of the handler that is called, if a worker calls it."""

# -- records the claims of a session's transaction in their instances, and undoes that record on rollback -------------

_HELD = "sqlqueue.claim"
_LEDGER = "sqlqueue.ledger"
FIRST = "sqlqueue.first"
"""The key in ``Session.info`` of a statement with which each transaction begins at a server of another level."""


class HeldClaim(NamedTuple):
    """The record that an instance keeps of its claim."""

    claim: Claim
    locked_by: str | None = None
    """The claimer's name if the claim has written nothing yet (``lease=None``), else ``None``."""
    settled: str | None = None
    """How the claim was settled; ``None`` if it is unsettled."""


def held_claim_in(state: InstanceState[Any]) -> HeldClaim | None:
    """Return the held claim of the instance that ``state`` belongs to; ``None`` without a claim."""
    held: HeldClaim | None = state.info.get(_HELD)
    return held


def carry(source: object, target: object) -> None:
    """Copy the held claim of ``source`` to ``target``, another instance of the same row."""
    instance_state(target).info[_HELD] = instance_state(source).info.get(_HELD)


@dataclass(slots=True, eq=False)
class _Change:
    """A change of instances' held claims within ``transaction``, with the values before."""

    transaction: SessionTransaction | None
    only_locks: bool
    """Whether some of the claims have written nothing yet."""
    before: list[tuple[InstanceState[Any], HeldClaim | None]]

    def held_claims(self) -> Iterator[tuple[InstanceState[Any], HeldClaim]]:
        for state, _ in self.before:
            held = held_claim_in(state)
            if held is not None:
                yield state, held


@dataclass(slots=True)
class Ledger:
    """A record of the changes that a session's current transaction has made to claims.

    A rollback undoes a claim, and another claim then gets the same attempt number. Therefore, the instance must drop
    its claim, and a claim whose settlement is rolled back must become unsettled again.
    """

    begun: set[Engine] = field(default_factory=set)
    """The engines on which the transaction has begun."""
    used: set[SessionTransaction] = field(default_factory=set)
    """The transaction and its savepoints, as far as they have used a database."""
    opened: dict[tuple[Engine | Connection, QueueSpec, Any], Adapter] = field(default_factory=dict)
    """The adapters of the queues that the transaction uses, by access; what this needs has been checked."""
    guarded: set[Connection] = field(default_factory=set)
    """The connections whose commit checks for unsettled claims that only lock."""
    changes: list[_Change] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    """The rows that claims of the transaction have set aside, because they cannot be read."""
    expired: int = 0
    """How many tasks claims of the transaction have cancelled, because they had expired."""
    used_up: Sequence[str] = ()
    """The keys whose rates allow no start now, if the last claim of the transaction has found too few tasks."""
    has_rates: bool = False
    """Whether claims of the transaction have met keys with rates."""
    is_cut: bool = False
    """Whether a claim of the transaction has ended before it had visited all keys, so that the next one may find
    more."""

    def remember(self, session: Session, held_claims: Sequence[tuple[InstanceState[Any], HeldClaim]]) -> None:
        """Store the held claims in their instances, and keep the previous ones for a rollback."""
        before: list[tuple[InstanceState[Any], HeldClaim | None]] = []
        only_locks = False
        for state, held in held_claims:
            info = state.info
            before.append((state, info.get(_HELD)))
            info[_HELD] = held
            only_locks = only_locks or held.locked_by is not None
        if before:
            self.changes.append(_Change(innermost(session), only_locks, before))

    def wrote(self, session: Session, states: Iterable[InstanceState[Any]]) -> None:
        """Record that the rows of ``states`` were written, their claims unchanged, for a rollback to expire them."""
        before = [(state, held_claim_in(state)) for state in states]
        if before:
            self.changes.append(_Change(innermost(session), False, before))

    def states(self) -> dict[Claim, InstanceState[Any]]:
        """Return the instances of this transaction's claims, by claim."""
        return {held.claim: state for change in self.changes for state, held in change.held_claims()}

    def locked(self, table: Table) -> list[Identity]:
        """Return the keys of the rows of ``table`` that are held only by their locks."""
        return [claim.identity for claim in self.unsettled if spec_of(claim.entity).table is table]

    @property
    def unsettled(self) -> list[Claim]:
        """The claims that only lock, which a commit would drop."""
        held_claims = (held for change in self.changes if change.only_locks for _, held in change.held_claims())
        return list({held.claim: None for held in held_claims if held.locked_by and not held.settled})

    def committed(self, ended: SessionTransaction | None) -> None:
        """Assign the changes of ``ended`` to its parent, or forget them if it was the outermost transaction."""
        if ended is None or not ended.nested:
            self.changes.clear()
        for change in self.changes:
            if change.transaction is ended:
                change.transaction = ended.parent  # type: ignore[union-attr]

    def ended(self, session: Session, transaction: SessionTransaction) -> None:
        """Undo what ``transaction`` has not committed, and expire the affected instances of the session.

        The session itself expires only what it has flushed, or everything if the whole transaction is rolled back.
        """
        kept: list[_Change] = []
        undone: list[_Change] = []
        for change in self.changes:
            (undone if transaction in lineage(change.transaction) else kept).append(change)
        for change in reversed(undone):
            for state, before in change.before:
                state.info[_HELD] = before
                if state.session is session and state.persistent:
                    session.expire(state.obj())
        self.changes = kept
        self.used.discard(transaction)
        self.opened.clear()
        if transaction.parent is None:
            self.begun.clear()
            self.guarded.clear()
            self.unreadable.clear()
            self.expired, self.is_cut = 0, False


def ledger_of(session: Session) -> Ledger:
    """Return the ledger of ``session``, creating it if needed."""
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is None:
        ledger = session.info[_LEDGER] = Ledger()
    return ledger


def innermost(session: Session) -> SessionTransaction | None:
    """Return the innermost savepoint of ``session``, or its transaction; ``None`` if none has begun."""
    return session.get_nested_transaction() or session.get_transaction()


def lineage(transaction: SessionTransaction | None) -> Iterator[SessionTransaction]:
    """Yield ``transaction`` and its parents, the innermost first."""
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def may_have_written(session: Session) -> bool:
    """Return whether the current transaction of ``session`` has used a database, or its commit might."""
    return bool(ledger_of(session).begun) or _may_write(session)


def has_used(session: Session, savepoint: SessionTransaction) -> bool:
    """Return whether a database was used within ``savepoint``, or whether the session has pending changes."""
    return savepoint in ledger_of(session).used or _may_write(session)


def _may_write(session: Session) -> bool:
    if session.new or session.dirty or session.deleted:
        return True
    return any(listener is not _before_commit for listener in session.dispatch.before_commit)


def commits_alone(session: Session) -> bool:
    """Return whether the application adds nothing to the commits of ``session``."""
    return not session.twophase and not _may_write(session)


def guard(session: Session, connection: Connection) -> None:
    """Make every commit of ``connection`` raise :class:`.UnsettledClaimError` if it would drop a claim that only locks.

    ``before_commit`` usually raises it first.  It cannot if the outermost transaction is committed within an open
    savepoint, since that looks like a release of the savepoint.
    """
    ledger = ledger_of(session)
    if connection not in ledger.guarded:
        ledger.guarded.add(connection)
        event.listen(connection, "commit", lambda committing: _refuse_commit(session, committing))


def _refuse_commit(session: Session, connection: Connection) -> None:
    try:
        _refuse_unsettled(session)
    except UnsettledClaimError:
        # SQLAlchemy considers a transaction ended when its commit fails, and sends no rollback: the connection would
        # return to the pool with its locks and writes.
        connection.connection.rollback()
        raise


def _refuse_unsettled(session: Session) -> None:
    unsettled = ledger_of(session).unsettled
    if unsettled:
        raise UnsettledClaimError(unsettled)


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if transaction.session is not session:
        return  # a separate connection is being prepared like those of this session
    ledger = ledger_of(session)
    ledger.begun.add(connection.engine)
    ledger.used.add(transaction)
    first = None if transaction.nested or session.twophase else session.info.get(FIRST)
    if first is not None and connection.dialect.default_isolation_level != READ_COMMITTED:
        connection.exec_driver_sql(first)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.changes and not session.in_nested_transaction():
        _refuse_unsettled(session)


@event.listens_for(Session, "after_commit")
def _commit_claims(session: Session) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.changes:
        ledger.committed(innermost(session))


@event.listens_for(Session, "after_transaction_end")
def _end_claims(session: Session, transaction: SessionTransaction) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and (transaction.nested or transaction.parent is None):  # not the transaction of a flush
        ledger.ended(session, transaction)


# -- finds the claims that tasks carry, and marks them as settled -----------------------------------------------------


def held_claim_of(task: object, state: InstanceState[Any] | None = None) -> HeldClaim:
    """Return the held claim of ``task``, an instance, or a claim with the ``state`` of its instance.

    Raises :class:`.IllegalTransitionError` if it has no unsettled claim.
    """
    if state is None:
        spec_of(type(task))
        state = instance_state(task)
    held: HeldClaim | None = state.info.get(_HELD)
    if held is not None and held.settled is None:
        return held
    reason = "was not claimed, or its claim was rolled back" if held is None else f"is already settled: {held.settled}"
    model, key = state.class_.__name__, state.identity
    name = f"a new {model}" if key is None else f"{model} {key_text(key)}"
    raise IllegalTransitionError(f"{name} {reason}. Only claimed tasks can be settled, and only once", task=task)


def mark_settled(session: Session, task: object, how: str) -> None:
    """Mark the claim of ``task`` as settled, and expire the instance.  Raises :class:`.IllegalTransitionError` if it
    has none."""
    held = held_claim_of(task)
    ledger_of(session).remember(session, [(instance_state(task), held._replace(settled=how))])
    session.expire(task)


def is_unsettled(task: object) -> bool:
    """Return whether ``task`` carries a claim that is not settled."""
    held = held_claim_in(instance_state(task))
    return held is not None and held.settled is None


def is_settled(task: object) -> bool:
    """Return whether ``task`` carries a claim that is settled."""
    held = held_claim_in(instance_state(task))
    return held is not None and held.settled is not None


def claim_of(task: object) -> Claim:
    """Return the claim that ``task`` carries, as it was made: refreshing or expiring the instance does not change it.

    Raises :class:`.IllegalTransitionError` if the instance was never claimed, or its claim is settled.
    """
    return held_claim_of(task).claim


def claim_in(task: object) -> Claim:
    """Return the claim that the row of ``task`` shows, in the values of the instance."""
    spec = spec_of(type(task))
    names = (spec.attributes[role] for role in ("attempt", "claim_token", "claimed_by", "claimed_at"))
    return Claim(type(task), spec.identity_of(task), *(getattr(task, name) for name in names))


def row_of(task: object) -> tuple[QueueSpec, Identity]:
    """Return the queue and the primary key of a claim, or of an instance that has been stored."""
    if isinstance(task, Claim):
        return spec_of(task.entity), task.identity
    spec = spec_of(type(task))
    return spec, spec.identity_of(task)


def claim_made(task: Any) -> Claim:
    """Return the claim just made of ``task``, even if the task was consumed and has nothing to settle."""
    held = held_claim_in(instance_state(task))
    if held is not None:
        return held.claim
    spec = spec_of(type(task))
    return Claim(type(task), spec.identity_of(task), getattr(task, spec.attributes["attempt"]))


def held_claims_of(session: Session, tasks: object) -> list[tuple[HeldClaim, InstanceState[Any] | None]]:
    """Return the held claims of a task, a claim or an iterable of them, each with its instance if there is one.

    Raises :class:`.ArgumentError` for other objects, claims of several tables and repeated claims, and
    :class:`.IllegalTransitionError` for tasks without an unsettled claim.
    """
    is_one = isinstance(tasks, Claim) or hasattr(type(tasks), "__queue_spec__")
    if not is_one and not isinstance(tasks, Iterable):
        raise ArgumentError(f"{tasks!r} is neither a claimed task nor a Claim, nor an iterable of them")
    items: list[Any] = [tasks] if is_one else list(cast("Iterable[Any]", tasks))
    held_claims: list[tuple[HeldClaim, InstanceState[Any] | None]]
    if not session.identity_map and not ledger_of(session).changes and set(map(type, items)) == {Claim}:
        held_claims = [(HeldClaim(item), None) for item in items]  # there are no instances to find
    else:
        states = ledger_of(session).states() if any(isinstance(item, Claim) for item in items) else {}
        held_claims = [
            _find_claim(session, item, states)
            if isinstance(item, Claim)
            else (held_claim_of(item), instance_state(item))
            for item in items
        ]
    claims = [held.claim for held, _ in held_claims]
    entities = {claim.entity for claim in claims}
    if len({spec_of(entity).table for entity in entities}) > 1:
        names = " and ".join(sorted(entity.__name__ for entity in entities))
        raise ArgumentError(f"these are claims of {names}: settle the claims of each model separately")
    if len({(claim.identity, claim.attempt, claim.token) for claim in claims}) < len(held_claims):
        raise ArgumentError("the same claim is given twice")
    return held_claims


def _find_claim(
    session: Session, claim: Claim, states: Mapping[Claim, InstanceState[Any]]
) -> tuple[HeldClaim, InstanceState[Any] | None]:
    state = states.get(claim) or _present(session, claim)
    return (HeldClaim(claim), None) if state is None else (held_claim_of(claim, state), state)


def _present(session: Session, claim: Claim) -> InstanceState[Any] | None:
    """Return the session's instance of a claim that was committed before, if there is one."""
    task = session.identity_map.get(spec_of(claim.entity).mapper.identity_key_from_primary_key(claim.identity))
    state = None if task is None else instance_state(task)
    held = None if state is None else held_claim_in(state)
    return state if held is not None and held.claim == claim else None


# -- the connection of a session's operation, and the adapter of its engine ------------------------------------------

AnySession: TypeAlias = Session | scoped_session[Any]


def session_of(session: AnySession) -> Session:
    """Return the session behind a registry such as Flask-SQLAlchemy's ``db.session``, or a plain session itself.

    Raises :class:`.ArgumentError` for other objects, including asyncio sessions.
    """
    if isinstance(session, scoped_session):
        return cast(Session, session())
    if isinstance(session, Session):
        return session
    advice = (
        ", it is an asyncio one: await session.run_sync(sqlqueue.claim, Task)" if hasattr(session, "run_sync") else ""
    )
    raise ArgumentError(f"{session!r} is not a sqlalchemy.orm.Session{advice}")


class Access(Enum):
    """How an operation accesses rows that other transactions may have locked."""

    READ = auto()
    """The operation waits for none of them."""
    CHANGE = auto()
    """The operation may wait for some of them."""
    SETTLE = auto()
    """Like :attr:`READ`; like :attr:`CHANGE` for queues with limits, because freeing slots needs the latest rows."""
    SKIP = auto()
    """The operation locks rows, and skips those that others have locked."""
    CLAIM = auto()
    """Like :attr:`SKIP`, and the operation loads the instances of the rows that it locks."""
    HOLD = auto()
    """Like :attr:`CLAIM`, and only these locks keep others out until the transaction ends."""


_LOADING = (Access.CLAIM, Access.HOLD)
_SKIPPING = (Access.SKIP, *_LOADING)


def open_(session: Session, spec: QueueSpec, access: Access = Access.READ) -> Adapter:
    """Begin a transaction on the engine of ``spec``, flush the session, and return the engine's adapter.

    Checks once per transaction what stays the same in it: the server, the isolation level that ``access`` needs, which
    the adapter sets if it still can, and whether locks hold here if ``access`` relies on them.  Raises
    :class:`.UnsupportedDialectError`, :class:`.UnsupportedIsolationError`, and :class:`.ArgumentError` if the session
    uses different engines for the reads and writes of a claim.
    """
    bind = session.get_bind(**spec.bind_arguments)
    ledger = ledger_of(session)
    adapter = ledger.opened.get((bind, spec, access))
    if adapter is None:
        # do not change the settings of an application's own Connection
        fresh = bind.engine not in ledger.begun and not isinstance(bind, Connection)
        adapter = ledger.opened[bind, spec, access] = _begin(session, spec, access, bind, fresh=fresh)
    elif access in _SKIPPING:  # the driver's transaction can end before the session's: on SQLite, with a savepoint
        adapter.connections.begin_to_claim(session.connection(spec.bind_arguments), spec, fresh=False)
    if not is_flushing(session):
        session.flush()
    return adapter


def _begin(session: Session, spec: QueueSpec, access: Access, bind: Engine | Connection, *, fresh: bool) -> Adapter:
    """Begin the session's transaction on ``bind``, at an isolation level that suits ``access``; return the adapter.

    ``fresh``: nothing has been sent yet in this transaction, so its isolation level can still be chosen.
    """
    if access in _LOADING:
        check_engine(session, spec, spec.selecting)
    connections = adapter_for(bind.dialect).connections
    reads = access is Access.READ or (access is Access.SETTLE and not spec.is_limited)
    if not reads and fresh and connections.level(bind.engine) != READ_COMMITTED:
        with wrapping(bind.dialect):
            _begin_read_committed(session, spec)
    connection = session.connection(spec.bind_arguments)
    if access in _SKIPPING:
        connections.check_level(connection)
        connections.begin_to_claim(connection, spec, fresh=fresh)
    adapter = adapter_for(connection.dialect)  # knows more after the first connection of an engine
    adapter.inspection.verify(connection)
    if access is Access.HOLD:
        adapter.inspection.check_locks(connection)
    return adapter


def _begin_read_committed(session: Session, spec: QueueSpec) -> None:
    options = immutabledict({"isolation_level": READ_COMMITTED})
    outermost = session.get_transaction()
    if outermost is None or not session.in_nested_transaction():
        session.connection(spec.bind_arguments, execution_options=options)
        return
    # SQLAlchemy 2.0 cannot do that from within a savepoint
    outermost.connection(execution_options=options, bindkey=spec.mapper, clause=spec.bind_arguments["clause"])


def check_engine(session: Session, spec: QueueSpec, statement: Any) -> None:
    """Raise :class:`.ArgumentError` if the session sends ``statement`` to an engine other than the one for writes.

    The ORM passes its own statements to ``get_bind``, regardless of the clause in the bind arguments.
    """
    if session.get_bind(mapper=spec.mapper, clause=statement) is not session.get_bind(**spec.bind_arguments):
        raise ArgumentError(
            f"this session uses different engines for the {statement.__visit_name__.upper()} and the UPDATE of"
            f" {spec.entity.__name__}, see its get_bind(): use a session with one engine for both"
        )


def claimer_name(given: str | None = None, argument: str = "claimed_by") -> str:
    """Return the claimer's name as ``given``, by default ``host:pid`` in ASCII, which any database can store."""
    return f"{host_name()}:{os.getpid()}" if given is None else checks.name(argument, given, LONGEST_NAME)


def reread(session: Session, adapter: Adapter, spec: QueueSpec) -> None:
    """Show the new values in the instances of this session, any of which may have changed: asyncio cannot load them
    lazily."""
    status = spec.attributes["status"]
    tasks = {spec.identity_of(task): task for task in session.identity_map.values() if isinstance(task, spec.entity)}
    loaded = [key for key, task in tasks.items() if status in instance_state(task).dict]
    names = [spec.attributes[role] for role in spec.columns]
    for some in adapter.rows.batches(spec, loaded):
        read = select(*spec.primary_key, *spec.columns.values()).where(adapter.rows.key_in(spec, some))
        rows: Any = adapter.rows.execute(session, spec, adapter.rows.by_key(spec, read))
        width = len(spec.primary_key)
        for row in rows:
            task = tasks.pop(tuple(row[:width]))
            for name, value in zip(names, row[width:], strict=True):
                set_committed_value(task, name, value)
    for task in tasks.values():
        session.expire(task, names)


# -- notifications of new work: to workers of this process on commit, to other processes through the database --------
#
# They are only hints: workers without notifications poll.

_NEWS = "sqlqueue.news"
Callback = Callable[[], None]
_callbacks: defaultdict[str, set[Callback]] = defaultdict(set)


@dataclass(slots=True, eq=False)
class _News:
    """The notifications of a session's transaction."""

    names: set[str] = field(default_factory=set)
    sent: defaultdict[SessionTransaction | None, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Names sent to the database, by savepoint: a rollback to a savepoint drops what was sent within it."""


def announce(session: Session, spec: QueueSpec, name: str | None = None) -> None:
    """Notify workers of this queue when this transaction commits: once, regardless of the number of rows.

    ``name``: the channel, if the notification is not about work and not for the queue's fetchers.
    """
    news: _News = session.info.setdefault(_NEWS, _News())
    name = name or channel_of(spec)
    news.names.add(name)
    transaction = innermost(session)
    is_sent = any(name in news.sent[each] for each in lineage(transaction))
    # PostgreSQL prepares no transaction that has notified
    if spec.options.notify and not is_sent and not session.twophase:
        connection = session.connection(spec.bind_arguments)
        # the commit of the session tells this process, unless it is not the transaction's
        elsewhere = not isinstance(session.get_bind(**spec.bind_arguments), Connection)
        adapter_for(connection.dialect).connections.notify(connection, name, elsewhere=elsewhere)
        news.sent[innermost(session)].add(name)


def channel_of(spec: QueueSpec) -> str:
    """Return the name of a queue's notifications, which is its table's."""
    return spec.name


def subscribe(names: Iterable[str], callback: Callback) -> Callable[[], None]:
    """Call ``callback``, on any thread, on notifications with these names.  Returns a function that unsubscribes."""
    names = tuple(names)
    for name in names:
        _callbacks[name].add(callback)

    def unsubscribe() -> None:
        for name in names:
            _callbacks[name].discard(callback)

    return unsubscribe


def spread(names: Iterable[str]) -> None:
    """Call the listeners of ``names`` in this process."""
    for name in names:
        for callback in tuple(_callbacks.get(name, ())):
            callback()


def _announce_new(session: Session, *_: object) -> None:
    for model in {type(task) for task in session.new if isinstance(task, QueueMixin)}:
        announce(session, spec_of(model))


event.listen(
    Session, "before_flush", _announce_new
)  # at the start of a transaction, a notification costs no round trip
event.listen(Session, "after_flush", _announce_new)  # other listeners may add tasks before the flush


@event.listens_for(Session, "after_commit")
def _send_news(session: Session) -> None:
    news: _News | None = session.info.get(_NEWS)
    if news is not None and news.names and not session.in_nested_transaction():
        names, news.names = news.names, set()
        spread(names)


@event.listens_for(Session, "after_transaction_end")
def _end_news(session: Session, transaction: SessionTransaction) -> None:
    news: Any = session.info.get(_NEWS)
    if news is not None:
        news.sent.pop(transaction, None)
        if transaction.parent is None:
            news.names.clear()
            news.sent.clear()


# -- the criteria that a session adds to each SELECT of a model (``with_loader_criteria``) -----------------------------


def scope_of(session: Session, spec: QueueSpec, options: Sequence[ExecutableOption] = ()) -> tuple[Criterion, ...]:
    """Return the criteria of ``with_loader_criteria`` for this queue, in ``options`` or added by ``do_orm_execute``.

    The ORM adds such criteria only to its own SELECT of an entity, but the statements of this library use the table.
    Therefore, the session's listeners receive such a SELECT, which is not executed.
    """
    if session.dispatch.do_orm_execute:
        options = _options_shown(session, spec, options)
    return tuple(entity_criteria(options, spec.mapper)) if options else ()


def within(session: Session, spec: QueueSpec, where: Sequence[Where] = ()) -> tuple[Where, ...]:
    """Return ``where`` together with the session's own criteria, see :func:`scope_of`."""
    return (*where, *scope_of(session, spec))


def is_restricted(session: Session, adapter: Adapter, spec: QueueSpec) -> bool:
    """Return whether the session sees only some of the queue's tasks: by its criteria, or by row-level security."""
    return bool(scope_of(session, spec)) or adapter.inspection.hides_rows(session.connection(spec.bind_arguments), spec)


def refuse_if_restricted(session: Session, adapter: Adapter, spec: QueueSpec, what: str) -> None:
    """Raise :class:`.ArgumentError` if the session sees only some of the tasks that ``what`` is for."""
    if is_restricted(session, adapter, spec):
        raise ArgumentError(
            f"{what} is for all tasks of {spec.entity.__name__}, of which this session sees only some, because of its"
            " criteria or row-level security: use a session that sees all of them"
        )


def _options_shown(
    session: Session, spec: QueueSpec, options: Sequence[ExecutableOption]
) -> Sequence[ExecutableOption]:
    """Return ``options`` together with those that the session's listeners add."""
    seen: list[ExecutableOption] = []

    def end(state: ORMExecuteState) -> IteratorResult[Any]:
        seen.extend(options_of(state.statement))
        return IteratorResult(SimpleResultMetaData([]), iter(()))

    event.listen(session, "do_orm_execute", end)  # runs last: a session's listeners run after those of its class
    try:
        # a listener that executes the statement itself, for sharding or caching, gets no rows
        session.execute(
            select(spec.entity).where(false()).options(*options),
            execution_options={"autoflush": False},  # the flush follows when the transaction's isolation level is set
            bind_arguments=spec.bind_arguments,
        )
    finally:
        event.remove(session, "do_orm_execute", end)
    return seen
