"""Invalid arguments, rows and sessions raise an error that names them and the fix, before anything is sent."""

from __future__ import annotations

import asyncio
import math
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
    Every,
    IllegalTransitionError,
    LinearBackoff,
    QueueOptions,
    QueueSession,
    SQLQueueError,
    Status,
    Worker,
    abandoned,
    claim_of,
    current_job,
)
from sqlqueue.sql import utcinsertion
from tests.suite.settlements import SETTLINGS, every_call
from tests.support.models import (
    Account,
    Base,
    Chore,
    Crawl,
    Document,
    Film,
    Job,
    Ledger,
    Listing,
    Mail,
    Order,
    Outgoing,
    Report,
    Seat,
    Slot,
    Task,
    Visit,
)

NAIVE = datetime(2020, 1, 1)
ENDLESS, HOURLY = timedelta.max, Every(timedelta(hours=1))
SURROGATE, NUL = "a\udc80", "a\0b"
NO_TEXTS = (SURROGATE, NUL, 7)
"""What no engine can store in a column of text."""


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
        session.add_all([Task(id=1), Task(id=2), Mail(id=1), Document(id="a"), Film(id=1)])
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
    "abandoned": lambda s, model: abandoned(model),
    "errors": lambda s, model: s.errors(model),
    "enqueue": lambda s, model: s.enqueue(model, [{"id": 3}]),
}


@pytest.mark.parametrize("operation", OF_A_MODEL)
def test_a_class_without_a_queue_is_rejected(session: Recorded, operation: str) -> None:
    for entity in ENTITIES:
        with refused(session, "not a queue model", "QueueMixin"):
            OF_A_MODEL[operation](session, entity)


CRITERIA: list[tuple[Any, str]] = [
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
]


@pytest.mark.parametrize(
    "operation", ["claim", "consume", "retry", "cancel", "stats", "overview", "timeline", "errors"]
)
def test_criteria(session: Recorded, operation: str) -> None:
    for criterion, word in CRITERIA:
        with refused(session, word):
            getattr(session, operation)(Mail if word == "account" else Task, criterion)


@every_call
def test_claims_that_cannot_be_settled(session: Recorded, call: str) -> None:
    """None is what a claim on an empty queue returns."""
    task, mail = session.claim(Task), session.claim(Mail)
    with refused(session, "Task", "Mail"):
        SETTLINGS[call](session, [task, mail])
    for twice in ([task, task], [task, claim_of(task)]):
        with refused(session, "twice"):
            SETTLINGS[call](session, twice)
    for nothing in (None, Ledger(), [None], [Ledger()], "Task"):
        with refused(session):
            SETTLINGS[call](session, nothing)


OF_SETTLING: list[tuple[str, tuple[Any, ...], str]] = [
    ("fail", ("no", 30), "retry_in"),
    ("fail", ("no", -timedelta(seconds=1)), "retry_in"),
    ("fail", ("no", ENDLESS), "at most 100 years"),
    ("fail", (None,), "error"),
    ("fail", (7,), "error"),
    ("discard", (None,), "error"),
    ("snooze", (30,), "delay"),
    ("snooze", (-timedelta(seconds=1),), "delay"),
    ("snooze", (ENDLESS,), "at most 100 years"),
    ("snooze", (None,), "delay"),
    ("snooze", (datetime(2030, 1, 1, tzinfo=UTC),), "delay"),
    ("heartbeat", (30,), "lease"),
    ("heartbeat", (timedelta(0),), "lease"),
    ("heartbeat", (ENDLESS,), "at most 100 years"),
    ("complete", ("a result",), "result"),
    ("cancel", (Task.id == 1,), "criteria"),
]


def test_arguments_of_settling(session: Recorded) -> None:
    task = session.claim(Task)
    for name, arguments, word in OF_SETTLING:
        with refused(session, word):
            getattr(session, name)(task, *arguments)
    assert claim_of(task).attempt == 1
    for name, options in (("cancel", {}), ("discard", {"error": "no"})):
        with refused(session):
            getattr(session, name)(task, limit=1, **options)


