"""The commands that show batches and workflows."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from tests.cli.invoking import called, told, words
from tests.support.flows import Note, Page, sync_flow
from tests.support.harness import Database

__all__ = ["sync_flow"]

pytestmark = pytest.mark.one_engine


@pytest.fixture
def filled(sync_flow: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("COLUMNS", "80")
    for key in ("import 7", "import 8"):
        with sync_flow.begin() as session, session.batch(key) as batch:
            first = batch.add(Page(name="first"))
            batch.add(Page, [{} for _ in range(13)], after=first)
            batch.then(Note(name="end"))
            batch.then(Note(name="failed"), when="failed")
    with sync_flow.begin() as session:
        session.discard(session.claim(Page), "boom")
    sync_flow.committed.advance(Page)
    return sync_flow


def tell(db: Database, command: str, *arguments: str, model: str = "Flow") -> Any:
    return told(db, command, *arguments, target=f"tests.support.flows:{model}")


def test_batches(filled: Database) -> None:
    found = tell(filled, "batches", "--json")
    assert [(each["key"], each["unfinished"], each["sealed"]) for each in found] == [("import 8", 14, True)]
    first, *rest = tell(filled, "batches", "--all").splitlines()
    assert first.split() == ["Batch", "unfinished", "failed", "age", "state"]
    assert [line.split()[:4] for line in rest] == [["import", "8", "14", "0"], ["import", "7", "0", "14"]]
    assert rest[1].endswith("ended, with failures")
    result = called(filled, "batches", "--all", "-n", "1", target="tests.support.flows:Flow")
    assert result.stderr == "There are more: --limit shows them.\n"
    assert all(len(line) <= 80 for line in (first, *rest))


def test_a_batch(filled: Database) -> None:
    lines = tell(filled, "batch", "import 7").splitlines()
    assert [" ".join(line.split()) for line in lines[-5:]] == [
        "Task state waits for",
        "Page 14 discarded",  # rows in bulk are inserted first
        "13 tasks of Page 13 cancelled Page 14",
        "Note 1 cancelled 13 tasks of Page",
        "Note 2 available failure of 13 tasks of Page",
    ]
    assert "members  1 discarded, 13 cancelled" in lines
    found = tell(filled, "batch", "import 8", "--json")
    assert (found["total"], found["unfinished"], found["opened_at"], found["left_out"]) == (14, 14, None, 0)
    model = f"{Page.__module__}.Page"
    assert found["nodes"][1] == {
        "name": "n2",
        "label": "13 tasks of Page",
        "model": model,
        "id": None,
        "key": None,
        "states": {"waiting": 13},
        "when": "completed",
    }
    assert found["edges"][0] == {"source": "n1", "target": "n2", "when": "completed"}
    assert tell(filled, "batch", "import 8", "--mermaid").startswith("flowchart LR\n")
    assert tell(filled, "batch", "nothing", "--json") is None


def test_errors_of_tasks_that_were_not_run_name_what_has_failed(filled: Database) -> None:
    boom, not_run = sorted(tell(filled, "errors", "--json", model="Page"), key=lambda each: each["tasks"])
    assert (boom["retriable"], boom["because_of"]) == (1, None)
    assert (not_run["retriable"], not_run["because_of"]) == (0, {"model": "Page", "key": boom["example"]})
    line = f"because of  Page {boom['example']}: retry that, and these wait again"
    assert [each for each in tell(filled, "errors", model="Page").splitlines() if "because" in each] == [line]


@pytest.mark.every_engine
def test_a_whole_batch_is_retried_and_cancelled(filled: Database) -> None:
    """Its members in all queues, for which one confirmation is enough."""
    with filled.begin() as session:
        session.enqueue(Note(name="member"), into="import 8")
        session.discard(session.claim_many(Page, Page.status == "available", limit=2), "boom")
        session.discard(session.claim(Note, Note.name == "member"), "boom")
    asked = called(filled, "retry", "--batch", "import 8", target="tests.support.flows:Flow")
    assert "retry 2 tasks of flow_note, flow_page (2 discarded)" in asked.stderr
    told = tell(filled, "retry", "--batch", "import 8", "--yes")
    assert told == "2 tasks of flow_note, flow_page are available again.\n"
    done = tell(filled, "cancel", "--batch", "import 8", "--yes", "--json")
    assert (done["queue"], done["action"], done["tasks"]) == ("flow_note, flow_page", "cancel", 15)
    assert filled.committed.progress(Page, "import 8").unfinished == 0
    assert (
        tell(filled, "cancel", "--batch", "import 7", "--yes", "--queue", "Note")
        == "0 tasks of flow_note are cancelled.\n"
    )


@pytest.mark.every_engine
def test_a_batch_that_does_not_exist_is_refused(filled: Database) -> None:
    filled.committed.enqueue(Note(name="label"), after="label:7")
    for command in (["list", "-q", "Page"], ["stats"], ["retry"], ["cancel", "--yes"], ["rerun", "-q", "Page"]):
        for key, text in {
            "nope": "there is no batch 'nope'",
            "label:7": "'label:7' is an event, not a batch: it is not open yet",
        }.items():
            result = called(filled, *command, "--batch", key, target="tests.support.flows:Flow")
            assert (result.exit_code, text in words(result.output)) == (2, True), (command, result.output)


@pytest.mark.every_engine
def test_a_task_that_waits_without_a_timeout_has_no_time(filled: Database) -> None:
    filled.committed.enqueue(Note(name="label"), after="label:7", timeout=timedelta(days=1))
    found = tell(filled, "list", "--status", "waiting", "--json", model="Note")
    assert [(each["columns"]["name"], each["available_at"] is None) for each in found] == [
        ("label", False),
        ("failed", True),
        ("end", True),
    ]
    assert tell(filled, "show", found[1]["key"], "--json", model="Note")["available_at"] is None
    for text in (tell(filled, "list", model="Note"), tell(filled, "show", found[1]["key"], model="Note")):
        assert "9999" not in text


@pytest.mark.every_engine
def test_an_event_is_no_batch(filled: Database) -> None:
    filled.committed.enqueue(Note(name="label"), after="label:7")
    assert tell(filled, "batch", "label:7") == "'label:7' is an event, not a batch: it is not open yet.\n"
    filled.committed.open_event(Page, "label:7")
    assert tell(filled, "batch", "label:7").startswith("'label:7' is an event, not a batch: it was opened at 2")
    assert tell(filled, "batch", "label:8").startswith("there is no batch 'label:8': it was forgotten")


def test_tasks_of_a_batch(filled: Database) -> None:
    assert len(tell(filled, "list", "--batch", "import 8", "--json", model="Page")) == 14
    assert [each["total"] for each in tell(filled, "stats", "--batch", "import 8", "--json")] == [0, 14]
    for command, number in (("retry", 1), ("cancel", 14)):
        changed = tell(filled, command, "--batch", "import 7", "--yes", "--json", model="Page")
        assert (command, changed["tasks"]) == (command, number)
    number = tell(filled, "discard", "--batch", "import 8", "--reason", "no", "--yes", "--json", model="Page")["tasks"]
    assert number == 14
    result = called(filled, "list", "--batch", "x")
    assert (result.exit_code, "Task cannot be in a batch" in result.output) == (2, True)


def test_a_task_shows_what_it_waits_for_and_what_waits_for_it(filled: Database) -> None:
    page = next(each for each in tell(filled, "batch", "import 8", "--json")["nodes"] if each["id"])["id"]
    shown = tell(filled, "show", page, "--json", model="Page")["flow"]
    assert (shown["batch"], shown["before"]) == ("import 8", [])
    assert [(each["label"], each["states"]) for each in shown["after"]] == [("13 tasks of Page", {"waiting": 13})]
    text = tell(filled, "show", page, model="Page")
    assert "\nBatch: import 8\n\nWaits for this task, or has waited:\n  13 tasks of Page: 13 waiting\n" in text
    note = next(each for each in tell(filled, "list", "--json", model="Note") if each["columns"]["name"] == "end")
    text = tell(filled, "show", note["key"], model="Note")
    assert "Waits for, or has waited for:\n  import 8: unfinished\n  Page 28: available\n" in text
    failed = next(each for each in tell(filled, "list", "--json", model="Note") if each["columns"]["name"] == "failed")
    assert "Waits for, or has waited for:\n  failure of import 8: unfinished\n" in tell(
        filled, "show", failed["key"], model="Note"
    )
    filled.committed.enqueue(Note(name="cleanup"), after=filled.committed.find(Page)[-1], when="final")
    shown = tell(filled, "show", str(filled.committed.find(Page)[-1].id), model="Page")
    assert re.search(r"Waits for this task, or has waited:\n  Note \d+ \(end of this task\): waiting\n", shown)
    refusal = " ".join(tell(filled, "run-now", "--id", note["key"], model="Note").split())
    assert refusal.endswith("starts when what it waits for has ended; sqlqueue why says what that is.")
    assert "it waits for 'import 8'" in tell(filled, "why", note["key"], model="Note")


def test_open_an_event(filled: Database) -> None:
    filled.committed.enqueue(Note(name="label"), after="label:7")
    assert tell(filled, "open", "label:7", "--payload", '{"url": 1}') == "label:7 is open.\n"
    assert tell(filled, "open", "label:7", "--json") == {"key": "label:7", "changed": False}
    assert filled.committed.event(Page, "label:7").payload == {"url": 1}
    for arguments in (["import 7"], ["x", "--payload", "{"]):
        result = called(filled, "open", *arguments, target="tests.support.flows:Flow")
        assert result.exit_code == 2, result.output
