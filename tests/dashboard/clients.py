"""Clients of a dashboard in this process."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue.dashboard import Action, Dashboard
from sqlqueue.dashboard.standalone import Token, with_login
from tests.dashboard.models import Base

OWN = {"sec-fetch-site": "same-origin"}
LOCAL = ("127.0.0.1", 4711)
ELSEWHERE = ("10.0.0.7", 1)
TOKEN = "a-token-of-some-length"


def client(app: Any, base: str = "http://localhost:8090", peer: tuple[str, int] = LOCAL, **headers: str) -> TestClient:
    return TestClient(app, base_url=base, client=peer, headers=headers, raise_server_exceptions=False)


def protected(
    sessions: sessionmaker[Any], *may: Action, base: str = "http://10.0.0.1:8090", **headers: str
) -> TestClient:
    """Return a client of a dashboard that a token protects."""
    token = Token(TOKEN, may)
    return client(with_login(Dashboard(sessions, Base, authorize=token), token), base, ELSEWHERE, **headers)
