"""Checks whether a server and an account can run a queue: version, state and privileges.  Changes nothing."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import URL, Connection, Table, column, table
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.sql.expression import TableClause

from ..._support.errors import UnsupportedDialectError
from ...queue.spec import Finding, Identity, QueueSpec, Severity
from .product import Product

_NEEDS_LOCKS = "mode='lock', lease=None, and consume() of a queue with limits"
_CERTIFIED = (
    "its servers do not see each other's row locks, and reject one of two conflicting transactions only at its"
    " commit, so two workers could run the same task at once"
)
_USE_LEASES = "claim with a lease, and commit the claim before the work begins, as handlers of mode='lease' do"


class Server(ABC):
    """A server: its version, its state and the privileges of an account."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self._verified: weakref.WeakSet[Dialect] = weakref.WeakSet()
        self._clusters: weakref.WeakKeyDictionary[Dialect, str | None] = weakref.WeakKeyDictionary()

    def verify(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedDialectError` if queues cannot run on this server.  Checks once per engine."""
        if connection.dialect not in self._verified:
            self.judge(connection.dialect.server_version_info or (), self.banner(connection))
            self._verified.add(connection.dialect)

    def banner(self, connection: Connection) -> str:
        """Return the server's description of itself, if its version number alone does not identify it."""
        return ""

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        """Raise :class:`.UnsupportedDialectError` if such a server cannot be used for queues."""
        numbers = tuple(part for part in version if isinstance(part, int))
        if numbers < self.product.minimum:
            needed = f"{self.product.name} {'.'.join(map(str, self.product.minimum))} or newer"
            self.refuse(".".join(map(str, version)), needed, self.product.needed)

    def refuse(self, version: str, needed: str, reason: str) -> None:
        """Raise :class:`.UnsupportedDialectError`."""
        raise UnsupportedDialectError(
            f"{self.product.name} {version} cannot be used for queues: it lacks {reason}. {needed} is needed.",
            dialect=self.product.dialect,
            version=version,
            needed=needed,
        )

    def check_locks(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedDialectError` on a cluster whose servers do not see each other's row locks.

        Checks once per engine.
        """
        if connection.dialect not in self._clusters:
            self._clusters[connection.dialect] = self.cluster(connection)
        cluster = self._clusters[connection.dialect]
        if cluster is not None:
            raise UnsupportedDialectError(
                f"{_NEEDS_LOCKS} cannot be used on {cluster}: {_CERTIFIED}. Instead, {_USE_LEASES}",
                dialect=self.product.dialect,
                needed="a claim with a lease",
            )

    def cluster(self, connection: Connection) -> str | None:
        """Return the cluster that this server is part of, if its other servers accept writes and do not see its row
        locks."""
        return None

    def absent(self, url: URL) -> str | None:
        """If connecting would create a database at ``url``, return why none exists; otherwise ``None``."""
        return None

    @abstractmethod
    def findings(self, connection: Connection) -> Iterator[Finding]:
        """Yield the problems of this server, or of sessions like this one, that affect all queues."""

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        """Yield the engine-specific problems of an existing table."""
        return iter(())

    def key_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        """Yield the reasons why statements that find tasks by primary key fail on an existing table."""
        return iter(())

    def unindexed_reference(self, connection: Connection) -> str | None:
        """Return what the deletion of a row does to a table that refers to it by a foreign key without an index;
        ``None`` if nothing, or if all foreign keys have indexes."""
        return "makes the server read all of it"

    def hides_rows(self, connection: Connection, spec: QueueSpec) -> bool:
        """Return whether the server shows this session only some rows of the queue's table."""
        return False

    def lock_owner(self, connection: Connection, spec: QueueSpec, identity: Identity) -> str | None:
        """Return the owner of the transaction that has locked a row; ``None`` if this account cannot read it."""
        return None

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        """Return the privileges that this account lacks: SELECT, INSERT, UPDATE, DELETE, or others by name.

        ``live`` are the table's existing columns.
        """
        return ()


def read_only(reason: str, fix: str) -> Finding:
    """Return a finding: the server or the session is read-only."""
    return Finding(severity=Severity.ERROR, code="read-only", message=f"nothing can be claimed here: {reason}", fix=fix)


def multi_primary(cluster: str) -> Finding:
    """Return the note about features that are rejected on ``cluster``, a cluster with several primaries."""
    message = f"this is {cluster}: {_CERTIFIED}. {_NEEDS_LOCKS} are rejected here"
    return Finding(severity=Severity.NOTE, code="multi-primary", message=message, fix=_USE_LEASES)


def bare(connection: Connection, target: Table, live: Sequence[ReflectedColumn]) -> TableClause:
    """Return ``target`` with its existing columns, and without defaults that an INSERT or UPDATE would add."""
    return table(target.name, *(column(each["name"]) for each in live), schema=connection.schema_for_object(target))
