"""Real drivers of engines without a server here, and the classification of their errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.base import Adapter
from sqlqueue.worker.database import passes

ODBC = "mssql+pyodbc://u:p@127.0.0.1:{port}/db?driver=FreeTDS&TDS_Version=7.4&timeout=1"
ODBC_ASYNC = ODBC.replace("pyodbc", "aioodbc")
ORACLE = "oracle+oracledb://u:p@127.0.0.1:{port}/?service_name=x&tcp_connect_timeout=5"
ORACLE_ASYNC = ORACLE.replace("oracledb:", "oracledb_async:")


def url_of(template: str, port: int) -> URL:
    """Return the URL for a driver; skips the test if the driver is not installed."""
    url = make_url(template.format(port=port))
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:  # pyodbc without unixODBC also raises ImportError
        _miss(url, f"no driver {url.drivername}: {error}")
    if (named := url.query.get("driver")) and named not in pytest.importorskip("pyodbc").drivers():
        _miss(url, f"no ODBC driver {named}: it comes with Debian's tdsodbc")
    return url


def _miss(url: URL, reason: str) -> None:
    is_required = url.get_backend_name() == "mssql" and os.environ.get("SQLQUEUE_REQUIRE_ODBC") == "1"
    pytest.fail(reason, pytrace=False) if is_required else pytest.skip(reason)


def failing_to_connect(url: URL) -> DBAPIError:
    """Return the error of a failed connection attempt."""
    if url.get_dialect().is_async:
        return raised(lambda: asyncio.run(_connect(url)))
    return raised(create_engine(url).connect)


async def _connect(url: URL) -> None:
    await create_async_engine(url).connect()


def raised(call: Callable[[], object]) -> DBAPIError:
    with pytest.raises(DBAPIError) as caught:
        call()
    return caught.value


def adapter_of(url: URL) -> Adapter:
    return adapter_for(url.get_dialect()())


def taken_for(adapter: Adapter, error: DBAPIError) -> str:
    """Return the classification of an error; all parts of a worker wait out errors of the server or of other
    transactions."""
    kinds = [kind for kind in ("outage", "transient") if getattr(adapter.connections, f"is_{kind}")(error)]
    assert not kinds or passes(error, adapter)
    return " and ".join(kinds) or "neither"
