"""Streams the result of one statement from PostgreSQL row by row, through psycopg's wrapper of libpq.

Psycopg's cursors either read all rows at once, or do not report how many rows a statement without a result has changed.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from sqlalchemy import Connection

from ..parts.errors import wrapping
from ..parts.requests import StatementResult

_COPY = "COPY FROM STDIN and COPY TO STDOUT need a client that sends or receives the rows: use a SELECT or an INSERT"
_BYTES = 17
_READ: Mapping[int, Callable[[str], Any]] = {
    16: lambda text: text == "t",
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((700, 701), float),
}
"""Conversions by type oid; values of other types keep the server's text."""


@contextmanager
def stream(connection: Connection, request: str, type_name: Callable[[int], str]) -> Iterator[StatementResult]:
    """Execute ``request``; the extended protocol rejects more than one statement."""
    from psycopg.pq import TransactionStatus  # noqa: PLC0415  # a user of PostgreSQL may have another driver

    driver: Any = connection.connection.driver_connection
    try:
        with wrapping(connection.dialect, driver, request):
            driver.pgconn.send_query_params(request.encode(driver.info.encoding), None)
            driver.pgconn.set_single_row_mode()
            yield _answer(_results(driver), driver.info.encoding, type_name)
    finally:
        if driver.pgconn.transaction_status in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN):
            connection.invalidate()  # the connection does not accept a ROLLBACK


def _answer(results: Iterator[Any], encoding: str, type_name: Callable[[int], str]) -> StatementResult:
    first = next(results)
    columns = [(first.fname(n).decode(encoding), first.ftype(n)) for n in range(first.nfields)]
    if not columns:
        for _ in results:
            pass
        return StatementResult(None, (), first.command_tuples or 0)
    return StatementResult([(name, type_name(code)) for name, code in columns], _rows(first, results, encoding), 0)


def _rows(first: Any, results: Iterator[Any], encoding: str) -> Iterator[list[Any]]:
    from psycopg.pq import Escaping  # noqa: PLC0415

    def value(code: int, sent: bytes | None) -> Any:
        if sent is None:
            return None
        if code == _BYTES:
            return bytes(Escaping().unescape_bytea(sent))
        return _READ.get(code, str)(sent.decode(encoding, "replace"))

    codes = [first.ftype(n) for n in range(first.nfields)]
    for result in chain((first,), results):
        for row in range(result.ntuples):
            yield [value(code, result.get_value(row, n)) for n, code in enumerate(codes)]


def _results(driver: Any) -> Iterator[Any]:
    """Yield a result for each row, and one for the end."""
    from psycopg import NotSupportedError  # noqa: PLC0415
    from psycopg.errors import error_from_result  # noqa: PLC0415
    from psycopg.pq import ExecStatus  # noqa: PLC0415

    pgconn = driver.pgconn
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        while (result := _next(pgconn, selector)) is not None:
            if result.status in (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH):
                raise NotSupportedError(_COPY)
            if result.status in (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE):
                raise error_from_result(result, driver.info.encoding)
            yield result


def _next(pgconn: Any, selector: selectors.BaseSelector) -> Any:
    """Return the next result.  ``get_result`` alone would block all threads."""
    while (sends := pgconn.flush()) or pgconn.is_busy():
        wanted = selectors.EVENT_READ | selectors.EVENT_WRITE if sends else selectors.EVENT_READ
        selector.modify(pgconn.socket, wanted)
        selector.select()
        pgconn.consume_input()
    return pgconn.get_result()
