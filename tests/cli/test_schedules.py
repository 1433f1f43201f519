"""The commands for recurring and waiting tasks: `schedules` and `run-now`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sqlqueue import Cron, claim_many, complete
from tests.cli.invoking import PAST, TOMORROW, out, put, run, words
from tests.support.models import Chore, Mail

NIGHTLY = Cron("30 2 * * *", "Europe/Berlin")
NIGHTLY_ZONE = ZoneInfo("Europe/Berlin")
PLAN = {"task": "billing.nightly", "arguments": {}, "status": "scheduled", "available_at": TOMORROW}


@pytest.fixture
def planned(url: str) -> str:
    put(url, Chore, {**PLAN, "unique_key": "nightly", "schedule": str(NIGHTLY), "claimed_at": PAST, "error": "no\nt"})
    put(url, Chore, {**PLAN, "unique_key": "hourly", "schedule": "PT1H"}, {"task": "once", "arguments": {}})
    return url


def test_schedules_are_listed_with_their_runs(planned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly, hourly = json.loads(out("schedules", "--json", model="Chore"))
    assert (nightly["queue"], nightly["key"], nightly["unique_key"]) == ("chore", "1", "nightly")
    assert (nightly["function"], nightly["schedule"]) == ("billing.nightly", "30 2 * * * Europe/Berlin")
    assert (nightly["timezone"], hourly["timezone"]) == ("Europe/Berlin", "UTC")
    assert (nightly["status"], nightly["stopped"], nightly["paused"]) == ("scheduled", False, False)
    assert [datetime.fromisoformat(each) for each in nightly["next_runs"]] == [
        TOMORROW,
        NIGHTLY.after(TOMORROW),
        NIGHTLY.after(NIGHTLY.after(TOMORROW)),
    ]
    assert (datetime.fromisoformat(nightly["last_run"]), hourly["last_run"]) == (PAST, None)
    monkeypatch.setenv("COLUMNS", "80")
    block, _ = out("schedules", model="Chore").split("\n\n")
    local = TOMORROW.astimezone(NIGHTLY_ZONE)
    assert [" ".join(line.split()) for line in block.splitlines()] == [
        "Name nightly",
        "function billing.nightly",
        "schedule 30 2 * * * Europe/Berlin",
        "state scheduled",
        "last run 2020-01-01 00:00:00Z",
        f"next run {TOMORROW:%Y-%m-%d %H:%M:%S}Z",
        f"in its zone {local:%Y-%m-%d %H:%M:%S %Z}",
        "error no",
    ]
    out("pause", model="Chore")
    assert "state        paused" in out("schedules", model="Chore")


def test_single_schedules_are_changed(planned: str) -> None:
    assert out("schedules", "run-now", "nightly", model="Chore") == "chore nightly: runs now."
    with Session(create_engine(planned)) as session:
        running = claim_many(session, Chore, Chore.unique_key == "nightly", limit=1)
        session.commit()
        again = out("schedules", "run-now", "nightly", model="Chore")
        assert again == "chore nightly: nothing to do: it is running."
        complete(session, running)
        session.commit()
    assert out("schedules", "stop", "1", model="Chore") == "chore nightly: stopped."
    stopped = json.loads(out("schedules", "stop", "nightly", "--json", model="Chore"))
    assert (stopped["changed"], stopped["stopped"], stopped["next_runs"]) == (False, True, [])
    assert "stopped (cancelled)" in out("schedules", model="Chore")
    told = json.loads(out("schedules", "reschedule", "nightly", "--schedule", "PT2H", "--json", model="Chore"))
    assert (told["changed"], told["schedule"], told["unique_key"]) == (True, "PT2H", "nightly")
    assert datetime.fromisoformat(told["next_runs"][0]) - datetime.now(UTC) < timedelta(hours=2)
    (hourly,) = [each for each in json.loads(out("schedules", "--json", model="Chore")) if each["key"] == "2"]
    assert (hourly["status"], hourly["schedule"]) == ("scheduled", "PT1H")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", "nightly"], "'start' is not one of 'run-now', 'stop', 'reschedule'"),
        (["stop"], "stop: name the task, as sqlqueue schedules shows it"),
        (["stop", "3"], "no task with a schedule is called 3"),
        (["stop", "nightly", "--schedule", "PT1H"], "--schedule is for reschedule"),
        (["reschedule", "nightly", "--schedule", "hourly"], "'hourly' is not a schedule"),
    ],
)
def test_unknown_schedules_are_refused(planned: str, arguments: list[str], said: str) -> None:
    told = run("schedules", *arguments, model="Chore")
    assert (told.exit_code, told.stdout) == (2, "")
    assert said in words(told.stderr)
    assert len(json.loads(out("list", "--status", "scheduled", "--json", model="Chore"))) == 2


def test_queues_without_schedules_are_refused(url: str) -> None:
    assert "the queues have no schedules: derive Mail from RecurringMixin" in run("schedules", model="Mail").stderr
    assert out("schedules", model="Chore") == "No task of chore has a schedule."


def test_rows_that_were_not_read_are_told(planned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.cli.schedules.SCHEDULES_READ", 1)
    assert out("schedules", model="Chore").endswith("Only the first 1 rows of chore were read. --exact reads all.")
    assert "hourly" in out("schedules", "--exact", model="Chore")


def test_waiting_tasks_are_run_now(url: str) -> None:
    put(url, Mail, {"status": "scheduled", "available_at": TOMORROW}, {"status": "retryable", "available_at": TOMORROW})
    put(url, Mail, {"status": "completed", "finished_at": PAST}, {"available_at": TOMORROW})
    asked = run("run-now", model="Mail")
    assert (asked.exit_code, "this would run now 3 tasks of mail (2 scheduled, 1 retryable)" in asked.stderr) == (
        2,
        True,
    )
    assert out("run-now", "--status", "scheduled", model="Mail") == "1 task of mail is available now."
    assert json.loads(out("run-now", "--yes", "--json", model="Mail"))["tasks"] == 2
    assert out("run-now", model="Mail") == "0 tasks of mail are available now."
    assert [each["status"] for each in json.loads(out("list", "--json", model="Mail"))] == [
        "available",
        "completed",
        "available",
        "available",
    ]
    assert "sqlqueue run-now changes scheduled, retryable" in out("run-now", "--id", "3", model="Mail")
