"""Django with the dashboard of the queues mounted next to it: ``uvicorn shop.asgi:application``."""

from __future__ import annotations

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

from shop.queues import Base, Session
from sqlqueue.dashboard import Dashboard, only_this_machine

# for development: put your application's login here
dashboard = Dashboard(Session, Base, authorize=only_this_machine)
application = Starlette(routes=[Mount("/queues", dashboard), Mount("/", get_asgi_application())])
