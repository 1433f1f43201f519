"""Function jobs: which functions a worker accepts, how arguments are stored and passed on, and which are refused."""

from __future__ import annotations

import enum
import pickle
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.dialects import oracle
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import ArgumentError, AsyncQueueSession, QueueSession, Worker
from sqlqueue.dialects import json_type
from tests.support.harness import Database
from tests.support.models import Job, Ledger, Mail, Task
from tests.support.rows import clock, count
from tests.support.workers import Workers, eventually, of_kind, statuses


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float | None = None


@dataclass
class Line:
    points: list[Point] = field(default_factory=list)


@dataclass
class Tree:
    branches: list[Tree]


class Person(BaseModel):
    name: str = Field(min_length=2)
    born: date


def offline(*, is_async: bool = False) -> Worker:
    """Return a worker that is never run."""
    return Worker(async_sessionmaker(class_=AsyncQueueSession) if is_async else sessionmaker(class_=QueueSession))


def first_by_annotation(db: Session, to: str) -> None: ...


def none(to: str) -> None: ...


def not_first(to: str, db: str = "", *, session: str = "") -> None: ...


async def asynchronous(db: AsyncSession, to: str) -> None: ...


def example(
    number: int, name: Literal["a", 1] = "a", *, point: Point | None = None, names: dict[str, str | None] | None = None
) -> None: ...


def test_a_call_comes_back_as_it_was_made(db: Database, workers: Workers) -> None:
    calls: list[tuple[Any, ...]] = []

    def plain(
        number: int,
        text: str,
        *rest: list[float | None],
        flag: bool = True,
        point: Point,
        any_: Any = None,
        **more: str,
    ) -> None:
        calls.append((number, text, rest, flag, point, any_, more))

    def rich(
        at: datetime, person: Person, colour: Colour, line: Line, *, key: uuid.UUID, price: Decimal, raw: bytes,
        on: date = date(2000, 1, 1), by: timedelta | None = None,
    ) -> None:  # fmt: skip
        calls.append((at, person, colour, line, key, price, raw, on, by))

    worker = workers.make()
    first, second = (worker.task(Job)(of_kind(db, function)) for function in (plain, rich))
    deep = {"ключ": [1, -1.5e-7, None, True, {"emoji \N{GRINNING FACE}": '"\\'}], "": 2**63 - 1}
    moment, key = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC), uuid.uuid4()
    ada, line = Person(name="Ada", born=date(1815, 12, 10)), Line([Point(1), Point(2, 0.5)])
    with db.begin() as session:
        job = session.pass_to(first.enqueue, -1, "", [0.1, None], [], point=Point(7), any_=deep, other="ß")
        assert job.id is not None
        session.pass_to(second.enqueue, moment, ada, Colour.RED, line, key=key, price=Decimal("1.10"), raw=b"\xff\0")
        assert not calls
    workers.start(worker)
    eventually(lambda: list(statuses(db, Job).values()) == ["completed"] * 2)
    assert sorted(calls, key=len) == [
        (-1, "", ([0.1, None], []), True, Point(7), deep, {"other": "ß"}),
        (moment, ada, Colour.RED, line, key, Decimal("1.10"), b"\xff\0", date(2000, 1, 1), None),
    ]


def test_a_call_and_its_completion_are_one_commit(db: Database, workers: Workers) -> None:
    """A function that takes no session may be a task beside it."""
    noted: list[str] = []

    def note(text: str) -> None:
        noted.append(text)

    def write(session: Any, number: int) -> None:
        session.add(Ledger(task_id=number))
        if number > 1:
            raise ValueError("too many")

    worker = workers.make()
    task = worker.task(Job, name="write")(of_kind(db, write))
    other = worker.task(Job, name="note")(of_kind(db, note))
    with db.begin() as session:
        session.pass_to(task.enqueue, 1)
        session.pass_to(task.enqueue, number=2)
        session.pass_to(other.enqueue, "noted")
    stored = [
        {"task": "write", "arguments": {"nummer": 1}},
        {"task": "write", "arguments": {"number": "1"}},
        {"task": "write", "arguments": [1]},
        {"task": "write"},
    ]
    for values in stored:
        db.insert(Job, [values])
    workers.start(worker)
    eventually(lambda: sorted(statuses(db, Job).values()) == ["completed"] * 2 + ["retryable"] * 5)
    with db.engine.connect() as connection:
        errors = connection.scalars(select(Job.error).order_by(Job.id)).all()
    cannot = "ArgumentError: write(number: 'int') cannot be called with the stored arguments: "
    assert errors == [
        None,
        "ValueError: too many",
        None,
        f"{cannot}nummer is not a parameter and number is missing",
        f"{cannot}number: expected int, got str",
        f"{cannot}they are not a JSON object",
        f"{cannot}number is missing",
    ]
    assert count(db, Ledger) == 1
    assert noted == ["noted"]


