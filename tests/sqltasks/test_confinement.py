"""SQL requests reach nothing but their database: no files of the worker's host, and no settings of others."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from sqlqueue import ArgumentError
from sqlqueue.dialects import adapter_for
from sqlqueue.sqltasks import RequestFailed, SQLTaskDatabase, SQLTaskScheduler
from sqlqueue.sqltasks.execution import RequestExecutor
from tests.support.harness import Database

MINUTE = timedelta(minutes=1)


def run(url: URL, request: str, *, user: str | None = None) -> str:
    return RequestExecutor(url, {"owner": url}, timeout=MINUTE, limit=1_000).execute(request, user=user, timeout=None)


def urls(db: Database) -> Iterator[URL]:
    """Yield a URL for each installed driver that executes requests."""
    yield db.url
    if db.url.get_driver_name() == "pymysql" and find_spec("MySQLdb"):
        yield db.url.set(drivername=f"{db.url.get_backend_name()}+mysqldb")


@pytest.mark.requires("file_requests")
def test_no_request_reads_or_writes_a_file_of_the_host(sync_db: Database, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    for url in urls(sync_db):
        for request in sync_db.case.file_requests:
            for path in (secret, tmp_path / "missing"):
                secret.write_text("a password\n")
                with pytest.raises(RequestFailed):
                    run(url, request.format(path=path))
                assert secret.read_text() == "a password\n"
        assert [each.name for each in tmp_path.iterdir()] == [secret.name]
        assert '"rows":[[0]]' in run(url, "SELECT COUNT(*) FROM ledger")


@pytest.mark.parametrize("driver", ["mysql+mysqldb", "mariadb+mysqldb", "mysql+pymysql", "mariadb+pymysql"])
def test_the_driver_sends_no_files(driver: str) -> None:
    url = make_url(f"{driver}://user@host/name")
    connections = adapter_for(url.get_dialect()()).connections
    assert not connections.request_arguments(url)["local_infile"]
    with pytest.raises(ArgumentError, match="must not contain client_flag, local_infile: with LOAD DATA LOCAL INFILE"):
        connections.request_arguments(url.update_query_dict({"local_infile": "1", "client_flag": "128"}))


def test_option_files_must_not_allow_it_either() -> None:
    url = "mysql+mysqldb://user@host/name?read_default_file=/etc/my.cnf"
    with pytest.raises(ArgumentError, match="must not contain read_default_file"):
        SQLTaskScheduler([SQLTaskDatabase(url="sqlite://", users={"owner": url})])


@pytest.fixture
def file(tmp_path: Path) -> URL:
    """Return the URL of an SQLite database with a table."""
    path = tmp_path / "file.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    return make_url(f"sqlite:///{path}")


def test_the_error_names_what_sqlite_refuses(file: URL, tmp_path: Path) -> None:
    for request in (f"VACUUM INTO '{tmp_path / 'x'}'", f"ATTACH '{tmp_path / 'x'}' AS y"):
        with pytest.raises(RequestFailed, match="NotSupportedError: a request cannot use ATTACH or VACUUM INTO"):
            run(file, request)


@pytest.mark.parametrize(
    "pragma",
    ["journal_mode = wal", "main.Journal_Mode(wal)", "writable_schema = 1", "schema_version = 1"]
    + ["temp_store_directory = '/tmp'"]
    + [f"{kind}_heap_limit = 1000000000" for kind in ("soft", "hard")],
)
def test_sqlite_pragmas_that_affect_others_are_refused(file: URL, pragma: str) -> None:
    with pytest.raises(RequestFailed, match=r"a request cannot use PRAGMA \w+, which affects others"):
        run(file, f"PRAGMA {pragma}")
    assert '"rows":[["delete"]]' in run(file, "PRAGMA journal_mode")
    assert '"rows":[[0]]' in run(file, "PRAGMA hard_heap_limit")


def test_sqlite_requests_may_tidy_up_and_read_settings(file: URL) -> None:
    run(file, "VACUUM")
    assert "a" in run(file, "PRAGMA table_info(t)")
    run(file, "ALTER TABLE t RENAME TO u")
    run(file, "ANALYZE")


def test_the_error_of_an_unknown_user_names_no_others(file: URL, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sqlqueue"), pytest.raises(RequestFailed) as failed:
        run(file, "SELECT 1", user="nobody")
    assert str(failed.value) == "unknown user 'nobody': the log of the worker lists the users"
    assert "unknown user nobody; the users are: owner" in caplog.text
