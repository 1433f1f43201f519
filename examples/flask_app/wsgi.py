"""The application with the dashboard of its queues: ``flask --app wsgi run``, or any WSGI server."""

from __future__ import annotations

from a2wsgi import ASGIMiddleware
from app import app, db
from sqlalchemy.orm import sessionmaker
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from sqlqueue.dashboard import Dashboard

with app.app_context():
    dashboard = Dashboard(sessionmaker(db.engine), db.Model)  # without authorize: read-only, for this machine only
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/queues": ASGIMiddleware(dashboard)})  # type: ignore[method-assign]