def test_when_and_where_a_call_is_enqueued(db: Database) -> None:
    task = offline().task(Job, name="nothing")(lambda: None)
    before = clock(db)
    with db.begin() as session:
        urgent = task.options(priority=-3, topic="urgent", max_attempts=1)
        jobs = [
            session.pass_to(each.enqueue)
            for each in (task, urgent, urgent.options(delay=timedelta(hours=1)), task.options(available_at=before))
        ]
        for job in jobs:
            session.refresh(job)
    assert [(job.status, job.priority, job.topic, job.max_attempts) for job in jobs] == [
        ("available", 0, "default", 5),
        ("available", -3, "urgent", 1),
        ("scheduled", -3, "urgent", 1),
        ("scheduled", 0, "default", 5),
    ]
    assert timedelta(hours=1) <= jobs[2].available_at - before < timedelta(hours=1, seconds=30)
    assert abs(jobs[3].available_at - before) <= db.case.time_resolution


def test_a_registered_function_can_be_called_directly() -> None:
    """Defaults are those of the function when it is called, and are not stored."""

    def greet(to: str, /, greeting: str = "hello", *, loud: bool = False) -> tuple[str, str, bool]:
        """Greet."""
        return to, greeting, loud

    task = offline().task(Job)(greet)
    assert (task("ada"), task("ada", loud=True)) == (("ada", "hello", False), ("ada", "hello", True))
    assert (task.__doc__, task.name) == (
        "Greet.",
        f"{__name__}.test_a_registered_function_can_be_called_directly.<locals>.greet",
    )
    assert task.job("ada", loud=True).arguments == {"to": "ada", "loud": True}
    assert task.perform(Job(task=task.name, arguments={"loud": True, "to": "ada"})) == ("ada", "hello", True)


def first_by_name(session: Any, to: str) -> None: ...


def first_by_a_subclass(db: QueueSession, /, to: str) -> None: ...


def by_keyword_alone(*, session: str = "", to: str = "ada") -> None: ...


async def asynchronous_by_subclass(db: AsyncQueueSession, to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (first_by_name, True),
        (first_by_annotation, True),
        (first_by_a_subclass, True),
        (none, False),
        (not_first, False),
        (by_keyword_alone, False),
        (asynchronous, True),
        (asynchronous_by_subclass, True),
    ],
)
def test_a_session_comes_first_and_is_not_an_argument(function: Any, takes: bool) -> None:
    worker = offline(is_async=function.__name__.startswith("async"))
    task = worker.task(Job)(function)
    assert task.takes_session is worker.handlers[0].takes_session is takes
    assert task.job(to="ada").arguments == {"to": "ada"}


def of_a_point(point: Point) -> None: ...


def of_a_float(number: float) -> None: ...


def of_anything(value: Any) -> None: ...


