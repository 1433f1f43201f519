"""Isolation levels that READPAST does not support, and errors that end a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import ClassVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..parts.errors import Errors
from ..parts.product import Product
from ..parts.transactions import READ_COMMITTED, Transactions


class SQLServerTransactions(Transactions):
    """READ COMMITTED, with locks or row versions."""

    impatient: ClassVar[str | None] = "SET LOCK_TIMEOUT 1000"
    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED,)
    # error 650: READPAST works only at READ COMMITTED and REPEATABLE READ
    refused_levels: ClassVar[Collection[str]] = ("READ UNCOMMITTED", "SNAPSHOT", "SERIALIZABLE")

    def __init__(self, product: Product, errors: Errors) -> None:
        super().__init__(product)
        self._errors = errors

    @contextmanager
    def tentative(self, session: Session) -> Iterator[None]:
        # a savepoint, although the server rolls back a failed statement alone: with XACT_ABORT on, which a server can
        # set for all sessions, a violated key ends the transaction, and later writes would be committed without the
        # earlier ones
        try:
            with session.begin_nested():
                yield
        except DBAPIError as error:
            reason = self._errors.reason(error)
            raise reason from reason.orig