def test_a_claim_that_only_locks_has_no_heartbeat(session: Recorded) -> None:
    task = session.claim(Task, lease=None)
    with refused(session, "no lease", error=IllegalTransitionError):
        session.heartbeat(task)


def test_sessions_of_the_other_kind_engines_and_connections_are_rejected() -> None:
    asyncio_session = AsyncSession(create_async_engine("sqlite+aiosqlite://"))
    for name in ("claim", "stats", "rescue", "errors", "consume", "retry", "complete", "enqueue", "release", "cancel"):
        with pytest.raises(ArgumentError, match="run_sync"):
            getattr(sqlqueue, name)(asyncio_session, Task if name in OF_A_MODEL else [])
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        for wrong in (engine, connection, Session, None):
            with pytest.raises(ArgumentError, match="Session"):
                sqlqueue.claim(wrong, Task)  # type: ignore[arg-type]
    engine.dispose()


# -- calls with arguments that no engine has to look at ---------------------------------------------------------------


def call(name: str, *arguments: Any, **options: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return name, arguments, options


def chore(**values: Any) -> dict[str, Any]:
    return {"unique_key": "a", "task": "app.chore", "schedule": HOURLY, **values}


REFUSED: dict[str, list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "limit": [
        *(call("claim_many", Task, limit=limit) for limit in (0, -1, 1.5, "3", None, True)),
        *(call(name, Task, limit=0) for name in ("cancel", "retry", "rescue", "rerun")),
        call("discard", Task, error="no", limit=0),
    ],
    "lease": [call("claim", Task, lease=lease) for lease in (timedelta(0), -timedelta(seconds=1), 30, 1.5, "long")],
    "claimed_by": [call("claim", Task, claimed_by=name) for name in ("", "x" * 201, *NO_TEXTS)],
    "order_by": [call("claim", Task, order_by=order) for order in ("name", ["name"])],
    "options": [call("claim", Task, options=load_only(Task.name))],
    "at most 100 years": [
        call("claim", Task, lease=ENDLESS),
        call("enqueue", Task, [{}], delay=ENDLESS),
        call("prune", Task, ENDLESS),
        call("timeline", Task, since=ENDLESS),
    ],
    "older_than": [call("prune", Task, age) for age in (30, -timedelta(days=1), None, "30 days")],
    "retention": [call("prune", Task)],
    "not a column of Task": [
        call("stats_by", Task, by) for by in ("number", None, 7, Mail.topic, text("number"), Ledger.task_id)
    ],
    "not a column of Mail": [call("stats_by", Mail, Mail.account)],
    "bucket": [call("timeline", Task, bucket=bucket) for bucket in (3_600, timedelta(0), -timedelta(hours=1), None)],
    "since": [
        call("timeline", Task, since=since) for since in (86_400, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC), None)
    ],
    "divides a day": [call("timeline", Task, bucket=timedelta(hours=hours)) for hours in (5, 25, 36)],
    "maximum is 10,000 buckets": [call("timeline", Task, bucket=timedelta(seconds=8))],
    "as many days": [
        call("timeline", Task, bucket=timedelta(days=10_001)),
        call("timeline", Task, bucket=timedelta(days=7), since=timedelta(days=10_001)),
    ],
    "limit=0": [call("find", Task, limit=0)],
    "not a queue model": [
        call("find", Account),
        call("discard", Account, error="b"),
        call("enqueue", Task(), [{"name": "x"}]),
    ],
    "requires error=": [call("discard", Task), call("discard", Task, Task.id == 7)],
    "by criteria with discard": [
        call("discard", []),
        call("discard", [], "a", error="b"),
        call("discard", [], Task.id == 7, error="b"),
    ],
    "give an exception or a string": [call("discard", Task, error=7)],
    "claims of Crawl take turns by site": [call("claim", Crawl, order_by=Crawl.priority)],
    "first": [call("limits", Visit, first=0)],
    "Task has no limits: derive it from LimitMixin": [call("set_limit", Task, "a", 1)],
    "give an integer from 0 to 10,000": [
        call("set_limit", Visit, "a", limit) for limit in (-1, 10_001, 10**20, True, 1.5)
    ],
    "key='': give a non-empty string": [call("set_limit", Visit, "", 1)],
    "key=": [call("set_limit", Visit, key, 1) for key in NO_TEXTS],
    "paused_by=": [call("pause", Mail, paused_by=name) for name in NO_TEXTS],
    "topic=": [call("pause", Mail, topic) for topic in NO_TEXTS],
    "destination=": [call("enqueue", Outgoing, [{"payload": {}, "destination": name}]) for name in NO_TEXTS],
    "a key=": [
        call("claim", Mail, criterion)
        for value in NO_TEXTS
        for criterion in (Mail.topic == value, Mail.topic.in_(["a", value]))
    ],
    # rows
    "nam": [call("enqueue", Task, [{"nam": "x"}])],
    "row 1": [call("enqueue", Task, [{"name": "x"}, {"name": "y", "nam": "x"}])],
    "naive": [
        call("enqueue", Task, [{"available_at": NAIVE}]),
        call("enqueue", Task, [{"created_at": NAIVE}]),
        call("enqueue", Task, [{"name": "x"}, {"available_at": NAIVE}]),
        call("enqueue", Task(available_at=NAIVE)),
        call("enqueue", Task(created_at=NAIVE)),
        call("enqueue", Document(id="x", available_at=NAIVE), on_conflict="replace"),
    ],
    "rows": [call("enqueue", Task, {"name": "x"}), call("enqueue", Task)],
    "row 0": [call("enqueue", Task, ["name"]), call("enqueue", Task, [Task()])],
    "NoneType": [call("enqueue", None), call("enqueue", [None])],
    "dictionaries need their model": [call("enqueue", {"name": "x"}), call("enqueue", [{"name": "x"}])],
    "Ledger": [call("enqueue", Ledger(task_id=1)), call("enqueue", [Task(), Ledger(task_id=1)])],
    "datetime": [call("enqueue", Task(available_at=date(2020, 1, 1)))],
    "on_conflict": [call("enqueue", Document(id="x"), on_conflict=how) for how in ("update", None)],
    "id": [
        call("enqueue", Document, [{"version": 1}], on_conflict="replace"),
        call("enqueue", Document, [{"id": "x"}, {"version": 1}], on_conflict="replace"),
        call("enqueue", [Document(id="x"), Task()], on_conflict="ignore"),
    ],
    "line=None: each part": [call("enqueue", Seat, [{"line": None, "number": 1}])],
    "COPY": [call("enqueue", Task, [{"name": "x"}], copy=True)],
    # declarations of schedules
    "unique_key for each Chore": [call("declare_schedules", Chore, [{"task": "x", "schedule": HOURLY}])],
    "derive the model from UniqueMixin": [call("declare_schedules", Report, [{"schedule": HOURLY}])],
    "'a' is declared twice": [call("declare_schedules", Chore, [chore(), chore()])],
    "schedule is missing": [call("declare_schedules", Chore, [{"task": "x", "unique_key": "a"}])],
    "'hourly' is not a schedule": [call("declare_schedules", Chore, [chore(schedule="hourly")])],
    "no attribute nots": [call("declare_schedules", Chore, [chore(nots="")])],
    "leave out attempt, status": [call("declare_schedules", Chore, [chore(status="available", attempt=3)])],
    "not SQL expressions": [call("declare_schedules", Chore, [chore(note=Chore.task)])],
    "not Report": [call("declare_schedules", Chore, [Report(id=1, schedule=HOURLY)])],
    "iterable of dictionaries": [call("declare_schedules", Chore, chore())],
    "derive it from RecurringMixin": [call("declare_schedules", Task, [{"id": 1}])],
    "remove_missing=True": [call("declare_schedules", Chore, [], Chore.id == 1)],
}


