"""The fixture `queue` of the pytest plugin."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]
_CONFTEST = """
import pytest
from sqlalchemy import Identity, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlqueue import QueueMixin, QueueSession, Worker

class Base(DeclarativeBase):
    pass

class Email(QueueMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)

engine = create_engine("sqlite://")
worker = Worker(sessionmaker(engine))
sent = []

@worker.handler(Email)
def deliver(session, email):
    sent.append(email.id)

@pytest.fixture
def queue_worker():
    return worker

@pytest.fixture
def queue_session():
    Base.metadata.create_all(engine)
    with QueueSession(engine) as session:
        yield session
    engine.dispose()
"""
_TEST = """
from conftest import Email, sent

def test_it(queue):
    queue.session.add(Email())
    (email,) = queue.assert_enqueued(Email)
    assert queue.perform(email) == "completed"
    queue.session.add(Email())
    assert queue.drain(Email) == {"completed": 1}
    assert sent == [1, 2]
"""
_FAILING = """
from conftest import Email

def test_it(queue):
    queue.assert_enqueued(Email)
"""
_UNPREPARED = """
def test_it(queue):
    pass
"""


def test_the_fixture_works(pytester: pytest.Pytester) -> None:
    assert [found.value for found in entry_points(group="pytest11", name="sqlqueue")] == ["sqlqueue.pytest_plugin"]
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_TEST)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_failure_shows_the_test_and_not_the_library(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_FAILING)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*queue.assert_enqueued(Email)*"])
    result.stdout.no_fnmatch_line("*tools.py*")


def test_the_fixture_names_what_it_needs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_UNPREPARED)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*define a fixture queue_worker that returns your sqlqueue.Worker*"])
