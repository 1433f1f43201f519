"""The application with the dashboard of its queues: ``flask --app wsgi run``, or any WSGI server."""

from __future__ import annotations

from a2wsgi import ASGIMiddleware
from app import app, db
from sqlalchemy.orm import sessionmaker
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from sqlqueue.dashboard import Dashboard, only_this_machine

with app.app_context():
    # for development: put your application's login here
    dashboard = Dashboard(sessionmaker(db.engine), db.Model, authorize=only_this_machine)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/queues": ASGIMiddleware(dashboard)})  # type: ignore[method-assign]
