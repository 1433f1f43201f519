"""The experiments run to their end, on servers that can be had, with stand-ins for the views of those that cannot.

That shows that the program works, not what SQL Server or Oracle would answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

from tests.first_run import __main__ as program
from tests.first_run import experiments
from tests.first_run.experiments import EXPERIMENTS, kept, only_named
from tests.first_run.lab import MODELS, Lab, Lock, plan_steps
from tests.first_run.views import Views
from tests.support.harness import Database
from tests.support.models import Task

KEY = "'pk_task', 'KEY', 'U', 1"
STANDING_IN = Views(
    locks=f"SELECT {KEY}",
    waits="SELECT 1, 'a lock' WHERE 1 = 0",
    plan="SELECT 'INDEX RANGE SCAN', 1 WHERE :pattern LIKE '%'",
    grant="GRANT everything TO this account",
    optimized="SELECT NULL",
    optimize=("SELECT 2",),
    restore=("SELECT 3",),
)

on_servers = pytest.mark.requires("locks_rows", "partial_indexes")


@pytest.fixture
def lab(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(experiments, "NAMED", (1, 3))
    said: list[str] = []
    engine = create_engine(sync_db.url, poolclass=NullPool, isolation_level="READ COMMITTED")
    yield Lab(engine=engine, views=STANDING_IN, ready=(20,), sessions=5, say=said.append)
    engine.dispose()
    with sync_db.engine.begin() as connection:
        for model in reversed(MODELS):
            connection.execute(model.__table__.delete())


# -- experiments -------------------------------------------------------------------------------------------------------


@on_servers
def test_keys(lab: Lab) -> None:
    EXPERIMENTS["named"](lab)
    answers = [each for each in lab.learned if " of 20 tasks: " in each]
    assert [each.partition(": ")[2] for each in answers] == [
        "only these rows are locked; another session gets 5 of 5 others",
        "only these rows are locked; another session gets 5 of 5 others",
    ]
    assert len(lab.learned) == 4  # also with an empty queue, for which the statements are planned first


@on_servers
def test_rows_that_are_not_returned(lab: Lab) -> None:
    said: list[str] = []
    EXPERIMENTS["rejected"](replace(lab, say=said.append))
    assert "  three due tasks, of which one may be claimed (lease): c is claimed" in said
    assert "  three due tasks, of which one may be claimed (lock): c is claimed" in said
    assert len([each for each in said if each.startswith("  the first task is locked") and "None" not in each]) == 2
    assert len(lab.learned) == 5
    assert lab.learned[-1] == "a rollback to a savepoint: 1 LOCKS STAY"
    EXPERIMENTS["rejected"](replace(lab, views=replace(STANDING_IN, locks="SELECT 'task', 'OBJECT', 'IX', 1")))
    assert lab.learned[-1] == "a rollback to a savepoint: no lock of a row is shown"


@on_servers
def test_composite_keys(lab: Lab) -> None:
    said: list[str] = []
    written = "SELECT 'seat', 'KEY', 'X', count(*) FROM seat WHERE status = 'completed'"
    lab = replace(lab, views=replace(STANDING_IN, locks=written), say=said.append)
    EXPERIMENTS["composite"](lab)
    locks = said.index("  three seats of one line are completed:") + 1
    assert said[locks].split() == ["3", "X", "KEY", "seat"]
    assert [each.partition(":")[0] for each in lab.learned] == ["three keys of one line", "slots"]
    assert all(each.endswith("another session gets 5 of 5 others") for each in lab.learned)


@on_servers
def test_optimized_locking(lab: Lab) -> None:
    EXPERIMENTS["optimized"](lab)
    assert lab.learned == ["this server has no optimized locking: use SQL Server 2025 or Azure SQL Database"]
    said: list[str] = []
    off = replace(lab, views=replace(STANDING_IN, optimized="SELECT 0"), say=said.append, learned=[])
    EXPERIMENTS["optimized"](off)
    assert said.index("  SELECT 2") < said.index("  SELECT 3")  # it is switched on, and off again
    assert [each for each in off.learned if "not committed" in each and each.endswith("gets 5 of 5 others")] != []
    said.clear()
    given: Any = {"optimized": "SELECT 0", "restore": ("SELECT 3", "SELECT 4"), "prepared": "SELECT 1"}
    EXPERIMENTS["optimized"](replace(off, views=replace(STANDING_IN, **given)))
    assert "  SELECT 3" in said
    assert "  SELECT 4" not in said  # it was on before
    on = replace(lab, views=replace(STANDING_IN, optimized="SELECT 1"), say=said.append, learned=[])
    said.clear()
    EXPERIMENTS["optimized"](on)
    assert "  SELECT 2" not in said
    assert "  SELECT 3" not in said


@on_servers
def test_many_sessions(lab: Lab) -> None:
    EXPERIMENTS["crowded"](lab)
    assert lab.learned == ["5 of 5 sessions got a task each"]


@on_servers
def test_sessions_that_wait(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session has locked the whole table; it lets go only after the patience of the experiment has ended."""
    monkeypatch.setattr(experiments, "PATIENCE", 0)
    waiting = replace(STANDING_IN, waits="SELECT 7, 'enq: TX - allocate ITL entry'")
    EXPERIMENTS["crowded"](replace(lab, views=waiting))
    assert "waited, for enq: TX - allocate ITL entry" in lab.learned[0]


