"""A queue on the external engine, run by the test in a separate process where the package is installed."""

from __future__ import annotations

import sys

from sqlalchemy import Identity, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueMixin, QueueSession


class Base(DeclarativeBase):
    pass


class Task(QueueMixin, Base):
    __tablename__ = "task"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


engine = create_engine(f"outside:///{sys.argv[1]}")
Base.metadata.create_all(engine)
with QueueSession(engine) as session:
    session.enqueue([Task(), Task()])
    session.complete(session.claim(Task))
    session.fail(session.claim(Task), "no")
    session.commit()
    print(engine.dialect.name, session.stats(Task)["completed"], session.stats(Task)["retryable"])