def of_a_person(person: Person, raw: bytes = b"", value: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "message"),
    [
        (example, (), {}, "missing a required argument: 'number'"),
        (example, (1, "a", 2), {}, "too many positional arguments"),
        (example, (1,), {"nombre": 2}, "unexpected keyword argument 'nombre'"),
        (example, ("1",), {}, "number: expected int, got str"),
        (example, (True,), {}, "number: expected int, got bool"),
        (example, (1, "b"), {}, "name: expected .*, got str"),
        (example, (1,), {"names": {"a": 1}}, "names: expected .*, got dict"),
        (example, (2**63,), {}, "number .*cannot be stored as JSON"),
        (of_a_float, (float("nan"),), {}, "number .*cannot be stored as JSON"),
        (of_a_point, (Line(),), {}, "point: expected Point, got Line"),
        (of_a_point, (Point("1"),), {}, "point.x: expected int, got str"),  # type: ignore[arg-type]
        (of_anything, (datetime.now(UTC),), {}, "value .*cannot be stored as JSON"),
        (of_anything, ({1: 2},), {}, "value .*cannot be stored as JSON"),
        (of_anything, ((1, 2),), {}, "value .*cannot be stored as JSON"),
        (of_a_person, ({"name": "A", "born": "1815-12-10"},), {}, "person.name: String should have at least 2"),
        (of_a_person, (Person(name="Ada", born=date(1815, 12, 10)), "text"), {}, "raw: Input should be a valid bytes"),
        (of_a_person, (Person(name="Ada", born=date(1815, 12, 10)),), {"value": date.today()}, "value"),
    ],
)
def test_a_wrong_call_is_rejected_before_anything_is_sent(function: Any, args: Any, kwargs: Any, message: str) -> None:
    task = offline().task(Job)(function)
    with Session() as session, pytest.raises(ArgumentError, match=message) as refused:
        task.enqueue(session, *args, **kwargs)
    assert str(refused.value).startswith(f"{task.name}(")
    with pytest.raises(ArgumentError, match=message):
        task.enqueue(AsyncSession(), *args, **kwargs)  # not only once it is awaited


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (7, "point: expected the fields of Point"),
        ({"x": 1, "z": 2}, "point: expected the fields of Point"),
        ({"x": "1"}, "point.x: expected int, got str"),
        ({"y": 1.5}, r"point: .*missing 1 required positional argument: 'x'"),
    ],
)
def test_a_dataclass_that_has_changed(point: Any, message: str) -> None:
    task = offline().task(Job)(of_a_point)
    with pytest.raises(ArgumentError, match=rf"cannot be called with the stored arguments: {message}"):
        task.arguments_of(Job(arguments={"point": point}))


def of_a_tree(tree: Tree) -> None: ...


def test_a_dataclass_within_itself() -> None:
    task, tree = offline().task(Job)(of_a_tree), Tree([Tree([]), Tree([])])
    job = task.job(tree)
    assert job.arguments == {"tree": {"branches": [{"branches": []}, {"branches": []}]}}
    assert task.arguments_of(job) == {"tree": tree}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "other"}, "task: not a column of Job that a call may set"),
        ({"colour": "red"}, "colour: not a column of Job"),
        ({"delay": 5}, "give a timedelta of at least zero"),
        ({"delay": timedelta(1), "available_at": datetime.now(UTC)}, "are both given"),
    ],
)
def test_invalid_options_are_rejected(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        offline().task(Job)(none).options(**options)


# -- which functions a worker accepts as tasks, and how their arguments are stored ------------------------------------

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


def plain(session: Session, point: Point, names: list[str | None]) -> None: ...


def moment(at: datetime, point: Point, key: uuid.UUID) -> None: ...


def test_pydantic_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pydantic", "sqlqueue.functions.validated"):
        monkeypatch.setitem(sys.modules, name, None)
    worker = offline()
    worker.task(Job)(plain)
    with pytest.raises(ArgumentError) as refused:
        worker.task(Job)(moment)
    assert str(refused.value) == (
        f"{__name__}.moment: at, key: arguments of these types need pydantic:"
        " pip install 'sqlalchemy-queue[pydantic]', the distribution of sqlqueue"
    )


def test_json_arguments_without_type_hints() -> None:
    kind = pickle.loads(pickle.dumps(json_type())).dialect_impl(oracle.dialect())
    assert kind.compile(oracle.dialect()) == "CLOB"
    stored = kind.bind_processor(oracle.dialect())({"ä": [1, None]})
    assert stored == '{"\\u00e4": [1, null]}'
    assert kind.process_result_value(stored, oracle.dialect()) == {"ä": [1, None]}
    assert kind.process_bind_param(None, oracle.dialect()) is kind.process_result_value(None, oracle.dialect()) is None
