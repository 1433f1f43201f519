"""A dashboard with tasks in every state, served over HTTP in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy import Engine, create_engine, update
from sqlalchemy.orm import sessionmaker

from sqlqueue import Every, QueueSession
from sqlqueue.dashboard import Action, Dashboard, Viewer
from tests.dashboard.models import Attempt, Base, Crawl, Digest, Email, Event, LiveWorker, Order, Page, Step

HOSTILE = "<script>document.title='hacked'</script>\"'><img src=x onerror=document.title='hacked'>\u202e\x1b"
ERROR = "SMTPServerDisconnected: connection unexpectedly closed by mail.example.org"


def database(path: Path) -> tuple[Engine, sessionmaker[Any]]:
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    return engine, sessionmaker(engine, class_=QueueSession)


def fill(sessions: sessionmaker[Any]) -> None:
    """Store tasks in every state, with payloads that attack a page that shows them unescaped."""
    with sessions.begin() as session:
        session.add_all(
            Email(recipient=f"user{n}@example.org", topic="news" if n % 3 else "billing") for n in range(150)
        )
        session.add(Page(address=HOSTILE))
        session.add_all(
            [Digest(id=1, schedule=Every(timedelta(minutes=15))), Digest(id=2, schedule=Every(timedelta(hours=6)))]
        )
        session.add_all([Crawl(limit_key=key) for key in ("a.org", "a.org", "a.org", HOSTILE[:60])])
        session.add_all([Order(stage=stage) for stage in ("pay", "pay", "pack", "send")])
        session.add_all(
            [Event(message_key="7", destination="orders", payload={"secret": "payload-secret"}) for _ in range(3)]
        )
    with sessions.begin() as session:
        session.complete(session.claim_many(Email, limit=60, claimed_by="mailer:1"))
        session.discard(session.claim_many(Email, limit=5, claimed_by="mailer:1"), ERROR)
        for email in session.claim_many(Email, limit=4, claimed_by="mailer:2"):
            session.fail(email, TimeoutError("no answer within 30 s"))
        session.claim_many(Email, limit=3, claimed_by="mailer:2")
        session.add(Email(recipient=HOSTILE, secret=HOSTILE, topic=HOSTILE))
        session.claim_many(Crawl, limit=2, claimed_by="crawler:1")
    with sessions.begin() as session:
        (hostile,) = session.claim_many(Email, Email.recipient == HOSTILE, limit=1, claimed_by=HOSTILE[:100])
        session.discard(hostile, HOSTILE)
    _spread(sessions)


def fill_batch(sessions: sessionmaker[Any]) -> None:
    """Store a workflow of which some tasks have ended."""
    with sessions.begin() as session, session.batch("import 7") as batch:
        first = [batch.add(Step(name=name)) for name in ("fetch", "check", HOSTILE)]
        many = batch.add(Step, [{"name": str(number)} for number in range(40)], after=first[:2])
        last = batch.add(Step(name="publish"), after=[many, first[2]])
        batch.add(Step(name="refund"), after=last, when="failed")
        batch.then(Step(name="report"), when="final")
    with sessions.begin() as session:
        session.enqueue(Step(name="label"), after=HOSTILE.replace("/", ""), into="import 7")
        session.complete(session.claim(Step, Step.name == "fetch"))
        session.discard(session.claim(Step, Step.name == HOSTILE), HOSTILE)
        session.claim(Step, Step.name == "check", claimed_by="importer:1")
    with sessions.begin() as session:
        session.advance(Step)


def register(sessions: sessionmaker[Any], *names: str, ago: timedelta = timedelta(0)) -> None:
    """Write rows of workers that reported some time ago."""
    seen_at = datetime.now(UTC) - ago
    handlers = [{"queue": "email", "functions": None, "whole": True, "slots": 4, "busy": 3}]
    facts = {"host": "web-1", "process": 7, "claimer": 1, "started_at": seen_at, "seen_at": seen_at}
    with sessions.begin() as session:
        session.add_all(
            LiveWorker(id=f"id-{number}-{name[:5]}", name=name, handlers=handlers, **facts)
            for number, name in enumerate(names)
        )


def _spread(sessions: sessionmaker[Any]) -> None:
    """Spread finished tasks and their attempts over the last hour, so that charts have something to show."""
    now = datetime.now(UTC)
    with sessions.begin() as session:
        for number in range(1, 61):
            ended = now - timedelta(seconds=number * number % 3500)
            began = ended - timedelta(milliseconds=200 + number * 37 % 900)
            values = {
                "finished_at": ended,
                "claimed_at": began,
                "created_at": began - timedelta(seconds=1 + number % 7),
            }
            session.execute(update(Email.__table__).where(Email.__table__.c.id == number).values(values))
            of_task = (Attempt.queue == "email", Attempt.task == str(number))
            session.execute(update(Attempt).where(*of_task).values(started_at=began, finished_at=ended))


def ada(_request: object) -> Viewer:
    return Viewer("ada", frozenset(Action))


def dashboard(sessions: Any, **options: Any) -> Dashboard:
    given = {
        "authorize": ada,
        "columns": {Email: ["recipient"]},
        "filters": {Email: ["recipient"]},
        "statement_limit": timedelta(minutes=1),  # a busy machine takes its time
    }
    return Dashboard(sessions, Base, **given | options)


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on a free port; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    (port,) = {socket.getsockname()[1] for each in server.servers for socket in each.sockets}
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
