"""Logs, traces, metrics and health."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from sqlqueue import ArgumentError, Discard, Rate, Worker
from sqlqueue._support.texts import error_group
from sqlqueue.worker import Health, probes
from sqlqueue.worker import registration as maintenance
from sqlqueue.worker import reports as health_module
from sqlqueue.worker.probes import CONNECTIONS, Address, address_of, serve_health
from sqlqueue.worker.reports import Reports
from tests.support.harness import Database
from tests.support.models import Job, Task, Traced, Visit
from tests.support.rows import load_all
from tests.support.workers import (
    LONG,
    PATIENCE,
    BlockingHandler,
    Running,
    Workers,
    all_are,
    eventually,
    raising,
    statuses,
    with_session,
    without_session,
)

pytestmark = pytest.mark.one_engine
SPANS = InMemorySpanExporter()
READER = InMemoryMetricReader()


@pytest.fixture(scope="session", autouse=True)
def _opentelemetry() -> None:
    """Set up OpenTelemetry once per process, since a process accepts only one provider."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([READER]))


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    SPANS.clear()
    yield
    SPANS.clear()


def measured() -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Return the points of each metric: attributes, and sum or count."""
    data = READER.get_metrics_data()
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = [
                    (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", None)))
                    for point in metric.data.data_points
                ]
    return found


@pytest.mark.every_engine
@pytest.mark.parametrize("how", ["add", "rows", "copy"])
def test_a_task_is_handled_within_the_trace_that_enqueued_it(db: Database, workers: Workers, how: str) -> None:
    if how == "copy" and not db.case.copies:
        pytest.skip("no COPY")
    with trace.get_tracer("test").start_as_current_span("request") as request, db.begin() as session:
        if how == "add":
            session.add(Traced())
        else:
            session.enqueue(Traced, [{"priority": 0}], copy=how == "copy")
    seen: list[int] = []
    note = lambda _: seen.append(trace.get_current_span().get_span_context().trace_id)  # noqa: E731
    workers.serve(Traced, without_session(db, note))
    eventually(all_are(db, "completed", Traced))
    (span,) = (span for span in SPANS.get_finished_spans() if span.name == "process traced")
    here = request.get_span_context()
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (here.trace_id, here.span_id)
    assert seen == [here.trace_id]
    assert [link.context.span_id for link in span.links] == [here.span_id]
    assert span.attributes is not None
    assert span.attributes["sqlqueue.attempt"] == 1


def test_without_a_trace_there_is_a_new_one(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Traced, [{}])
    sync_db.insert(Task, [{}])
    worker = workers.make()
    worker.handler(Traced)(with_session(sync_db))
    worker.handler(Task)(with_session(sync_db))
    workers.start(worker)
    eventually(lambda: len(SPANS.get_finished_spans()) == 2)
    assert {span.parent for span in SPANS.get_finished_spans()} == {None}


def test_a_failure_is_an_error_of_its_span_and_a_signal_is_not(sync_db: Database, workers: Workers) -> None:
    """The span does not contain the parameters of a statement."""
    sync_db.insert(Task, [{"name": "failing"}, {"name": "giving up"}])
    error = IntegrityError("insert", {"key": "hunter2"}, ValueError("taken"))
    worker = workers.make()
    worker.handler(Task, Task.name == "failing")(raising(sync_db, error))
    worker.handler(Task, Task.name == "giving up")(raising(sync_db, Discard("no")))
    workers.start(worker)
    eventually(lambda: len(SPANS.get_finished_spans()) == 2)
    spans = {span.status.is_ok: span for span in SPANS.get_finished_spans()}
    assert spans[True].events == ()
    (found,) = spans[False].events
    message, trace = (str((found.attributes or {})[f"exception.{each}"]) for each in ("message", "stacktrace"))
    assert (found.name, message) == ("exception", "IntegrityError: (builtins.ValueError) taken")
    assert "in write" in trace
    assert "hunter2" not in message + trace


def test_each_task_of_a_chunk_has_a_span_with_its_own_error(sync_db: Database, workers: Workers) -> None:
    """Also if the call is repeated because of another task."""

    def send(session: Any, tasks: list[Task]) -> None:
        if any(task.number == 2 for task in tasks):
            raise ValueError("bad address")

    sync_db.insert(Task, [{"number": number, "max_attempts": 1} for number in range(4)])
    workers.serve(Task, send, chunk=4, poll=LONG)
    eventually(lambda: len(SPANS.get_finished_spans()) == 4)
    eventually(lambda: set(statuses(sync_db).values()) == {"completed", "discarded"})
    assert list(statuses(sync_db).values()).count("discarded") == 1
    codes = [span.status.status_code for span in SPANS.get_finished_spans()]
    assert codes.count(trace.StatusCode.ERROR) == 1


def test_outcomes_and_times_are_measured(sync_db: Database, workers: Workers) -> None:
    queue = {"sqlqueue.queue": "task"}

    def total(metric: str, **attributes: str) -> int:
        return sum(number for found, number in measured().get(metric, ()) if found == queue | attributes)

    def totals() -> list[int]:
        completed = total("sqlqueue.tasks", **{"sqlqueue.outcome": "completed"})
        return [completed, total("sqlqueue.task.wait"), total("sqlqueue.task.duration")]

    before = totals()
    sync_db.insert(Task, [{}, {}])
    workers.serve(Task, with_session(sync_db))
    eventually(lambda: totals() == [each + 2 for each in before])


@contextmanager
def serving(health: Any = lambda: None, *metrics: Any, host: str = "127.0.0.1") -> Iterator[Any]:
    """Serve health checks on a free port; yield the server."""
    server = serve_health(Address(host, 0), health, *metrics)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def ask(
    port: int, path: str = "/health", method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, dict[str, str], bytes]:
    client = HTTPConnection(host, port, timeout=PATIENCE)
    client.request(method, path)
    response = client.getresponse()
    body = response.read()
    client.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def state_of(port: int, path: str) -> tuple[int, Any]:
    status, _, body = ask(port, path)
    return status, json.loads(body)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[::]:0", ("::", 0)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    "text", ["", "port", "0.0.0.0", ":8080", "host:", "host:65536", "-1", "8080:", "[]:1", "1\x1b"]
)
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ArgumentError, match="give PORT, HOST:PORT or"):
        address_of(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_health_is_served_only_at_the_given_address(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6")
    with serving(host=host) as server:
        port = server.server_port
        assert ask(port, host=host)[::2] == (200, b"null")
        assert server.socket.getsockname()[0] == host
        with pytest.raises(ArgumentError, match=f"cannot serve health checks on {host} port {port}"):
            serve_health(Address(host, port), lambda: None)


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as tried:
        try:
            tried.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_a_worker_reports_its_health(sync_db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    worker = workers.make()
    worker.handler(Task)(with_session(sync_db, during=blocking))
    with serving(worker.health) as server:
        port = server.server_port
        assert state_of(port, "/health") == (200, None)
        assert state_of(port, "/ready") == (503, None)
        assert ask(port, "/")[0] == 404
        workers.start(worker)
        sync_db.insert(Task, [{}])
        blocking.wait_for(1)
        status, state = state_of(port, "/ready")
        assert (status, state["alive"], state["ready"], state["running"]) == (200, True, True, 1)
        assert state["counts"]["claimed"] == 1


def test_a_blocked_event_loop_is_seen(sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "STALLED", 1.5)
    released = False

    async def blocks(task: Any) -> None:
        while not released:
            time.sleep(0.01)

    worker = workers.serve(Task, blocks).worker
    eventually(lambda: worker.health() is not None)
    assert well(worker).alive
    sync_db.insert(Task, [{}])
    try:
        eventually(lambda: not well(worker).alive)
    finally:
        released = True
    eventually(lambda: well(worker).alive)


def test_an_unavailable_database_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "STALLED", 0.5)
    worker = Worker(sessionmaker(create_engine(f"sqlite:///{tmp_path}/missing/database.db")))
    worker.handler(Task)(lambda task: None)
    running = Running(worker)
    try:
        eventually(lambda: worker.health() is not None and well(worker).away_seconds > 0.5)
        assert not well(worker).ready
    finally:
        running.stop()


def well(worker: Worker) -> Health:
    state = worker.health()
    assert state is not None
    return state


def test_serving_in_a_loop_of_the_application(sync_db: Database) -> None:
    """The worker is an asyncio task that is cancelled at the end, as in FastAPI's lifespan."""
    sync_db.insert(Task, [{}])
    done: list[int] = []
    worker = Worker(sync_db.variant().sessions())
    worker.handler(Task)(lambda task: done.append(task.id))

    async def application() -> None:
        serving = asyncio.create_task(worker.serve())
        while not done:
            await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(application())
    with sync_db.session() as session:
        assert session.stats(Task)["completed"] == 1


