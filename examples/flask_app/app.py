"""Clients request reports over HTTP: each request is a row of an ordinary Flask-SQLAlchemy model."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueMixin


class Base(DeclarativeBase):
    pass


app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ.get("DATABASE_URL", "sqlite:///app.db")
db = SQLAlchemy(app, model_class=Base)


class Report(QueueMixin, db.Model):  # type: ignore[name-defined,misc]  # type checkers do not know db.Model
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    year: Mapped[int]
    text: Mapped[str | None] = mapped_column(String(200))


@app.cli.command("init-db")
def init_db() -> None:
    """Create the tables; in production, run alembic upgrade head."""
    db.create_all()


@app.post("/reports/<int:year>")
def order(year: int) -> Any:
    report = Report(year=year)
    db.session.add(report)  # enqueueing is an insert
    db.session.commit()
    return {"id": report.id}, 202


@app.get("/reports/<int:key>")
def show(key: int) -> Any:
    report = db.get_or_404(Report, key)
    return {"status": report.status, "text": report.text}
