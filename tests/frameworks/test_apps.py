"""The applications of tests/frameworks/apps, served and tested over HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from werkzeug.serving import make_server

from sqlqueue import Status
from tests.frameworks.apps import with_asyncio, with_threads
from tests.frameworks.apps.models import Base, Customer, Welcome
from tests.support.harness import Database
from tests.support.workers import eventually


@pytest.fixture
def tables(db: Database) -> Iterator[None]:
    Base.metadata.create_all(db.engine)
    yield
    Base.metadata.drop_all(db.engine)


@contextmanager
def served(db: Database) -> Iterator[str]:
    """Yield the address of the application for the database's kind of session."""
    engine = db.variant().bind
    if isinstance(engine, AsyncEngine):
        config = uvicorn.Config(with_asyncio.application(engine), port=0, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
        return
    app, worker = with_threads.application(engine)
    plain = make_server("127.0.0.1", 0, app, threaded=True)
    threads = [threading.Thread(target=plain.serve_forever), threading.Thread(target=worker.run)]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{plain.server_port}"
    finally:
        plain.shutdown()
        plain.server_close()
        worker.stop()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("tables")
def test_a_customer_is_greeted_after_the_answer_and_only_if_stored(db: Database) -> None:
    with served(db) as url, httpx2.Client(base_url=url) as client:
        answers = [client.post("/customers", params={"name": name}) for name in ("Ada", "Grace", "nobody")]
        assert [answer.status_code for answer in answers] == [201, 201, 422]
        keys = [answer.json()["id"] for answer in answers[:2]]
        eventually(lambda: all(client.get(f"/customers/{key}").json()["greeting"] for key in keys))
        greetings = [client.get(f"/customers/{key}").json()["greeting"] for key in keys]
        assert greetings == ["Welcome, Ada!", "Welcome, Grace!"]
    with db.engine.connect() as connection:
        assert connection.scalars(select(Customer.name).order_by(Customer.id)).all() == ["Ada", "Grace"]
        assert connection.scalars(select(Welcome.status)).all() == [Status.COMPLETED, Status.COMPLETED]


SERVE = """
import sys
import uvicorn
from sqlalchemy.ext.asyncio import create_async_engine
from tests.frameworks.apps import with_asyncio
uvicorn.run(with_asyncio.application(create_async_engine(sys.argv[1])), port=0)
"""


def test_the_application_does_not_go_on_without_its_worker(tmp_path: Path) -> None:
    """If a table is missing, this is logged once and the process exits."""
    command = [sys.executable, "-c", SERVE, f"sqlite+aiosqlite:///{tmp_path}/empty.db"]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr.count("the schema does not match the models: there is no table") == 1
    assert "Traceback" not in ended.stderr
    assert "Shutting down" in ended.stderr
