"""Each example is started, gets a task, and completes it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.examples.running import EXAMPLES, STARTING, environment, run, running, served, work
from tests.support.containers import free_port
from tests.support.workers import eventually

pytestmark = pytest.mark.timeout(600)


def rows(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def dashboard(client: httpx2.Client) -> str:
    """Return the dashboard's page of all queues."""
    answer = client.get("/queues/")
    assert answer.status_code == 200
    return answer.text


def test_every_example_is_tested() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert folders == {"fastapi_app", "starlette_app", "flask_app", "django_alongside", "monitoring", "script"}


def test_fastapi(tmp_path: Path) -> None:
    database, port = tmp_path / "app.db", free_port()
    command = ("-m", "uvicorn", "app:app", "--port", str(port))
    with (
        running("fastapi_app", *command, DATABASE_URL=f"sqlite+aiosqlite:///{database}"),
        served(port) as client,
    ):
        assert client.post("/customers", params={"name": "nobody"}).status_code == 422
        created = client.post("/customers", params={"name": "Ada"})
        assert created.status_code == 201
        path = f"/customers/{created.json()['id']}"
        eventually(lambda: client.get(path).json() == {"name": "Ada", "greeting": "Welcome, Ada!"}, within=STARTING)
        assert "welcome" in dashboard(client)
    assert rows(database, "SELECT name FROM customer") == [("Ada",)]
    assert rows(database, "SELECT status FROM welcome") == [("completed",)]


def test_fastapi_does_not_go_on_without_its_worker(tmp_path: Path) -> None:
    """If a table is missing, this is logged once and the process exits."""
    code = "import app, uvicorn; app.Base.metadata.create_all = lambda _: None; uvicorn.run(app.app, port=0)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=EXAMPLES / "fastapi_app",
        env=environment(DATABASE_URL=f"sqlite+aiosqlite:///{tmp_path}/empty.db"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.stderr.count("the schema does not match the models: there is no table") == 1
    assert "Traceback" not in ended.stderr
    assert "Shutting down" in ended.stderr


def test_starlette(tmp_path: Path) -> None:
    database, port = tmp_path / "app.db", free_port()
    variables = {"DATABASE_URL": f"sqlite:///{database}", "OPERATOR_PASSWORD": "secret"}
    command = ("-m", "uvicorn", "app:app", "--port", str(port))
    with running("starlette_app", *command, **variables), served(port) as client:
        assert client.post("/reports", params={"title": "sales"}).json() == {"id": 1}
        with running("starlette_app", *work("app:worker"), **variables):
            eventually(lambda: rows(database, "SELECT status FROM report") == [("completed",)], within=STARTING)
        assert client.get("/queues/").status_code == 401
        client.auth = ("ada", "secret")
        assert '<span class="viewer">operator</span>' in dashboard(client)  # not the name that the client sent
        assert "report" in dashboard(client)
        assert "sales" in client.get("/queues/queue/report").text
        refused = client.post("/queues/queue/report/cancel", data={"key": "1"})
        assert refused.status_code == 403  # no browser header shows that one of the dashboard's pages has sent this


def test_flask(tmp_path: Path) -> None:
    database, port = tmp_path / "app.db", free_port()
    url = {"DATABASE_URL": f"sqlite:///{database}"}
    flask = ("-m", "flask", "--app", "wsgi")
    run("flask_app", "python", *flask, "init-db", **url)
    with (
        running("flask_app", *flask, "run", "--port", str(port), **url),
        served(port) as client,
    ):
        ordered = client.post("/reports/2026")
        assert ordered.status_code == 202
        path = f"/reports/{ordered.json()['id']}"
        assert client.get(path).json() == {"status": "available", "text": None}
        with running("flask_app", *work("worker:worker"), **url):
            eventually(
                lambda: client.get(path).json() == {"status": "completed", "text": "Report for 2026"}, within=STARTING
            )
        assert "report" in dashboard(client)


def test_django(tmp_path: Path) -> None:
    database, port = tmp_path / "shop.db", free_port()
    variables = {"DATABASE": str(database)}
    run("django_alongside", "python", "manage.py", "migrate", **variables)
    assert "No changes detected" in run(
        "django_alongside", "python", "manage.py", "makemigrations", "--check", **variables
    )
    run("django_alongside", "python", "-m", "shop.queues", **variables)
    with (
        running("django_alongside", "-m", "uvicorn", "shop.asgi:application", "--port", str(port), **variables),
        served(port) as client,
    ):
        assert client.post("/customers", data={"name": "nobody"}).status_code == 400
        created = client.post("/customers", data={"name": "Ada"})
        assert created.status_code == 201
        path = f"/customers/{created.json()['id']}"
        assert client.get(path).json() == {"name": "Ada", "greeting": None}
        with running("django_alongside", *work("shop.queues:worker"), **variables):
            eventually(lambda: client.get(path).json() == {"name": "Ada", "greeting": "Welcome, Ada!"}, within=STARTING)
        assert "welcome" in dashboard(client)
    assert rows(database, "SELECT name FROM shop_customer") == [("Ada",)]
    assert rows(database, "SELECT status FROM welcome") == [("completed",)]


def test_script(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(10):
        (texts / f"{number}.txt").write_text("three more words", encoding="utf-8")
    (texts / "no text.txt").write_bytes(b"\xff\xfe")
    url = {"DATABASE_URL": f"sqlite:///{tmp_path}/words.db"}
    said = run("script", "python", "count_words.py", str(texts), **url).splitlines()
    assert said[0] == "30 words in 10 files, 0 files left"
    assert said[1].startswith("1 files could not be read: UnicodeDecodeError")
    (texts / "new.txt").write_text("two words", encoding="utf-8")
    (texts / "0.txt").unlink()  # it has been counted and is not read again
    assert run("script", "python", "count_words.py", str(texts), **url).startswith(
        "32 words in 11 files, 0 files left\n"
    )
    assert rows(tmp_path / "words.db", "SELECT max(attempt) FROM document") == [(1,)]
