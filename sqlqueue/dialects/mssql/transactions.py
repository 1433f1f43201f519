"""Levels that READPAST is not for, and errors that end a transaction."""

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
    """Locking READ COMMITTED, or of row versions."""

    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED,)
    # error 650: READPAST is for READ COMMITTED and REPEATABLE READ alone
    refused_levels: ClassVar[Collection[str]] = ("READ UNCOMMITTED", "SNAPSHOT", "SERIALIZABLE")

    def __init__(self, product: Product, errors: Errors) -> None:
        super().__init__(product)
        self._errors = errors

    @contextmanager
    def tentative(self, session: Session) -> Iterator[None]:
        # a savepoint although a statement is undone alone: with XACT_ABORT on, which a server may have for all, a
        # violated key ends the transaction, and what follows would be committed without what was written before
        try:
            with session.begin_nested():
                yield
        except DBAPIError as error:
            reason = self._errors.reason(error)
            raise reason from reason.orig