@pytest.mark.parametrize("word", REFUSED)
def test_arguments(session: Recorded, word: str) -> None:
    for name, arguments, options in REFUSED[word]:
        with refused(session, word):
            getattr(session, name)(*arguments, **options)
        assert name != "declare_schedules" or not session.in_transaction()
        session.rollback()


WRONG_KEYS = {
    "empty": "",
    "a blank at the end": "a ",
    "a surrogate": SURROGATE,
    "NUL": NUL,
    "a number": 7,
    "bytes": b"a",
    "too long": "x" * 256,
}
KEYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "topic": (Mail, {}),
    "unique_key": (Listing, {}),
    "limit_key": (Visit, {}),
    "stage": (Film, {}),
    "task": (Job, {}),
    "message_key": (Outgoing, {"payload": {}}),
}


@pytest.mark.parametrize("kind", WRONG_KEYS)
@pytest.mark.parametrize("name", KEYS)
def test_keys_that_engines_differ_about(session: Recorded, name: str, kind: str) -> None:
    model, others = KEYS[name]
    row = {name: WRONG_KEYS[kind], **others}
    with refused(session, name):
        session.enqueue(model, [row])
    with refused(session, name):
        session.enqueue(model(**row))
    session.rollback()
    with refused(session, name):
        session.enqueue(model, [row | {"id": 1}], on_conflict="replace")
    session.add(task := model(**{**others, name: "cut"}))
    session.flush()
    setattr(task, name, WRONG_KEYS[kind])
    with refused(session, name):
        session.flush()


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
NOT_JSON: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "result is nan"),
    "infinity": ({"a": [1, math.inf]}, "result.a.1 is inf"),
    "bytes": ([b"x"], "result.0 is a bytes"),
    "a set": ({1}, "result is a set"),
    "an int as a key": ({"a": {1: 2}}, "result.a has the key 1"),
    "None as a key": ({None: 2}, "result has the key None"),
    "a surrogate": ([SURROGATE], "result.0 contains a NUL character or a lone surrogate"),
    "an integer of many bits": (2**63, "result needs more than 64 bits"),
    "an object": ({"a": object()}, "result.a is a object"),
    "a cycle": (CYCLE, "contains itself"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_values_that_are_not_json(session: Recorded, name: str) -> None:
    value, words = NOT_JSON[name]
    film = session.claim(Film)
    with refused(session, words):
        session.complete(film, value)
    with refused(session, "cannot be stored as JSON"):
        session.enqueue(Job, [{"task": "a", "arguments": {"a": value}}])


def test_options_that_no_model_can_have() -> None:
    for option in ({"retention": ENDLESS}, {"lease": ENDLESS}):
        with pytest.raises(ArgumentError, match="at most 100 years"):
            QueueOptions(**option)
    with pytest.raises(ArgumentError, match="at most 100 years"):
        LinearBackoff(cap=ENDLESS)
    for limit in (0, -1, 10_001, True, 1.5):
        with pytest.raises(ArgumentError, match="give an integer from 1 to 10,000"):
            QueueOptions(slots=Slot, limit=limit)


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


def test_names_of_workers_and_functions_that_cannot_be_stored(worker: Worker) -> None:
    for wrong in (SURROGATE, NUL, ""):
        with pytest.raises(ArgumentError, match="name="):
            Worker(worker.sessions, name=wrong)
        with pytest.raises(ArgumentError, match="name="):
            worker.task(Job, name=wrong)(len)


def test_a_cron_expression_has_five_fields() -> None:
    for expression in ("0 0 2 * * *", "0 3 * *", "", None):
        with pytest.raises(ArgumentError, match=r"is not a cron expression: give five fields"):
            Cron(expression)  # type: ignore[arg-type]


def test_a_handler_for_a_stage_that_does_not_exist(worker: Worker) -> None:
    for where in (Film.stage == "draft", Film.stage.in_(["cut", "draft"])):
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
