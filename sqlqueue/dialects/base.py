"""What is standard about an engine.  An adapter says only what differs."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Select,
    Table,
    select,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import immutabledict

from .._support.exc import (
    ArgumentError,
    ConfigurationError,
    SQLQueueWarning,
    UnsupportedDialectError,
    UnsupportedIsolationError,
)
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Assignment, Pick, UniqueBy, remove, write
from .health import Health
from .inspection import Inspection
from .keys import ByKey, R
from .liveness import Liveness, wrapping
from .moments import Moments
from .requests import Requests
from .rows import Parameters, Rows

Replacement: TypeAlias = Callable[[Callable[[str], ColumnElement[Any]]], Sequence[Assignment]]
"""From the values that an insert proposed, by column name, to what an existing row is given."""
READ_COMMITTED = "READ COMMITTED"
AUTOCOMMIT = "AUTOCOMMIT"


class Adapter(Rows, Moments, Inspection, Health, Liveness, Requests):
    """One engine.  Standard SQL as SQLAlchemy compiles it, and a claim in two steps: lock the rows, then write."""

    name: ClassVar[str]
    """The name of SQLAlchemy's dialect."""
    product: ClassVar[str]
    """The engine's own name, for people."""
    minimum: ClassVar[tuple[int, ...]]
    """The oldest version that can carry a queue."""
    needed: ClassVar[str]
    """What the minimum is about."""

    timestamp: ClassVar[TypeEngine[Any] | None] = None
    """The type of moments, where ``DateTime(timezone=True)`` loses microseconds or the zone."""
    error_text: ClassVar[TypeEngine[Any] | None] = None
    """The type of errors, where ``String`` does not hold all of Unicode."""
    exact: ClassVar[str | None] = None
    """The collation of keys, where that of the database takes different ones for the same."""
    json: ClassVar[TypeEngine[Any] | None] = None
    """The type of JSON, where ``JSON`` is not to be had in all versions of SQLAlchemy and of the engine."""
    lasting_keys: ClassVar[Mapping[str, Any]] = {}
    """The options of a table that gives out no key twice, where one may come back once its row is deleted."""
    numbers_keys: ClassVar[bool] = True
    """Whether the server makes integer keys also where a model does not say how, as by ``Identity()``."""
    key_before_row: ClassVar[bool] = False
    """Whether an upsert by a unique key locks that first and then the row, where a completion locks the row and then
    the key that it takes away: the two would deadlock."""
    sends_values_alone: ClassVar[bool] = False
    """Whether many rows are inserted by one request only if all that they are given are values."""
    one_writer: ClassVar[bool] = False
    """Whether all that claim wait for one another anyway."""
    orders_freely: ClassVar[bool] = True
    """Whether rows are locked after the sort, so that an order without an index is only slow."""
    changes_unseen: ClassVar[bool] = False
    """Whether a transaction that reads an old snapshot changes what was committed since, instead of failing."""
    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED, "READ UNCOMMITTED")
    """Isolation levels in which a claim can neither fail nor be in anybody's way."""
    refused_levels: ClassVar[Collection[str]] = ()
    """Isolation levels in which the engine would refuse a claim, or make it wrong."""

    def __init__(self) -> None:
        self._verified: weakref.WeakSet[Dialect] = weakref.WeakSet()
        self._warned: weakref.WeakSet[Dialect] = weakref.WeakSet()

    def key(self, length: int) -> TypeEngine[Any] | None:
        """The type of keys of up to ``length`` characters, where ``String`` takes different ones for the same."""
        return None

    # -- the engine ---------------------------------------------------------------------------------------------------

    def specialize(self, dialect: Dialect, adapters: Mapping[str, Adapter]) -> Adapter:
        """The adapter of the engine that really answers, where several speak one dialect (known once connected)."""
        return self

    def verify(self, connection: Connection) -> None:
        """:class:`.UnsupportedDialectError` unless this server can carry a queue.  Asks once for each engine."""
        if connection.dialect not in self._verified:
            self.judge(connection.dialect.server_version_info or (), self.banner(connection))
            self._verified.add(connection.dialect)

    def banner(self, connection: Connection) -> str:
        """What the server calls itself, where its version alone does not tell."""
        return ""

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        """:class:`.UnsupportedDialectError` if such a server cannot be used for queues."""
        numbers = tuple(part for part in version if isinstance(part, int))
        if numbers < self.minimum:
            needed = f"{self.product} {'.'.join(map(str, self.minimum))} or newer"
            self.refuse(".".join(map(str, version)), needed, self.needed)

    def refuse(self, version: str, needed: str, reason: str) -> None:
        raise UnsupportedDialectError(
            f"{self.product} {version} cannot be used for queues: it lacks {reason}. {needed} is needed.",
            dialect=self.name,
            version=version,
            needed=needed,
        )

    # -- the transaction ----------------------------------------------------------------------------------------------

    def connect(
        self, session: Session, spec: QueueSpec, *, fresh: bool, claims: bool, meets: bool = False
    ) -> Connection:
        """The session's connection for this queue, fit to claim if it ``claims``, to wait for rows if it ``meets`` any.

        ``fresh``: nothing has been sent yet in this transaction, so its isolation level can still be chosen.
        """
        bind = session.get_bind(**spec.bind_arguments)
        if (claims or meets) and fresh and self.level(bind.engine) != READ_COMMITTED:
            options = immutabledict({"isolation_level": READ_COMMITTED})
            outermost = session.get_transaction()
            with wrapping(bind.dialect):
                if outermost is None or not session.in_nested_transaction():
                    return session.connection(spec.bind_arguments, execution_options=options)
                # SQLAlchemy 2.0 cannot do that from within a savepoint
                clause = spec.bind_arguments["clause"]
                outermost.connection(execution_options=options, bindkey=spec.mapper, clause=clause)
        connection = session.connection(spec.bind_arguments)
        if claims:
            self.check_level(connection)
        return connection

    def level(self, source: Engine | Connection) -> str | None:
        """The isolation level of transactions here, as far as it is known without asking the server."""
        # the server's default is known from the first connection on
        return self.chosen_level(source) or getattr(source.dialect, "default_isolation_level", None)

    def chosen_level(self, source: Engine | Connection) -> str | None:
        """The isolation level that the application has asked for."""
        options = source.get_execution_options()
        return options.get("isolation_level") or getattr(source.dialect, "_on_connect_isolation_level", None)

    def present_level(self, connection: Connection) -> str | None:
        """What a claim here and now would run in."""
        return AUTOCOMMIT if _autocommits(connection) else self.level(connection)

    def may_change_unseen(self, connection: Connection) -> bool:
        """Whether this transaction may change rows in a version that it cannot read."""
        return self.changes_unseen and self.level(connection) not in self.harmless_levels

    def check_level(self, connection: Connection) -> None:
        level = self.present_level(connection)
        if level is None or level in self.harmless_levels:
            return
        advice = f"claim first in a transaction, or create_engine(..., isolation_level={READ_COMMITTED!r})"
        if level == AUTOCOMMIT or level in self.refused_levels:
            raise UnsupportedIsolationError(
                f"a claim on {self.product} cannot run at {level}, in which this transaction has begun: {advice}",
                dialect=self.name,
                level=level,
            )
        if connection.dialect not in self._warned:
            self._warned.add(connection.dialect)
            text = f"a claim in a {level} transaction can fail or block others on {self.product}: {advice}"
            warnings.warn(text, SQLQueueWarning, stacklevel=2)

    # -- the claim ----------------------------------------------------------------------------------------------------

    def take(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment],
        parameters: Parameters | None = None,
        *,
        delete: bool = False,
        options: Sequence[ExecutableOption] = (),
    ) -> list[Any]:
        """Lock the rows of ``pick``, write ``assignments`` to them or ``delete`` them; the instances, in order.

        ``parameters``: of the assignments.
        """
        spec = pick.spec
        identities = self.lock(session, pick)
        for keys in self.batches(spec, identities if assignments else ()):
            count = self.named_for(spec, len(keys))
            writing = pick.made.get((self, assignments, count), partial(self._writing, spec, count, assignments))
            self.execute(session, spec, writing, {**self.key_names(spec, keys), **(parameters or {})})
        tasks = self.load(session, spec, identities, options, latest=not assignments)
        if delete:
            self.delete(session, spec, identities)
        return tasks

    def _writing(self, spec: QueueSpec, count: int, assignments: Sequence[Assignment]) -> ByKey:
        return self.by_key(spec, write(spec, self.keys_named(spec, count), assignments))

    def load(
        self,
        session: Session,
        spec: QueueSpec,
        identities: Sequence[Identity],
        options: Sequence[ExecutableOption] = (),
        *,
        latest: bool = False,
    ) -> list[Any]:
        """The instances of ``identities``, in that order.  ``latest``: nothing was written, only locked."""
        found: dict[Identity, Any] = {}
        for keys in self.batches(spec, identities):
            count, last = self.named_for(spec, len(keys)), latest and not options
            statement = spec.made.get((self, "load", count, last), partial(self.loading, spec, count, latest=last))
            rows = session.scalars(
                statement.options(*options) if options else statement,
                self.key_names(spec, keys),
                execution_options={"populate_existing": True},
                bind_arguments=spec.bind_arguments,
            )
            found.update((spec.identity_of(task), task) for task in rows.unique())
        return self.in_order(spec, found, identities)

    def in_order(self, spec: QueueSpec, found: Mapping[R, Any], wanted: Sequence[R]) -> list[Any]:
        """Of ``found`` all that are ``wanted``; :class:`.ArgumentError` if one is not there."""
        hidden = [each for each in wanted if each not in found]
        if hidden:
            raise ArgumentError(
                f"{spec.entity.__name__} {hidden[0]} is claimed but cannot be loaded: loader options or criteria of the"
                " session hide it, or it is newer than what this transaction may see. Roll back."
            )
        return [found[each] for each in wanted]

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        """Of so many rows, which its parameters name."""
        return select(spec.entity).where(self.keys_named(spec, count))

    def delete(self, session: Session, spec: QueueSpec, identities: Sequence[Identity]) -> None:
        for keys in self.batches(spec, identities):
            self.execute(session, spec, self.by_key(spec, remove(spec, self.key_in(spec, keys))))

    # -- enqueueing ---------------------------------------------------------------------------------------------------

    def check_keys(self, spec: QueueSpec, rows: Iterable[Mapping[str, Any]]) -> None:
        """:class:`.ConfigurationError` for a new row, by names of attributes, that would be left without a key."""
        for column in () if self.numbers_keys else spec.unnumbered:
            name = spec.mapper.get_property_by_column(column).key
            if any(row.get(name) is None for row in rows):
                advice = "mapped_column(Identity(), primary_key=True), or with FetchedValue() if a trigger fills it in"
                raise ConfigurationError(
                    f"{spec.entity.__name__}.{name} has no value, and {self.product} makes none: declare {advice}",
                    model=spec.entity,
                )

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        """An INSERT that leaves a row with the same key as it is, or gives it what ``replace`` says.

        ``None`` where the engine has none: the caller then tries an UPDATE first.
        """
        return None

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        """A statement within it may fail, and leaves the transaction as it was."""
        return session.begin_nested()

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Load rows by the engine's own bulk protocol, in this transaction."""
        raise ArgumentError(f"{self.product} has no COPY: leave copy=True out, the rows are inserted in bulk")

    def is_duplicate(self, error: IntegrityError) -> bool:
        """Whether a unique key was violated, by code."""
        raise NotImplementedError

    def is_referenced(self, error: IntegrityError) -> bool:
        """Whether a foreign key kept a row from being deleted, by code."""
        raise NotImplementedError

    # -- the indexes --------------------------------------------------------------------------------------------------

    def index_options(self, predicate: Criterion) -> dict[str, Any]:
        return {} if self.partial_index is None else {self.partial_index: predicate}


def _autocommits(connection: Connection) -> bool:
    """Whether the driver commits each statement, whoever told it to."""
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # SQLAlchemy 2.0.43
    try:
        return detect is not None and bool(detect(connection.connection.dbapi_connection))
    except NotImplementedError:
        return False
