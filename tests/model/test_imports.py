"""What importing the package loads: what a program does not use costs it nothing."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sqlqueue

_ENGINES = {"sqlqueue.dialects", *(f"sqlalchemy.dialects.{name}" for name in ("postgresql", "mysql", "sqlite"))}
_NEVER = {
    "alembic",
    "multiprocessing",
    "sqlqueue.alembic",
    "sqlqueue.asyncio",
    "sqlqueue.cli",
    "sqlqueue.dashboard",
    "sqlqueue.diagnostics.check",
    "sqlqueue.evaluation",
    "sqlqueue.outbox",
    "sqlqueue.testing",
    "sqlqueue.worker",
    "typer",
}


@pytest.mark.parametrize(
    ("statement", "unused"),
    [
        ("import sqlqueue", {"sqlqueue.model", "sqlqueue.operations", "sqlqueue.queue"} | _ENGINES),
        ("from sqlqueue import QueueMixin, QueueOptions, Every", {"sqlqueue.operations"}),
        ("from sqlqueue import QueueMixin, QueueSession", set()),
    ],
)
def test_unused_modules_are_not_loaded(statement: str, unused: set[str]) -> None:
    loaded = _loaded_by(statement)
    assert "sqlqueue" in loaded
    assert not loaded & (unused | _NEVER)


def test_a_worker_loads_no_server() -> None:
    loaded = _loaded_by("from sqlqueue import Worker")
    assert "sqlqueue.worker.reports" in loaded
    assert not loaded & {"http.server", "sqlqueue.asyncio", "sqlqueue.cli", "sqlqueue.dashboard", "sqlqueue.testing"}


def _loaded_by(statement: str) -> set[str]:
    before = "import sys, sqlalchemy.ext.asyncio; before = {*sys.modules}"
    program = f"{before}; {statement}; print(*{{*sys.modules}} - before)"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=300)
    return {*output.stdout.split()}


def test_names_are_what_type_checkers_see() -> None:
    tree = ast.parse(Path(sqlqueue.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    seen = {
        each.name: getattr(import_module(f"sqlqueue.{node.module}"), each.name)
        for node in imports
        for each in node.names
        if each.name in sqlqueue.__all__
    }
    operations = import_module("sqlqueue.operations")
    for name in sqlqueue.__all__:
        assert getattr(sqlqueue, name) is (seen[name] if name in seen else getattr(operations, name))
    assert {*sqlqueue.__all__} <= {*dir(sqlqueue)}
    assert not hasattr(sqlqueue, "operation")
