"""The output of the commands at any width; values from rows cannot control the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, func
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from sqlqueue import claim_many
from sqlqueue._support.texts import error_group
from sqlqueue.cli import application
from sqlqueue.cli._output import print_json
from tests.cli.invoking import FAILED, PAST, TOMORROW, out, put, run, words
from tests.support.models import Chore, Job, Mail, Render, Seat, Task, Transfer, Visit

TIMEOUT = "Timeout: [red]x[/]\x1b[31m\n  in line 2"
HEADINGS = ("abandoned", "oldest", "last", "hour", "paused")


def test_finding_nothing_is_not_an_error(url: str) -> None:
    assert out("errors") == "task has no such errors."
    assert out("list") == "task has no such tasks."
    assert out("show", "7") == "There is no task 7."
    assert out("show", "7", "--json") == "null"
    assert out("retry") == "0 tasks of task are available again."
    assert out("prune", "--older-than", "1d") == "0 tasks of task are deleted."


def test_stats_prints_a_table_of_queues(url: str) -> None:
    put(url, Task, {"status": "running", "available_at": PAST}, {}, FAILED, {**FAILED, "finished_at": func.now()})
    put(url, Mail, {"status": "scheduled"}, {"status": "scheduled", "available_at": TOMORROW})
    out("pause", "--topic", "news", model="Mail")
    out("pause", model="Mail")
    lines = out("stats", model="Base").splitlines()
    assert lines[0].split() == ["Queue", "available", "scheduled", "running", "discarded", *HEADINGS]
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert re.fullmatch(r"1 0 1 2 1 \d{4} days, \d+:\d\d:\d\d 1", told["task"])
    assert re.fullmatch(r"0 2 0 0 0 0:0\d:\d\d 0 all, news", told["mail"])
    assert told["letter"] == "0 0 0 0 0 0"


def test_lower_bounds_have_a_plus(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.cli.statistics.CAP", 2)
    monkeypatch.setattr("sqlqueue.cli.statistics.LAST", 2)
    put(url, Task, *[{**FAILED, "error": "no"}] * 3, {})
    heading, figures, note = out("stats").splitlines()
    assert heading.split()[1:6] == ["available", "running", "completed", "cancelled", "discarded"]
    assert figures.split()[1:6] == ["1", "0", "0+", "0+", "2+"]  # tasks that were not counted may be in any final state
    assert note.startswith("+ means at least:")
    heading, figures = out("stats", "--exact").splitlines()
    assert heading.split()[1:4] == ["available", "running", "discarded"]
    assert figures.split()[1:4] == ["1", "0", "3"]
    assert json.loads(out("stats", "--json"))[0]["capped"][-1] == "total"
    *facts, note = out("errors").splitlines()
    assert "tasks 1+" in map(" ".join, map(str.split, facts))
    assert note.startswith("+ means at least:")
    assert json.loads(out("errors", "--json"))[0]["capped"] == ["retriable", "tasks", "unfinished"]
    assert "tasks    3" in out("errors", "--exact").splitlines()


def test_changeable_tasks_are_found_among_any_number_of_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.cli.changes.CAP", 2)
    put(url, Task, *[{"status": "completed", "finished_at": PAST}] * 3, FAILED)
    assert out("retry") == "1 task of task is available again."
    put(url, Task, *[FAILED] * 3)
    asked = run("retry")
    assert (asked.exit_code, "would retry at least 2 tasks of task (2+ discarded)" in asked.stderr) == (2, True)
    assert out("retry", "--yes") == "3 tasks of task are available again."


def test_stats_by_a_column(url: str) -> None:
    put(url, Mail, {"account_id": 7}, {"account_id": 7, "topic": "news"}, {"status": "running", "available_at": PAST})
    assert out("stats", "--by", "account_id", model="Mail").splitlines() == [
        "account_id  available  running  abandoned",
        "(none)              0        1          1",
        "7                   2        0          0",
    ]
    assert out("stats", "--by", "account_id", "--topic", "news", model="Mail").splitlines()[1:] == [
        "7                   1        0          0"
    ]


def test_stats_are_printed_again_until_ctrl_c(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        put(url, Task, {})
        if len(paused) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sqlqueue.cli._output.sleep", pause)
    lines = out("stats", "--watch", "2.5").splitlines()
    assert [line.split()[1] for line in lines if line.startswith("task ")] == ["0", "1"]
    assert paused == [2.5, 2.5]
    assert "--watch is for people" in run("stats", "--watch", "1", "--json").stderr


def test_stats_over_time(url: str) -> None:
    ended = datetime.now(UTC) - timedelta(hours=2)
    took = {"finished_at": ended, "claimed_at": ended - timedelta(milliseconds=1_500)}
    put(url, Task, {"status": "completed", **took, "created_at": ended - timedelta(hours=1, seconds=1.5)})
    put(url, Task, {"status": "completed", **took, "claimed_at": ended, "created_at": ended}, FAILED)
    heading, *lines = out("stats", "--timeline", "--since", "3h").splitlines()
    assert heading.split() == [
        "From",
        "completed",
        "failed",
        "cancelled",
        *["run", "p50", "run", "p95", "wait", "p50", "wait", "p95"],
    ]
    assert [f"{ended:%Y-%m-%d %H}:00:00Z 2 0 0 0ms 1.5s 0ms 1:00:00"] == [
        " ".join(line.split()) for line in lines if "ms" in line
    ]
    assert [line.split()[2:] for line in lines if "ms" not in line] == [["0", "0", "0"]] * 3


def test_list_and_errors_print_tables(url: str) -> None:
    put(url, Mail, {**FAILED, "error": TIMEOUT, "error_group": error_group(TIMEOUT)}, {"topic": "news"})
    assert out("list", model="Mail").splitlines() == [
        "Key  status     topic    attempt     available at          error",
        f"2    available  news     0 (5 left)  {_moment(url)}",
        "1    discarded  default  3           2020-01-01 00:00:00Z  Timeout: [red]x[/]\\x1b[31m…",
    ]
    assert out("errors", model="Mail").splitlines() == [
        "error    Timeout: [red]x[/]\\x1b[<n>m in line <n>",
        f"group    {error_group(TIMEOUT)}",
        "tasks    1",
        "first    2020-01-01 00:00:00Z",
        "last     2020-01-01 00:00:00Z",
        "example  1",
        "newest   Timeout: [red]x[/]\\x1b[31m",
        "           in line 2",
    ]
    put(url, Mail, *[{**FAILED, "error": f"{word} down"} for word in "ab"])
    found = run("errors", "--limit", "1", model="Mail")
    assert (found.stdout.count("group "), found.stderr) == (1, "2 more groups (tasks: 2): --limit shows them.\n")
    assert run("errors", "--limit", "2", model="Mail").stderr == "1 more group (tasks: 1): --limit shows them.\n"


def _moment(url: str) -> str:
    (task,) = [line for line in out("list", "--topic", "news", model="Mail").splitlines() if "news" in line]
    return task[-20:]


def test_show_prints_the_whole_task(url: str) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5, seconds=30)
    put(url, Task, {"name": "x", "status": "running", "available_at": soon, "error": "first\nsecond"})
    put(url, Task, {"status": "running", "available_at": PAST}, {})
    shown = dict(line.split(maxsplit=1) for line in out("show", "1").splitlines() if len(line.split()) > 1)
    assert (shown["queue"], shown["status"], shown["name"], shown["error"]) == ("task", "running", "x", "first")
    assert shown["lease"].startswith("expires in 0:05:")
    assert "expired" in out("show", "2")
    assert "the next claim takes it over" in out("show", "2")
    assert "lease         none" in out("show", "3")


def test_show_and_why_tell_the_progress(url: str) -> None:
    noted = {"at": "2026-11-27T08:20:17+00:00", "attempt": 1, "text": "began\x1b[2J"}
    reported = {"value": 0.29, "text": "page 2", "attempt": 1, "notes": [noted], "dropped": 3}
    soon = datetime.now(UTC) + timedelta(minutes=5)
    running = {"status": "running", "available_at": soon, "claimed_at": PAST, "attempt": 1, "task": "draw"}
    earlier = {**reported, "attempt": 0}
    put(url, Render, {**running, "progress": reported}, {**running, "progress": earlier}, {"task": "x"})
    shown = out("show", "1", model="Render").splitlines()
    assert shown[-2:] == ["Notes (3 older ones are not kept):", "  2026-11-27 08:20:17 UTC began\\x1b[2J"]
    assert re.search(r"^progress +29 %: page 2$", "\n".join(shown), re.MULTILINE)
    assert json.loads(out("show", "1", "--json", model="Render"))["progress"] == reported
    assert "; its handler reports 29 %: page 2" in " ".join(out("why", "1", model="Render").split())
    assert "reports" not in out("why", "2", model="Render"), "an earlier attempt's"
    assert "Notes" not in out("show", "3", model="Render")


def test_pauses_are_shown_and_resumed(url: str) -> None:
    said = out("pause", "--reason", "the server\x1b[2J", "--by", "ada", model="Mail")
    assert said.startswith("mail has been paused since 20")
    assert said.endswith(" by ada: the server\\x1b[2J.")
    assert out("pause", model="Mail").splitlines()[1] == "It was already paused."
    out("pause", "--topic", "news", model="Mail")
    assert out("resume", model="Mail").startswith("mail, topic news, has been paused since")
    assert out("resume", "--topic", "news", model="Mail") == "mail is not paused."
    assert out("resume", model="Mail") == "mail is not paused.\nIt was not paused."


def test_line_breaks_in_values_cannot_forge_a_line(url: str) -> None:
    forged = "x\nforged: y\rforged: z"
    put(url, Mail, {"topic": forged, "subject": forged, "status": "running", "claimed_by": forged})
    said = [
        *(out(command, "1", model="Mail") for command in ("show", "why")),
        out("list", "--columns", "topic,subject,claimed_by", model="Mail"),
        out("pause", "--topic", forged, "--by", forged, "--reason", forged, model="Mail"),
        out("pause", "--by", forged, model="Mail"),
        out("resume", model="Mail"),
        out("stats", "--by", "topic", model="Mail"),
    ]
    for text in said:
        assert "x" in text
        assert not [line for line in text.splitlines() if line.strip().startswith("forged")]
    assert "x\\nforged: y\\rforged: z" in said[0]


def test_prune_continues_until_nothing_is_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cli.changes", "operations.reactivating"):
        monkeypatch.setattr(f"sqlqueue.{module}.BATCH", 2)
    put(url, Task, *[FAILED] * 7)
    assert out("prune", "--older-than", "1d", "--yes", "--limit", "3") == "3 tasks of task are deleted."
    assert out("prune", "--older-than", "1d", "--yes") == "4 tasks of task are deleted."


HOSTILE = "\x1b[2J\x07\r\x9b31m\u202e"
ESCAPED = "\\x1b[2J\\x07\\r\\x9b31m\\u202e"


@pytest.fixture
def narrow(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    return url


LONG = "smtp-1.internal.example.org refused 0123456789@example.org (request 1f6ffe72-0000-4000-8000-000000000000)"
NOTE = "see 2026/11"
CALL = {"task": "billing.reminders.send_reminder", "arguments": {"to": "0123456789@example.org"}, "note": NOTE}


@pytest.mark.parametrize("width", [40, 80])
def test_no_table_is_split_and_no_word_broken(url: str, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    put(url, Task, {"status": "running", "available_at": PAST}, {}, FAILED, {**FAILED, "status": "cancelled"})
    put(url, Task, {"status": "scheduled"}, {"status": "retryable"}, {**FAILED, "status": "completed"})
    put(url, Mail, {**FAILED, "error": f"{LONG}\nsecond line", "topic": "news-of-the-archive"})
    put(
        url,
        Chore,
        {
            **CALL,
            "limit_key": "tenant-0123456789",
            "unique_key": "reminder:4711:2026-11-27",
            "error": LONG,
            "note": "see 2026/11",
        },
    )
    out("pause", "--topic", "news", model="Mail")
    out("set-limit", "tenant-0123456789", "2", "--yes", model="Chore")
    printed = {
        "stats": [out("stats", model="Base"), out("stats", "--by", "topic", model="Mail")],
        "timeline": [out("stats", "--timeline", "--since", "3h")],
        "list": [out("list", model=name) for name in ("Task", "Mail", "Chore")],
        "columns": [out("list", "--columns", "name,number,created_at,claimed_at,available_at,error")],
        "errors": [out("errors", model="Mail")],
        "show": [out("show", "1", model="Chore")],
        "limits": [out("limits", model="Chore")],
        "keys": [out("keys", model="Chore")],
    }
    for lines in (text.splitlines() for texts in printed.values() for text in texts):
        assert [line for line in lines if len(line) > width and len(line.split()) > 3] == []
    assert not [text for text in printed["stats"] + printed["timeline"] if "\n\n" in text]  # no second table
    (task,) = re.findall(r"^task .*\n(?: .*\n)*", printed["stats"][0], re.MULTILINE)
    assert words(task).startswith(
        "task available 1, scheduled 1, retryable 1, running 1, completed 1, cancelled 1, disc"
    )
    whole = {
        "stats": ["customer_order", "paused news", "news-of-the-archive"],
        "list": [CALL["task"], "tenant-0123456789", NOTE, "news-of-the-archive", "2020-01-01 00:00:00Z"],
        "errors": LONG.split(),
        "show": [CALL["task"], "tenant-0123456789", "reminder:4711:2026-11-27", *LONG.split()],
        "limits": ["tenant-0123456789"],
        "keys": ["tenant-0123456789"],
    }
    for command, parts in whole.items():
        assert [part for part in parts if not any(part in text for text in printed[command])] == []


def test_nothing_is_cut_in_a_pipe(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    put(url, Chore, {**CALL, "note": "n" * 90, "error": f"{LONG}\n  second line"})
    heading, line = out("list", model="Chore").splitlines()
    assert heading.split()[:3] == ["Key", "status", "function"]
    for part in (CALL["task"], '{"to": "0123456789@example.org"}', "n" * 90, f"{LONG}\\n  second line"):
        assert part in line


def test_limits_are_listed_and_set(url: str) -> None:
    assert out("limits", model="Visit") == "No limit_key of visit has been used yet."
    asked = run("set-limit", "a.org", "3", model="Visit")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "a key that no task of visit has used yet, and there is no terminal to confirm it: use --yes" in asked.stderr
    set_it = ["set-limit", "a.org", "3", "--json", "--yes"]
    assert json.loads(out(*set_it, model="Visit")) == {
        "queue": "visit",
        "key": "a.org",
        "limit": 3,
        "running": 0,
        "starts": None,
        "per": None,
        "started": 0,
        "next_start": None,
        "before": None,
    }
    assert out("set-limit", "a.org", "2", model="Visit") == "visit, key a.org: the limit is 2 (it was 3), 0 running."
    assert out("limits", model="Visit").splitlines() == ["Queue  limit  running  key", "visit      2        0  a.org"]
    for name in ("visit", "Visit"):  # of the table, and of the model
        assert [each["key"] for each in json.loads(out("limits", "--queue", name, "--json", model="Base"))] == ["a.org"]
    asked = run("set-limit", "a.org", "0", model="Visit")
    assert (asked.exit_code, "this would stop all tasks of visit with the key 'a.org'" in asked.stderr) == (2, True)
    assert run("set-limit", "a.org", "0", "--yes", model="Visit").exit_code == 0
    assert out("set-limit", "a.org", "0", model="Visit").startswith("visit, key a.org: the limit is 0 (it was 0)")
    assert out("set-limit", "a.org", "--none", model="Visit") == "visit, key a.org: the limit is none (it was 0)."


def test_rates_are_listed_and_set(url: str) -> None:
    new = run("set-rate", "a.org", "2", "--per", "1h", model="Visit")
    assert (new.exit_code, "a key that no task of visit has used yet" in new.stderr) == (2, True)
    put(url, Visit, *[{"limit_key": "a.org"}] * 3)
    out("set-limit", "b.org", "1", "--yes", model="Visit")
    set_it = ["set-rate", "a.org", "2", "--per", "1h", "--yes"]
    assert out(*set_it, model="Visit") == "visit, key a.org: the rate is 2 per 1 h, 0 started."
    with Session(create_engine(url)) as session:
        assert len(claim_many(session, Visit, limit=3)) == 2
        session.commit()
    table = out("limits", model="Visit").splitlines()
    assert table[0].split() == ["Queue", "limit", "running", "started", "rate", "next", "start", "key"]
    assert re.fullmatch(r"visit +2 +2 +2  2 per 1 h  [-\d]+ [:\d]+ UTC  a\.org", table[1])
    assert table[2].split() == ["visit", "1", "0", "b.org"]
    removed = out("set-rate", "a.org", "--none", model="Visit")
    assert removed == "visit, key a.org: the rate is none (it was 2 per 1 h)."


def test_keys_are_listed_and_paused(url: str) -> None:
    assert out("keys", model="Transfer") == "No key of transfer has waiting tasks."
    dead = {**FAILED, "status": "discarded"}
    for row in ({**dead, "account": "held"}, {"account": "held"}, {"account": "b"}, {"account": "c"}, {}):
        put(url, Transfer, row)
    assert out("pause", "--key", "b", "--by", "ada", model="Transfer").endswith("by ada.")
    told = run("keys", "--limit", "3", model="Transfer")
    assert [line.split() for line in told.stdout.splitlines()] == [
        ["Key", "ready", "running", "limit", "weight", "state"],
        ["b", "1", "0", "paused"],
        ["c", "1", "0"],
        ["held", "1", "0", "discarded", "1"],
    ]
    assert "There are more keys of transfer: --limit shows them." in told.stderr
    assert out("keys", "--after", "held", model="Transfer").splitlines()[1].split() == ["(none)", "1", "0"]
    assert words(out("stats", model="Transfer")).endswith(" b")
    assert out("resume", "--key", "b", model="Transfer") == "transfer is not paused."


def test_calls_are_listed_and_counted_by_their_function(url: str) -> None:
    put(url, Job, *[{"task": name, "arguments": {}, **FAILED, "error": name} for name in ("shop.mail", "shop.bill")])
    only = ["--function", "shop.mail"]
    heading, line = (each.split() for each in out("list", *only, model="Job").splitlines())
    assert (heading[3], line[3]) == ("function", "shop.mail")
    assert [each["discarded"] for each in json.loads(out("stats", "--json", *only, model="Job"))] == [1]
    assert [each["tasks"] for each in json.loads(out("errors", "--json", *only, model="Job"))] == [1]


def test_models_of_slots_are_not_listed(url: str) -> None:
    listed = [line.split()[0] for line in out("stats", model="Base").splitlines()]
    assert "visit" in listed
    assert not {"slot", "sql_slot"} & set(listed)
    assert "visit" in words(run("errors", model="Base").stderr)
    assert "Slot" not in words(run("errors", model="Base").stderr)
    assert "there is no queue Slot" in words(run("errors", "--queue", "Slot", model="Base").stderr)


def test_a_list_shows_columns_of_the_application(narrow: str) -> None:
    put(narrow, Task, {"name": "a name", "number": 7}, {"name": "x" * 40, "number": 8, "error": "KeyError: 1\n2"})
    heading, first, second = out("list").splitlines()
    assert heading.split() == ["Key", "status", "attempt", "available", "at", "number", "error"]
    assert (first.split()[-3:], second.split()[-1]) == (["8", "KeyError:", "1…"], "7")
    heading, first, second = out("list", "--columns", "name,available_at").splitlines()
    assert heading.split() == ["Key", "name", "available", "at"]
    assert (first.split()[1], second.split()[1:3]) == ("x" * 40, ["a", "name"])
    assert "Task has no column nothing" in words(run("list", "--columns", "name,nothing").stderr)


def test_control_characters_are_not_printed(url: str) -> None:
    row = dict.fromkeys(("subject", "claimed_by", "topic"), HOSTILE)
    put(url, Mail, {**FAILED, **row, "error": f"E{HOSTILE}\nnext"})
    put(url, Seat, {"line": HOSTILE, "number": 1})
    out("pause", "--topic", HOSTILE, "--reason", HOSTILE, "--by", HOSTILE, model="Mail")
    told = [run(*arguments, model="Mail") for arguments in (
        ["stats"], ["stats", "--by", "topic"], ["errors"], ["list"], ["list", "--columns", "subject,claimed_by,error"],
        ["show", "1"], ["pause"], ["resume"], ["stats", "--queue", HOSTILE], ["list", "--where", HOSTILE],
        ["list", "--where", f"id={HOSTILE}"], ["list", "--older-than", HOSTILE], ["show", HOSTILE],
        ["list", "--topic", HOSTILE, "--columns", HOSTILE],
    )]  # fmt: skip
    told += [run("list", model="Seat"), run("show", HOSTILE, model="Seat")]
    told += [CliRunner().invoke(application(), ["stats", f"tests.support.models:{HOSTILE}"])]
    told += [CliRunner().invoke(application(), ["work", f"tests.support.models:{HOSTILE}"])]
    told += [CliRunner().invoke(application(), ["demo", "--url", f"sqlite:////no/{HOSTILE}/x", "."])]
    told += [CliRunner().invoke(application(), ["bench", "--url", f"sqlite:////no/{HOSTILE}/x"])]
    for each in told:
        assert not {one for one in each.stdout + each.stderr if not one.isprintable()} - {"\n"}, each.output
        assert isinstance(each.exception, SystemExit | None)
    assert ESCAPED in told[2].stdout


@pytest.mark.parametrize("command", [["list"], ["show", "1"], ["errors"], ["stats", "--by", "topic"]])
def test_control_characters_are_escaped_in_json(url: str, command: list[str]) -> None:
    put(url, Mail, {**FAILED, "error": HOSTILE, "subject": HOSTILE, "topic": HOSTILE})
    printed = out(*command, "--json", model="Mail")
    assert HOSTILE in list(strings(json.loads(printed)))
    assert printed.isascii()


def strings(value: Any) -> Iterator[str]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (dict, list)):
            yield from strings(each)


def test_non_finite_numbers_are_printed_as_text(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), {"b": float("-inf")}], 7: 1.5})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": ["nan", {"b": "-inf"}], "7": 1.5}
