"""Clients request reports over HTTP, a worker writes them, and an operator with a password watches them."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import Identity, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from sqlqueue import QueueMixin, QueueSession, Worker
from sqlqueue.dashboard import Action, Dashboard, Viewer

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///app.db"))
Session = sessionmaker(engine, class_=QueueSession)
worker = Worker(Session)
PASSWORD = os.environ.get("OPERATOR_PASSWORD", "")


class Base(DeclarativeBase):
    pass


class Report(QueueMixin, Base):
    """A report to be written."""

    __tablename__ = "report"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    title: Mapped[str] = mapped_column(String(100))
    text: Mapped[str | None] = mapped_column(String(1000))


@worker.handler(Report)
def write(session: QueueSession, report: Report) -> None:
    report.text = f"All is well with {report.title}."


def order(request: Request) -> JSONResponse:
    with Session.begin() as session:
        report = Report(title=request.query_params["title"])
        session.add(report)
        session.flush()
        return JSONResponse({"id": report.id}, 201)


def authorize(request: Request) -> Viewer | Response:
    """Require the operator's password; an application with its own login would check its session instead."""
    given = request.headers.get("authorization", "").removeprefix("Basic ")
    try:
        _, _, password = base64.b64decode(given).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        password = ""
    if not PASSWORD or not hmac.compare_digest(password.encode(), PASSWORD.encode()):
        return Response("Who are you?\n", 401, {"WWW-Authenticate": "Basic"})
    # the name is logged with each action: never one that the client chose, and that nothing has verified
    return Viewer("operator", may=[Action.RETRY, Action.CANCEL])


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)  # in production, run alembic upgrade head first
    yield
    engine.dispose()


dashboard = Dashboard(Session, Base, authorize=authorize, columns={Report: ["title"]})
app = Starlette(
    lifespan=lifespan,
    routes=[Route("/reports", order, methods=["POST"]), Mount("/queues", dashboard)],
)
