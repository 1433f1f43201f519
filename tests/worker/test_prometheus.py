"""Metrics for Prometheus, and that the alerts and the Grafana dashboard of the examples use no others."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sqlqueue.worker import registration as maintenance
from sqlqueue.worker.reports import Address, serve_health
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.workers import BlockingHandler, Workers, eventually, raising, statuses, with_session

EXAMPLES = Path(__file__).parents[2] / "examples" / "monitoring"


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
    server = serve_health(Address("127.0.0.1", 0), worker.health, worker.metrics)

    def value(name: str, **labels: str) -> float | None:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
        found = [each.value for family in families for each in family.samples if _is(each, name, labels)]
        return found[0] if found else None

    eventually(lambda: value("sqlqueue_tasks_finished_total", queue="task", outcome="failed") == 1)
    assert value("sqlqueue_tasks_claimed_total", queue="task") == 2
    assert value("sqlqueue_task_duration_seconds_count", queue="task") == 1
    assert (value("sqlqueue_slots", queue="task"), value("sqlqueue_slots_busy", queue="task")) == (13, 1)
    eventually(lambda: value("sqlqueue_tasks", queue="task", status="running") == 1)
    eventually(lambda: value("sqlqueue_tasks", queue="task", status="retryable") == 1)
    assert (value("sqlqueue_oldest_claimable_seconds", queue="task") or 0) > 0
    blocking.release()
    eventually(lambda: value("sqlqueue_tasks_finished_total", queue="task", outcome="completed") == 1)
    eventually(lambda: "completed" in statuses(sync_db).values())
    server.shutdown()
    server.server_close()


def _is(sample: object, name: str, labels: dict[str, str]) -> bool:
    return getattr(sample, "name", None) == name and getattr(sample, "labels", None) == labels


def test_queues_are_counted_only_while_the_metrics_are_read(sync_db: Database, workers: Workers) -> None:
    reports = workers.make()._reports
    assert not reports.wants_overview
    assert reports.exposition()
    assert reports.wants_overview


def _names(text: str) -> set[str]:
    return set(re.findall(r"\bsqlqueue_\w+", text))


def test_alerts_and_board_name_metrics_that_exist(sync_db: Database, workers: Workers) -> None:
    declared = (workers.make()._reports.exposition() or b"").decode()
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
