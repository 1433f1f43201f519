"""Invalid arguments, rows and sessions raise an error that names them and the fix, before anything is sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, aliased, load_only, sessionmaker
from sqlalchemy.schema import CreateTable

import sqlqueue
from sqlqueue import (
    ArgumentError,
    AsyncQueueSession,
    Cron,
    IllegalTransitionError,
    QueueSession,
    SQLQueueError,
    Status,
    Worker,
    claim_of,
    current_job,
    hung,
)
from sqlqueue.sql import utcinsertion
from tests.suite.settlements import SETTLINGS, every_call
from tests.support.models import Account, Base, Document, Film, Job, Ledger, Mail, Order, Seat, Spool, Task

NAIVE = datetime(2020, 1, 1)


def ascii_id(value: object) -> str:
    """Return test ids without memory addresses, which differ between the processes of a run."""
    return re.sub(r" at 0x\w+", "", ascii(value))[:60]


class Recorded(QueueSession):
    """A session that records its statements."""

    sent: list[str]


@contextmanager
def refused(session: Recorded, *words: str, error: type[SQLQueueError] = ArgumentError) -> Iterator[None]:
    """Assert that ``error`` is raised with this text, and that only the start of a transaction is sent."""
    session.sent.clear()
    with pytest.raises(error) as raised:
        yield
    for word in words:
        assert word in str(raised.value)
    assert [statement for statement in session.sent if not statement.startswith("BEGIN")] == []


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Task(id=1), Task(id=2), Mail(id=1), Document(id="a"), Spool(id=1)])
        session.commit()
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Recorded]:
    """A session of the test, which is rolled back at its end."""
    engine_of_this_test = engine.execution_options()
    with Recorded(engine_of_this_test) as session:
        session.sent = []
        event.listen(engine_of_this_test, "before_cursor_execute", lambda *args: session.sent.append(args[2]))
        yield session


ENTITIES = [Ledger, Base, Task(), "Task", None, 7, object, Task.__table__, aliased(Task), select(Task)]
OF_A_MODEL: dict[str, Callable[[Any, Any], Any]] = {
    "claim": lambda s, model: s.claim(model),
    "claim_many": lambda s, model: s.claim_many(model, limit=3),
    "consume": lambda s, model: s.consume(model),
    "claiming": lambda s, model: s.claiming(model).__enter__(),
    "retry": lambda s, model: s.retry(model),
    "rescue": lambda s, model: s.rescue(model),
    "prune": lambda s, model: s.prune(model, timedelta(days=1)),
    "stats": lambda s, model: s.stats(model),
    "stats_by": lambda s, model: s.stats_by(model, Task.number),
    "overview": lambda s, model: s.overview(model),
    "timeline": lambda s, model: s.timeline(model),
    "hung": lambda s, model: hung(model),
    "errors": lambda s, model: s.errors(model),
    "enqueue": lambda s, model: s.enqueue(model, [{"id": 3}]),
}


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda entity: type(entity).__name__)
@pytest.mark.parametrize("operation", OF_A_MODEL)
def test_a_class_without_a_queue_is_rejected(session: Recorded, operation: str, entity: Any) -> None:
    with refused(session, "not a queue model", "QueueMixin"):
        OF_A_MODEL[operation](session, entity)


CLAIMS: list[tuple[str, dict[str, Any]]] = [
    *(("limit", {"limit": limit}) for limit in (0, -1, 1.5, "3", None, True)),
    *(("lease", {"limit": 1, "lease": lease}) for lease in (timedelta(0), -timedelta(seconds=1), 30, 1.5, "long")),
    *(("claimed_by", {"limit": 1, "claimed_by": name}) for name in ("", "x" * 201, 7)),
    *(("order_by", {"limit": 1, "order_by": order}) for order in ("name", ["name"])),
    *(("options", {"limit": 1, "options": options}) for options in (load_only(Task.name),)),
]


@pytest.mark.parametrize(("word", "arguments"), CLAIMS, ids=ascii_id)
def test_arguments_of_a_claim(session: Recorded, word: str, arguments: dict[str, Any]) -> None:
    with refused(session, word):
        session.claim_many(Task, **arguments)


@pytest.mark.parametrize(
    ("criterion", "word"),
    [
        (Account.name == "ada", "account"),
        (Mail.account_id == Account.id, "account"),
        (Ledger.task_id == Task.id, "ledger"),
        (True, "criterion"),
        ("name = 'a'", "criterion"),
        (text("1 = 1"), "criterion"),
        (None, "criterion"),
        (lambda task: task.id == 1, "criterion"),
        (Task.available_at < NAIVE, "naive"),
        (Task.available_at.in_([NAIVE]), "naive"),
    ],
    ids=ascii_id,
)
@pytest.mark.parametrize(
    "operation", ["claim", "consume", "retry", "cancel", "stats", "overview", "timeline", "errors"]
)
def test_criteria(session: Recorded, operation: str, criterion: Any, word: str) -> None:
    model = Mail if "account" in str(criterion) else Task
    with refused(session, word):
        getattr(session, operation)(model, criterion)


@every_call
def test_claims_of_two_models_are_rejected(session: Recorded, call: str) -> None:
    task, mail = session.claim(Task), session.claim(Mail)
    with refused(session, "Task", "Mail"):
        SETTLINGS[call](session, [task, mail])


@every_call
def test_a_claim_given_twice_is_rejected(session: Recorded, call: str) -> None:
    task = session.claim(Task)
    for twice in ([task, task], [task, claim_of(task)]):
        with refused(session, "twice"):
            SETTLINGS[call](session, twice)


@every_call
@pytest.mark.parametrize("nothing", [None, Ledger(), [None], [Ledger()], "Task"], ids=ascii_id)
def test_arguments_that_are_not_claims_are_rejected(session: Recorded, call: str, nothing: Any) -> None:
    """None is what a claim on an empty queue returns."""
    with refused(session):
        SETTLINGS[call](session, nothing)


@pytest.mark.parametrize(
    ("call", "arguments", "word"),
    [
        ("fail", ("no", 30), "retry_in"),
        ("fail", ("no", -timedelta(seconds=1)), "retry_in"),
        ("fail", (None,), "error"),
        ("fail", (7,), "error"),
        ("discard", (None,), "error"),
        ("snooze", (30,), "delay"),
        ("snooze", (-timedelta(seconds=1),), "delay"),
        ("snooze", (None,), "delay"),
        ("snooze", (datetime(2030, 1, 1, tzinfo=UTC),), "delay"),
        ("heartbeat", (30,), "lease"),
        ("heartbeat", (timedelta(0),), "lease"),
        ("complete", ("a result",), "result"),
        ("cancel", (Task.id == 1,), "criteria"),
    ],
)
def test_arguments_of_settling(session: Recorded, call: str, arguments: tuple[Any, ...], word: str) -> None:
    task = session.claim(Task)
    with refused(session, word):
        getattr(session, call)(task, *arguments)
    assert claim_of(task).attempt == 1


@pytest.mark.parametrize("age", [30, -timedelta(days=1), None, "30 days"])
def test_prune(session: Recorded, age: Any) -> None:
    with refused(session, "older_than"):
        session.prune(Task, age)


@pytest.mark.parametrize(
    "by", ["number", None, 7, Mail.topic, Mail.account, text("number"), Ledger.task_id], ids=ascii_id
)
def test_stats_by(session: Recorded, by: Any) -> None:
    model = Mail if by is Mail.account else Task
    with refused(session, f"not a column of {model.__name__}"):
        session.stats_by(model, by)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        *(({"bucket": bucket}, "bucket") for bucket in (3_600, timedelta(0), -timedelta(hours=1), None)),
        *(({"since": since}, "since") for since in (86_400, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC), None)),
        *(({"bucket": timedelta(hours=hours)}, "divides a day") for hours in (5, 25, 36)),
        ({"bucket": timedelta(seconds=8)}, "maximum is 10,000 buckets"),
        ({"bucket": timedelta(days=10_001)}, "as many days"),
        ({"bucket": timedelta(days=7), "since": timedelta(days=10_001)}, "as many days"),
    ],
    ids=ascii_id,
)
def test_timeline(session: Recorded, arguments: dict[str, Any], word: str) -> None:
    with refused(session, word):
        session.timeline(Task, **arguments)


@pytest.mark.parametrize("name", ["claim", "stats", "rescue", "errors", "consume", "retry"])
def test_asyncio_sessions_are_rejected(name: str) -> None:
    with pytest.raises(ArgumentError, match="run_sync"):
        getattr(sqlqueue, name)(AsyncSession(create_async_engine("sqlite+aiosqlite://")), Task)


@pytest.mark.parametrize("name", ["complete", "enqueue", "release", "cancel"])
def test_settling_with_an_async_session_is_rejected(name: str) -> None:
    with pytest.raises(ArgumentError, match="run_sync"):
        getattr(sqlqueue, name)(AsyncSession(create_async_engine("sqlite+aiosqlite://")), [])


def test_engines_and_connections_are_rejected() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        for wrong in (engine, connection, Session, None):
            with pytest.raises(ArgumentError, match="Session"):
                sqlqueue.claim(wrong, Task)  # type: ignore[arg-type]
    engine.dispose()


# -- rows that cannot be enqueued raise an error that names the reason, before anything is sent -----------------------


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((Task, [{"nam": "x"}]), {}, "nam"),
        ((Task, [{"name": "x"}, {"name": "y", "nam": "x"}]), {}, "row 1"),
        ((Task, [{"available_at": NAIVE}]), {}, "naive"),
        ((Task, [{"created_at": NAIVE}]), {}, "naive"),
        ((Task, [{"name": "x"}, {"available_at": NAIVE}]), {}, "naive"),
        ((Task, {"name": "x"}), {}, "rows"),
        ((Task, ["name"]), {}, "row 0"),
        ((Task, [Task()]), {}, "row 0"),
        ((Task,), {}, "rows"),
        ((Task(), [{"name": "x"}]), {}, "not a queue model"),
        ((None,), {}, "NoneType"),
        (([None],), {}, "NoneType"),
        (({"name": "x"},), {}, "dictionaries need their model"),
        (([{"name": "x"}],), {}, "dictionaries need their model"),
        ((Ledger(task_id=1),), {}, "Ledger"),
        (([Task(), Ledger(task_id=1)],), {}, "Ledger"),
        ((Task(available_at=NAIVE),), {}, "naive"),
        ((Task(created_at=NAIVE),), {}, "naive"),
        ((Task(available_at=date(2020, 1, 1)),), {}, "datetime"),
        ((Document(id="x", available_at=NAIVE),), {"on_conflict": "replace"}, "naive"),
        ((Document(id="x"),), {"on_conflict": "update"}, "on_conflict"),
        ((Document(id="x"),), {"on_conflict": None}, "on_conflict"),
        ((Document, [{"version": 1}]), {"on_conflict": "replace"}, "id"),
        ((Document, [{"id": "x"}, {"version": 1}]), {"on_conflict": "replace"}, "id"),
        (([Document(id="x"), Task()],), {"on_conflict": "ignore"}, "id"),
        ((Task, [{"name": "x"}]), {"copy": True}, "COPY"),
    ],
    ids=ascii_id,
)
def test_rows_and_options_of_enqueue(
    session: Recorded, arguments: tuple[Any, ...], options: dict[str, Any], word: str
) -> None:
    with refused(session, word):
        session.enqueue(*arguments, **options)


def test_naive_by_add(session: Recorded) -> None:
    session.add(Task(available_at=NAIVE))
    with refused(session, "naive", "time zone"):
        session.flush()


def test_rows_with_a_part_of_their_key_missing_stop_nothing(tmp_path: Path) -> None:
    """SQLite allows NULL in a key column that is not declared NOT NULL; such a row cannot be selected by key, and is
    skipped."""
    engine = create_engine(f"sqlite:///{tmp_path}/seats.db")
    declared = str(CreateTable(Seat.__table__).compile(engine))
    with engine.begin() as connection:
        connection.execute(text(declared.replace("line VARCHAR(20) NOT NULL", "line VARCHAR(20)")))
        connection.execute(insert(Seat.__table__), [{"line": line, "number": 1} for line in (None, None, "a")])
    with QueueSession(engine) as session, session.begin():
        assert [seat.line for seat in session.claim_many(Seat, limit=9)] == ["a"]
    engine.dispose()


# -- wrong input is refused at once, with the way out, instead of making a task that nobody ever finds or runs --------


@pytest.fixture
def worker() -> Worker:
    return Worker(sessionmaker(create_engine("sqlite://")))


@pytest.mark.parametrize("status", ["done", "Available", "", " available", 3])
@pytest.mark.parametrize(("model", "name"), [(Task, "status"), (Order, "queue_status")])
def test_a_status_that_is_none(session: Recorded, model: Any, name: str, status: Any) -> None:
    told = rf"{name}={status!r} is not a status: .*available, scheduled"
    with pytest.raises(ArgumentError, match=told):
        session.enqueue(model, [{name: status}])
    with pytest.raises(ArgumentError, match=told):
        session.enqueue(model(**{name: status}))
    session.rollback()
    session.add(model(**{name: status}))
    with pytest.raises(ArgumentError, match=told):
        session.flush()
    session.rollback()
    session.add(task := model())
    session.flush()
    setattr(task, name, status)
    with pytest.raises(ArgumentError, match=told):
        session.flush()


def test_a_row_with_an_unknown_status_can_be_changed_otherwise(session: Recorded) -> None:
    session.add(task := Task())
    session.flush()
    session.execute(update(Task).values(status="odd"))
    session.refresh(task)
    task.name = "changed"
    session.flush()
    task.status = Status.COMPLETED
    session.flush()


def test_the_default_of_a_time_is_no_time_that_is_given(session: Recorded) -> None:
    before = session.stats(Task)["available"]
    default: Any = Task.__table__.c.available_at.default
    assert isinstance(default.arg, utcinsertion)
    session.add(task := Task(available_at=default.arg))  # as libraries do that set the defaults of new instances
    session.flush()
    session.enqueue(Task, [{"available_at": default.arg}])
    assert task.status == "available"
    assert session.stats(Task)["available"] == before + 2


@pytest.mark.parametrize("expression", ["0 0 2 * * *", "0 3 * *", "", None])
def test_a_cron_expression_has_five_fields(expression: Any) -> None:
    with pytest.raises(ArgumentError, match=r"is not a cron expression: give five fields"):
        Cron(expression)


@pytest.mark.parametrize("where", [Film.stage == "draft", Film.stage.in_(["cut", "draft"])], ids=["one", "some"])
def test_a_handler_for_a_stage_that_does_not_exist(worker: Worker, where: Any) -> None:
    with pytest.raises(ArgumentError, match="Film has no stage 'draft': its stages are cut, dub, print"):
        worker.handler(Film, where)(lambda film: None)
    worker.handler(Film, Film.stage.in_(["cut", "dub"]))(lambda film: None)
    worker.handler(Film, Film.stage == "print")(lambda film: None)


def test_a_handler_for_a_session_of_the_other_kind(worker: Worker) -> None:
    coroutines = Worker(async_sessionmaker(create_async_engine("sqlite+aiosqlite://")))

    async def coroutine(session: QueueSession, task: Task) -> None: ...

    async def unresolved(session: Session, task: Task) -> None: ...

    def function(session: AsyncQueueSession, task: Task) -> None: ...

    coroutine.__annotations__["session"], function.__annotations__["session"] = QueueSession, AsyncQueueSession
    for wrong in (coroutine, unresolved):
        with pytest.raises(ArgumentError, match="a coroutine function gets an AsyncSession"):
            coroutines.handler(Task)(wrong)
    with pytest.raises(ArgumentError, match="a function gets a Session"):
        worker.handler(Task)(function)

    async def right(session: AsyncSession, task: Task) -> None: ...

    coroutines.handler(Task)(right)


def test_the_job_outside_of_a_handler() -> None:
    with pytest.raises(LookupError, match=r"current_job\(\) is called outside of a handler"):
        current_job()


def test_a_call_of_a_function_task(worker: Worker) -> None:
    @worker.task(Job, name="add")
    def add(a: int) -> None: ...

    task: Any = add
    for wrong in (1, None):
        with pytest.raises(ArgumentError, match="add: give the session first, as in enqueue"):
            task.enqueue(wrong)
    for priority in ("high", 1.5, True):
        with pytest.raises(ArgumentError, match=r"priority=.*: give an integer"):
            task.options(priority=priority)
    with pytest.raises(ArgumentError, match="is naive"):
        task.options(available_at=datetime(2026, 1, 1))
    with pytest.raises(ArgumentError, match="queue_name: not a column of Job"):
        task.options(queue_name="x")
    task.options(priority=-1, available_at=datetime(2026, 1, 1, tzinfo=UTC))


def test_running_a_worker_in_a_loop(worker: Worker) -> None:
    async def run() -> None:
        with pytest.raises(IllegalTransitionError, match=r"await worker.serve\(\)"):
            worker.run()

    asyncio.run(run())
