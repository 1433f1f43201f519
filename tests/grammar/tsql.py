"""T-SQL, checked by Microsoft's own parser (ScriptDom, the grammar of SQL Server 2019).

    pip install pythonnet dotnetcore2
    pip install --no-deps mssql-cli==1.0.0

It checks the syntax, but not names, types, conflicting hints or locking.
"""

import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.grammar import ParserMissingError

_INSTALL = "pip install pythonnet dotnetcore2; pip install --no-deps mssql-cli==1.0.0"
_SCRIPT_DOM = "Microsoft.SqlServer.TransactSql.ScriptDom"
_QUOTED = r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \[(?:[^\]]|\]\])*\] | --[^\n]* | /\*.*?\*/"""
_PARAMETER = re.compile(rf"{_QUOTED} | (?<![:\w]):(?P<name>[A-Za-z_]\w*)", re.VERBOSE | re.DOTALL)


def errors(statements: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the parser's errors for each statement, by name; an empty list if it is accepted.

    Bound parameters are written `:name`. Raises `ParserMissingError`.
    """
    check = _parser()
    return {name: check(with_variables(sql)) for name, sql in statements.items()}


def with_variables(sql: str) -> str:
    """Return the statement with every `:name` replaced by the variable `@name`, except in literals, quoted names and
    comments."""
    return _PARAMETER.sub(lambda found: f"@{found['name']}" if found["name"] else found[0], sql)


def _package(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ParserMissingError(f"no T-SQL parser: {module} is not installed ({_INSTALL})")
    return Path(spec.origin).parent


@functools.cache
def _parser() -> Callable[[str], list[str]]:
    _package("pythonnet")
    _start_dotnet(_package("dotnetcore2") / "bin")
    dll = _package("mssqlcli") / "mssqltoolsservice" / "bin" / f"{_SCRIPT_DOM}.dll"
    importlib.import_module("clr").AddReference(str(dll))
    script_dom = importlib.import_module(_SCRIPT_DOM)
    reader = importlib.import_module("System.IO").StringReader

    def check(sql: str) -> list[str]:
        script, found = script_dom.TSql150Parser(True).Parse(reader(sql), None)
        return [f"{e.Line}:{e.Column} {e.Message} ({e.Number})" for e in found] or _misread(script, sql)

    return check


def _start_dotnet(root: Path) -> None:
    os.environ.setdefault("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")  # otherwise .NET does not start without ICU
    spec = importlib.import_module("clr_loader").DotnetCoreRuntimeSpec("Microsoft.NETCore.App", "3.1.0", root)
    importlib.import_module("pythonnet").load("coreclr", dotnet_root=root, runtime_spec=spec)


def _misread(script: Any, sql: str) -> list[str]:
    # A batch may begin with the bare name of a procedure, so that `SELEC 1` is a call of SELEC to the parser.
    statements = [statement for batch in script.Batches for statement in batch.Statements]
    calls = [s for s in statements if s.GetType().Name == "ExecuteStatement"]
    bare = [s for s in calls if not re.match("exec", sql[s.StartOffset :], re.IGNORECASE)]
    if not statements:
        return ["no statement at all"]
    return [f"{s.StartLine}:{s.StartColumn} taken for the call of a procedure" for s in bare]
