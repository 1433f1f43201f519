"""Behind PgBouncer in transaction mode, each transaction may use a different server connection."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, select

from tests.support.engines import REQUIRED
from tests.support.harness import Database, LoopThread
from tests.support.models import Ledger, Task
from tests.support.rows import contenders, count, ids, rows, without_waiting

pytestmark = pytest.mark.requires("transaction_pooler")

NOT_PREPARED = {"prepare_threshold": None}  # a prepared statement remains on another connection
CONFIGURATION = """\
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def pgbouncer(binary: str, server: URL) -> Iterator[URL]:
    """Run PgBouncer in front of `server`, on its own port."""
    with tempfile.TemporaryDirectory(prefix="sqlqueue-pgbouncer-") as name, socket.socket() as free:
        directory = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        users, configuration = directory / "users.txt", directory / "pgbouncer.ini"
        users.write_text(f'"{server.username}" "{server.password or ""}"\n')
        host = server.host or server.query.get("host")
        address = f"host={host} port={server.port or 5432}"
        configuration.write_text(CONFIGURATION.format(server=address, port=port, users=users))
        free.close()
        process = subprocess.Popen([binary, "-q", str(configuration)], **_someone(directory, server))
        try:
            yield _listening(process, server.set(host="127.0.0.1", port=port, query={}))
        finally:
            process.terminate()
            process.wait(10)


def _someone(directory: Path, server: URL) -> dict[str, object]:
    """Return the user to run it as: it refuses to run as root, and only the owner may access the server's socket."""
    if os.geteuid() != 0:
        return {}
    sockets = server.query.get("host")
    user = pwd.getpwuid(Path(str(sockets)).stat().st_uid) if sockets else pwd.getpwnam("nobody")
    for path in (directory, *directory.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _listening(process: subprocess.Popen[bytes], url: URL) -> URL:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "pgbouncer has ended"
        with socket.socket() as probe:
            if probe.connect_ex((url.host, url.port)) == 0:
                return url
        assert time.monotonic() < deadline, "pgbouncer does not listen"
        time.sleep(0.05)


@pytest.fixture
def pooled(db: Database) -> Iterator[Database]:
    """The test run's database, through the pooler."""
    binary = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        missing = "pgbouncer is not installed (Debian: apt-get install pgbouncer)"
        pytest.fail(missing, pytrace=False) if db.case.name in REQUIRED else pytest.skip(missing)
    loop = LoopThread()
    with pgbouncer(binary, db.url) as url:
        options = {"connect_args": NOT_PREPARED, "pool_size": 10}
        database = Database(db.case, url, loop, engine=db.engine, is_async=db.is_async, **options)
        yield database
        database.dispose()
    loop.stop()


def test_the_connection_goes_through_the_pooler(pooled: Database) -> None:
    assert pooled.url.port != pooled.engine.url.port
    # five concurrent clients on three connections: only in transaction mode do all get one
    actors = [pooled.session() for _ in range(5)]
    for actor in actors:
        assert actor.scalar(select(1)) == 1
        actor.commit()


def test_claim_and_settle_in_one_transaction(pooled: Database) -> None:
    pooled.insert(Task, rows(20))
    for _ in range(10):  # often enough that a driver would prepare the statement by default
        with pooled.begin() as actor:
            done, failed = actor.claim_many(Task, limit=2)
            actor.add(Ledger(task_id=done.id))
            actor.complete(done)
            actor.fail(failed, "no luck")
    assert count(pooled, Ledger) == count(pooled, Task, Task.status == "completed") == 10
    assert count(pooled, Task, Task.status == "retryable") == 10


def test_claim_commit_and_settle_on_whatever_connection(pooled: Database) -> None:
    pooled.insert(Task, rows(10))
    actors = [pooled.session() for _ in range(5)]
    claimed = []
    for actor in actors:
        claimed.append(actor.claim(Task))
        actor.commit()
    for actor, task in zip(reversed(actors), reversed(claimed), strict=True):
        actor.heartbeat(task)
        actor.complete(task)
        actor.commit()
    assert len(ids(claimed)) == count(pooled, Task, Task.status == "completed") == 5


def test_the_same_statements_on_another_connection(pooled: Database) -> None:
    pooled.insert(Task, rows(20))
    mover, blocker = contenders(pooled)
    for _ in range(3):
        for _ in range(3):
            mover.complete(mover.claim(Task))
            mover.commit()
        blocker.claim(Task)  # takes and keeps the connection that the other has just used
        mover.complete(mover.claim(Task))
        mover.commit()
        blocker.rollback()
    assert count(pooled, Task, Task.status == "completed") == 12


def test_two_claimers(pooled: Database) -> None:
    pooled.insert(Task, rows(20))
    a, b = contenders(pooled)
    mine = ids(a.claim_many(Task, limit=5))
    theirs = ids(without_waiting(a, lambda: b.claim_many(Task, limit=20)))
    assert (len(mine), len(theirs)) == (5, 15)
    assert not mine & theirs
    a.rollback()
    assert ids(a.claim_many(Task, limit=20)) == mine


def test_enqueueing(pooled: Database) -> None:
    with pooled.begin() as actor:
        actor.enqueue(Task, [{"number": n} for n in range(20)])
        actor.enqueue(Task, [{"number": n} for n in range(20)], copy=True)
        actor.enqueue(Task())
    assert count(pooled, Task, Task.status == "available") == 41