# -- the server of health checks --------------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    with serving() as server:
        yield server.server_port


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def answering() -> int:
    """Return the number of threads that have a connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_probes_are_answered_while_others_keep_connections_open(port: int) -> None:
    with ExitStack() as idle:
        for _ in range(3 * CONNECTIONS):
            idle.enter_context(connected(port))
        assert ask(port)[0] == 200
        eventually(lambda: answering() <= CONNECTIONS)
    eventually(lambda: not answering())


def test_a_silent_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "IDLE", 0.2)
    with serving() as server, connected(server.server_port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        assert client.recv(1) == b""


def test_a_broken_connection_is_only_logged(
    port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def breaks() -> Any:
        with connected(port) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
            client.sendall(b"GET /hea")
        return "a health check failed" in caplog.text

    with caplog.at_level(logging.DEBUG, "sqlqueue"):
        eventually(breaks)
    assert capfd.readouterr().err == ""


def test_head(port: int) -> None:
    _, expected, body = ask(port)
    assert expected["server"] == "sqlqueue", "it tells a version"
    status, headers, nothing = ask(port, method="HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["content-length"] == expected["content-length"] == str(len(body))


# -- metrics for Prometheus, and that the alerts and the Grafana dashboard of the examples use no others --------------

EXAMPLES = Path(__file__).parents[2] / "examples" / "monitoring"


def metric(exposed: bytes | None, name: str, **labels: str) -> float | None:
    """Return the value of a metric whose labels that are not empty are these."""
    families = text_string_to_metric_families((exposed or b"").decode())
    samples = (
        (each, {name: text for name, text in each.labels.items() if text}) for f in families for each in f.samples
    )
    return next((each.value for each, told in samples if (each.name, told) == (f"sqlqueue_{name}", labels)), None)


def test_metrics_of_a_worker(
    sync_db: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MEASURE_EVERY", timedelta(seconds=0.05))
    sync_db.insert(Task, [{"name": "fails"}, {"name": "blocks"}, {"name": "waits"}])
    worker = workers.make()
    worker.handler(Task, Task.name == "fails")(raising(sync_db, RuntimeError("no")))
    worker.handler(Task, Task.name == "blocks", concurrency=3)(with_session(sync_db, during=blocking))
    workers.start(worker)
    blocking.wait_for()

    def value(name: str, **labels: str) -> float | None:
        return metric(ask(server.server_port, "/metrics")[2], name, **labels)

    with serving(worker.health, worker.metrics) as server:
        eventually(lambda: value("tasks_finished_total", queue="task", outcome="failed") == 1)
        assert value("tasks_claimed_total", queue="task") == 2
        assert value("task_duration_seconds_count", queue="task") == 1
        assert (value("slots", queue="task"), value("slots_busy", queue="task")) == (13, 1)
        eventually(lambda: value("tasks", queue="task", status="running") == 1)
        eventually(lambda: value("tasks", queue="task", status="retryable") == 1)
        assert (value("oldest_claimable_seconds", queue="task") or 0) > 0
        blocking.release()
        eventually(lambda: value("tasks_finished_total", queue="task", outcome="completed") == 1)
        eventually(lambda: "completed" in statuses(sync_db).values())


@pytest.mark.one_engine
def test_keys_are_counted_by_their_states(sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one by one: there can be any number of them."""
    monkeypatch.setattr(maintenance, "MEASURE_EVERY", timedelta(seconds=0.05))
    sync_db.insert(
        Visit, [{"limit_key": key} for key in ("full", "full", "full", "paused", "used up", "used up", None)]
    )
    with sync_db.begin() as session:
        session.claim_many(Visit, Visit.limit_key == "full", limit=2)
        session.set_rate(Visit, "used up", Rate(1, per=timedelta(hours=1)))
        session.claim(Visit, Visit.limit_key == "used up")
        session.pause(Visit)
        session.pause(Visit, key="paused")
    worker = workers.make()
    worker.handler(Visit)(without_session(sync_db))
    worker.metrics()
    workers.start(worker)

    def counted(state: str) -> float | None:
        return metric(worker.metrics(), "keys", queue="visit", state=state)

    eventually(lambda: counted("waiting") is not None)
    assert [counted(state) for state in ("waiting", "paused", "full", "used_up")] == [3, 1, 1, 1]


