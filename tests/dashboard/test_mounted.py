"""Mounted under a path in four frameworks: every URL in a page begins with it, and works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.dashboard.clients import OWN
from tests.dashboard.models import Email
from tests.dashboard.serving import dashboard


def fastapi(app: Any) -> Any:
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/ops/queues", app)
    return outer


def starlette(app: Any) -> Any:
    return Starlette(routes=[Mount("/ops/queues", app)])


def flask(app: Any) -> Any:
    from a2wsgi import ASGIMiddleware, WSGIMiddleware
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    outer = Flask(__name__)
    outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {"/ops/queues": ASGIMiddleware(app)})  # type: ignore[method-assign]
    return WSGIMiddleware(outer.wsgi_app)  # type: ignore[arg-type]


def django(app: Any) -> Any:
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="for tests", ALLOWED_HOSTS=["*"])
    from django.core.asgi import get_asgi_application

    return Starlette(routes=[Mount("/ops/queues", app), Mount("/", get_asgi_application())])


urlpatterns: list[Any] = []
FRAMEWORKS = (fastapi, starlette, flask, django)


@pytest.mark.parametrize("within", FRAMEWORKS)
def test_every_address_begins_with_the_path(sessions: sessionmaker[Any], within: Callable[[Any], Any]) -> None:
    client = TestClient(within(dashboard(sessions)), headers=OWN)
    pages = ["/", "/queue/email", "/queue/email/task?key=62", "/errors", "/queue/email/confirm/cancel?key=150"]
    found = {address for page in pages for address in addresses(client, f"/ops/queues{page}")}
    assert len(found) > 30
    assert all(address.startswith("/ops/queues/") for address in found)
    shown = [address for address in sorted(found) if "/confirm/" not in address]
    assert {client.get(address).status_code for address in shown[::5]} == {200}
    answer = client.post("/ops/queues/queue/email/cancel", data={"key": "150"}, follow_redirects=False)
    assert answer.headers["location"].startswith("/ops/queues/queue/email/task?key=150")
    with sessions() as session:
        assert [task.status for task in session.find(Email, Email.id == 150)] == ["cancelled"]


def addresses(client: TestClient, page: str) -> set[str]:
    answer = client.get(page)
    assert answer.status_code == 200
    found = re.findall(r'(?:href|src|formaction)="([^"#]+)"', answer.text)
    return {address.replace("&amp;", "&") for address in found}
