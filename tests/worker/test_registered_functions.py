"""Which functions a worker accepts as tasks, and how their arguments are stored."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.dialects import oracle

from sqlqueue import ArgumentError
from sqlqueue.dialects import json_type
from tests.support.models import Job, Mail, Task
from tests.worker.function_jobs import asynchronous, example, first_by_annotation, none, not_first, offline

if TYPE_CHECKING:
    from somewhere import Elsewhere


def of_an_unknown(what: Elsewhere) -> None: ...


def of_a_lock(what: pytest.FixtureRequest) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda: None, {}, "has no name: give one"),
        (7, {}, "7 is not a function"),
        (none, {"name": ""}, "name='': give a non-empty string"),
        (none, {"name": "x" * 256}, "256 characters; give at most 255"),
        (none, {"concurrency": 0}, "concurrency=0: give a positive integer"),
        (none, {"timeout": 5}, "timeout=5: give a positive timedelta"),
        (asynchronous, {}, "asynchronous: a coroutine that takes a session needs a worker of an async_sessionmaker"),
        (of_an_unknown, {}, "'Elsewhere' is not defined. Import it at the top level"),
        (of_a_lock, {}, "of_a_lock: its arguments cannot be stored as JSON: Unable to generate pydantic-core schema"),
    ],
)
def test_functions_that_cannot_be_tasks(function: Any, options: Any, message: str) -> None:
    worker = offline()
    with pytest.raises(ArgumentError, match=message):
        worker.task(Job, **options)(function)
    assert worker.handlers == []


@pytest.mark.parametrize("model", [Task, Mail, int])
def test_models_without_jobmixin_are_rejected(model: Any) -> None:
    with pytest.raises(ArgumentError, match=r"derive it from sqlqueue.JobMixin|is not a queue model"):
        offline().task(model)(none)


async def nothing_async(to: str) -> None: ...


def test_all_tasks_of_a_model_share_one_handler() -> None:
    worker = offline()
    worker.task(Job, concurrency=3)(none)
    worker.task(Job, timeout=timedelta(1))(not_first)
    (handler,) = worker.handlers
    assert (handler.concurrency, handler.timeout, handler.takes_session) == (3, timedelta(1), False)
    worker.task(Job, concurrency=3)(first_by_annotation)
    (handler,) = worker.handlers
    assert (handler.concurrency, handler.timeout, handler.takes_session) == (3, timedelta(1), True)
    with pytest.raises(ArgumentError, match="concurrency=4: it is 3 for all tasks of Job"):
        worker.task(Job, concurrency=4)(example)
    with pytest.raises(ArgumentError, match=r"a task '.*none' already exists"):
        worker.task(Job)(none)
    with pytest.raises(ArgumentError, match=r"nothing_async is a coroutine function, .* Give it a separate model"):
        worker.task(Job)(nothing_async)
    assert worker.handlers == [handler]


_WITHOUT_PYDANTIC = """\
import sys
sys.modules["pydantic"] = None
from tests.worker.plain_tasks import Job, worker, plain, moment
worker.task(Job)(plain)
try:
    worker.task(Job)(moment)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_pydantic_is_optional() -> None:
    run = subprocess.run([sys.executable, "-c", _WITHOUT_PYDANTIC], check=True, capture_output=True, text=True)
    assert run.stdout == (
        "ArgumentError tests.worker.plain_tasks.moment: at, key: arguments of these types need pydantic:"
        " pip install 'sqlalchemy-queue[pydantic]', the distribution of sqlqueue\n"
    )


def test_json_arguments_without_type_hints() -> None:
    kind = pickle.loads(pickle.dumps(json_type())).dialect_impl(oracle.dialect())
    assert kind.compile(oracle.dialect()) == "CLOB"
    stored = kind.bind_processor(oracle.dialect())({"ä": [1, None]})
    assert stored == '{"\\u00e4": [1, null]}'
    assert kind.process_result_value(stored, oracle.dialect()) == {"ä": [1, None]}
    assert kind.process_bind_param(None, oracle.dialect()) is kind.process_result_value(None, oracle.dialect()) is None
