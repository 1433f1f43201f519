"""Django with the dashboard of the queues mounted next to it: ``uvicorn shop.asgi:application``."""

from __future__ import annotations

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

from shop.queues import Base, Session
from sqlqueue.dashboard import Dashboard

dashboard = Dashboard(Session, Base)  # without authorize: read-only, for this machine only
application = Starlette(routes=[Mount("/queues", dashboard), Mount("/", get_asgi_application())])
