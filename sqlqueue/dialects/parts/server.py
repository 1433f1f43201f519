"""What a live server says of itself: whether this account, here and now, can work a queue.  It changes nothing."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import URL, Connection, Table, column, table
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.sql.expression import TableClause

from ..._support.exc import UnsupportedDialectError
from ...queue.findings import Finding, Severity
from ...queue.spec import QueueSpec
from .product import Product


class Server(ABC):
    """A server, its version and the rights of an account."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self._verified: weakref.WeakSet[Dialect] = weakref.WeakSet()

    def verify(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedDialectError` unless this server can carry a queue.  Asks once for each engine."""
        if connection.dialect not in self._verified:
            self.judge(connection.dialect.server_version_info or (), self.banner(connection))
            self._verified.add(connection.dialect)

    def banner(self, connection: Connection) -> str:
        """Return what the server calls itself, where its version alone does not tell."""
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

    def absent(self, url: URL) -> str | None:
        """Return why there can be no database at ``url``, where connecting would make one."""
        return None

    @abstractmethod
    def findings(self, connection: Connection) -> Iterator[Finding]:
        """Yield what keeps this server, or sessions like this one, from working any queue."""

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        """Yield what this engine alone knows of a table that is there."""
        return iter(())

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        """Return what this account may not do: SELECT, INSERT, UPDATE, DELETE, or another right by its name.

        ``live`` are the table's columns as they are.
        """
        return ()


def read_only(reason: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, code="read-only", message=f"nothing can be claimed here: {reason}", fix=fix)


def bare(connection: Connection, target: Table, live: Sequence[ReflectedColumn]) -> TableClause:
    """Return ``target`` as it is, without the defaults that an INSERT or an UPDATE of it would add."""
    return table(target.name, *(column(each["name"]) for each in live), schema=connection.schema_for_object(target))
