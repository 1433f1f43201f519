"""The worker that writes the reports; start it with ``sqlqueue work worker:worker``."""

from __future__ import annotations

from app import Report, app, db
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker

with app.app_context():
    Session = sessionmaker(db.engine, class_=QueueSession)
worker = Worker(Session)


@worker.handler(Report)
def write(session: QueueSession, report: Report) -> None:
    report.text = f"Report for {report.year}"  # committed together with the completion
