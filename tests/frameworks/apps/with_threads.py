"""Flask and plain sessions: the worker is a separate process, or here a thread."""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, request
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from tests.frameworks.apps.models import Customer, Welcome


def application(engine: Engine) -> tuple[Flask, Worker]:
    Session = sessionmaker(engine, class_=QueueSession, expire_on_commit=False)
    worker = Worker(Session)

    @worker.handler(Welcome)
    def greet(session: QueueSession, welcome: Welcome) -> None:
        welcome.customer.greeting = f"Welcome, {welcome.customer.name}!"

    app = Flask(__name__)

    @app.post("/customers")
    def create() -> Any:
        with Session.begin() as session:
            customer = Customer(name=request.args["name"])
            session.add(Welcome(customer=customer))  # both rows are stored, or neither
            if customer.name == "nobody":
                abort(422)
        return {"id": customer.id}, 201

    @app.get("/customers/<int:key>")
    def show(key: int) -> Any:
        with Session() as session:
            customer = session.get(Customer, key)
        if customer is None:
            abort(404)
        return {"name": customer.name, "greeting": customer.greeting}

    return app, worker