@on_servers
def test_the_order_of_messages(lab: Lab) -> None:
    EXPERIMENTS["ordered"](replace(lab, ready=(1_200,)))  # of which 200 are copies of others
    assert lab.learned == ["a claim from two topics, of 1,200: reads no index or table as a whole"]
    with lab.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM mail WHERE status = 'available'")) == 1_200


# -- verdicts ----------------------------------------------------------------------------------------------------------

PK, CLAIM = Lock("PK__task", "KEY", "U", 3), Lock("ix_task_claim", "KEY", "U", 40)


@pytest.mark.parametrize(
    ("locks", "verdict"),
    [
        ([PK], "only these rows are locked"),
        ([PK, Lock("task", "OBJECT", "IX", 1), Lock("PK__task", "PAGE", "IU", 2)], "only these rows are locked"),
        ([PK, CLAIM], "FOUND BY ANOTHER INDEX than the primary key: 40 entries of ix_task_claim are locked"),
        ([PK, PK], "6 ROWS ARE LOCKED, 3 too many"),
        ([Lock("task", "OBJECT", "X", 1)], "pages or the whole table are locked (OBJECT X)"),
        ([], "no lock of a row is shown"),
    ],
)
def test_verdicts_about_named_rows(locks: list[Lock], verdict: str) -> None:
    assert only_named(locks, 3, {"ix_task_claim", "ix_task_due"}) == verdict


@pytest.mark.parametrize(
    ("locks", "count", "verdict"),
    [
        ([PK], 3, "nothing else stays locked"),
        ([PK], 0, "MORE STAYS LOCKED: 3 in PK__task"),
        ([Lock("PK__task", "KEY", "X", 3)], 0, "nothing else stays locked"),
        ([Lock("PK__task", "KEY", "X", 1), CLAIM], 0, "MORE STAYS LOCKED: 40 in ix_task_claim"),
        ([Lock("task", "OBJECT", "IX", 1)], 0, "no lock of a row is shown"),
    ],
)
def test_verdicts_about_further_rows(locks: list[Lock], count: int, verdict: str) -> None:
    assert kept(locks, count) == verdict


def test_steps_of_plans() -> None:
    xml = '<ShowPlanXML><RelOp NodeId="0" PhysicalOp="Index Seek"><Object Table="[task]" Index="[ix_task_claim]"/>'
    assert plan_steps(xml) == ["Index Seek", "index ix_task_claim"]
    assert plan_steps("|  2 |   SORT ORDER BY STOPKEY |") == ["|  2 |   SORT ORDER BY STOPKEY |"]


# -- the program -------------------------------------------------------------------------------------------------------


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without experiments that need two writers, and with one that fails."""

    def fine(lab: Lab) -> None:
        """Is it fine?"""
        lab.answer(f"it is, with {len(lab.fill(Task, 7))} tasks")

    def faulty(lab: Lab) -> None:
        """Is it faulty?"""
        raise LookupError("it is")

    monkeypatch.setattr(program, "EXPERIMENTS", {"faulty": faulty, "fine": fine})
    monkeypatch.setattr(program, "create_engine", lambda url, isolation_level, **options: create_engine(url, **options))
    url = f"sqlite:///{tmp_path / 'lab.db'}"
    assert program.main([url], {"sqlite": STANDING_IN}) == 1
    output = capsys.readouterr().out
    assert "[2 of 2] fine: Is it fine?" in output
    assert output.endswith("- faulty FAILED: LookupError: it is\n- it is, with 7 tasks\n")
    with create_engine(url).connect() as connection:
        assert inspect(connection).get_table_names() == []
    assert program.main([url, "fine"], {"sqlite": STANDING_IN}) == 0
    lacking = replace(STANDING_IN, locks="SELECT * FROM sys.dm_tran_locks")
    assert program.main([url], {"sqlite": lacking}) == 2
    assert "GRANT everything TO this account" in capsys.readouterr().err


def test_a_database_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE theirs (id INTEGER)")
    assert program.main([url], {"sqlite": STANDING_IN}) == 2
    assert "it has tables (theirs)" in capsys.readouterr().err
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "url"),
        (["mssql+pyodbc://", "nonsense"], "unknown experiment 'nonsense'"),
        (["mssql+pyodbc://", "--sessions", "0"], "give a positive number"),
        (["mssql+pyodbc://", "--ready", "many"], "give a positive number"),
    ],
)
def test_wrong_arguments(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(arguments)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("url", ["sqlite://", "nonsense", "no_such_dialect://"])
def test_other_urls(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([url]) == 2
    assert "nothing was run: " in capsys.readouterr().err


def test_the_help_lists_the_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for name, experiment in EXPERIMENTS.items():
        assert " ".join(f"{name} {experiment.__doc__}".split()) in told
    assert "have never run on a real server" in told