def test_function_jobs_are_named_in_log_lines_spans_and_metrics(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    worker = workers.make(name="mailer")

    @worker.task(Job, name="shop.mail")
    def mail(to: str) -> None:
        if to == "nobody":
            raise ValueError("no such address")

    with sync_db.begin() as actor:
        actor.session.add_all([mail.options(topic=to).job(to) for to in ("nobody", "ada")])
    workers.start(worker)
    eventually(lambda: set(statuses(sync_db, Job).values()) == {"retryable", "completed"})
    (record,) = (each for each in caplog.records if hasattr(each, "outcome"))
    assert re.match(r"job \d+ \(shop\.mail\): attempt 1 \(\d+ left\) failed \(ValueError: no such", record.getMessage())
    facts = {name: vars(record)[name] for name in ("queue", "function", "attempt", "worker")}
    assert facts == {"queue": "job", "function": "shop.mail", "attempt": 1, "worker": "mailer"}
    assert record.getMessage().startswith(f"job {vars(record)['key']} ")
    spans = [span for span in SPANS.get_finished_spans() if span.name == "process job shop.mail"]
    assert [(span.attributes or {})["sqlqueue.function"] for span in spans] == ["shop.mail"] * 2
    of_function = {"queue": "job", "function": "shop.mail"}
    for name in ("tasks_claimed_total", "task_duration_seconds_count"):
        assert metric(worker.metrics(), name, **of_function) == 2
    for outcome in ("completed", "failed"):
        assert metric(worker.metrics(), "tasks_finished_total", **of_function, outcome=outcome) == 1
    named = {"sqlqueue.queue": "job", "sqlqueue.function": "shop.mail", "sqlqueue.outcome": "failed"}
    assert (named, 1) in measured()["sqlqueue.tasks"]


def test_metrics_name_only_functions_that_the_worker_has_registered(sync_db: Database, workers: Workers) -> None:
    """Rows could make any number of others."""
    sync_db.insert(Job, [{"task": f"f{number}", "arguments": {}} for number in range(3)])
    worker = workers.serve(Job, without_session(sync_db)).worker
    eventually(lambda: metric(worker.metrics(), "tasks_finished_total", queue="job", outcome="completed") == 3)


def test_errors_are_counted_by_group_up_to_a_number_of_groups(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reports, "grouped", 1)

    def fail(task: Any) -> None:
        raise ValueError(f"no {task.id}") if task.id < 3 else KeyError(task.id)

    sync_db.insert(Task, [{"id": 1}, {"id": 2}])
    worker = workers.serve(Task, fail).worker
    group = {"queue": "task", "error_group": error_group("ValueError: no 1"), "error": "ValueError"}
    eventually(lambda: metric(worker.metrics(), "errors_total", **group) == 2)
    sync_db.insert(Task, [{"id": 3}, {"id": 4}])
    eventually(lambda: metric(worker.metrics(), "errors_total", queue="task", error_group="other") == 2)
    assert ({"sqlqueue.queue": "task", "sqlqueue.error_group": "other", "error.type": ""}, 2) in measured()[
        "sqlqueue.errors"
    ]
    eventually(lambda: set(statuses(sync_db).values()) == {"retryable"})
    logged = {int(record.key): record.error_group for record in caplog.records if hasattr(record, "error_group")}
    assert logged == {task.id: task.error_group for task in load_all(sync_db, Task)}


def test_queues_are_counted_only_while_the_metrics_are_read(sync_db: Database, workers: Workers) -> None:
    worker = workers.make()
    prometheus = worker._reports.prometheus
    assert prometheus is not None
    assert not prometheus.is_watched
    assert worker.metrics()
    assert prometheus.is_watched


def _names(text: str) -> set[str]:
    return set(re.findall(r"\bsqlqueue_\w+", text))


def test_alerts_and_board_name_metrics_that_exist(sync_db: Database, workers: Workers) -> None:
    declared = (workers.make().metrics() or b"").decode()
    families = set(re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)", declared, re.MULTILINE))
    known = families | {f"{name}_{suffix}" for name in families for suffix in ("bucket", "count", "sum")}
    alerts = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in rules)
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = set[str]().union(*(_names(query) for query in (*queries, *(rule["expr"] for rule in rules))))
    assert used
    assert used <= known, used - known
