"""T-SQL, checked by Microsoft's own parser (ScriptDom, the grammars of SQL Server 2016 and 2019).

    pip install pythonnet dotnetcore2
    pip install --no-deps mssql-cli==1.0.0

It checks the syntax, but not names (which `dacfx.py` does), types, conflicting hints or locking.
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
SCRIPT_DOM = "Microsoft.SqlServer.TransactSql.ScriptDom"
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


def parameters(sql: str) -> list[str]:
    """Return the names of the parameters, each once."""
    return list(dict.fromkeys(found["name"] for found in _PARAMETER.finditer(sql) if found["name"]))


def package(module: str) -> Path:
    """Return the directory of an installed package.  Raises `ParserMissingError`."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ParserMissingError(f"no T-SQL parser: {module} is not installed ({_INSTALL})")
    return Path(spec.origin).parent


def assemblies(*names: str) -> None:
    """Start .NET and load these assemblies of Microsoft's tools, which can then be imported by their namespaces."""
    package("pythonnet")
    dotnet, tools = package("dotnetcore2") / "bin", package("mssqlcli") / "mssqltoolsservice" / "bin"
    os.environ.setdefault("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")  # otherwise .NET does not start without ICU
    spec = importlib.import_module("clr_loader").DotnetCoreRuntimeSpec("Microsoft.NETCore.App", "3.1.0", dotnet)
    importlib.import_module("pythonnet").load("coreclr", dotnet_root=dotnet, runtime_spec=spec)
    for name in names:
        importlib.import_module("clr").AddReference(str(tools / f"{name}.dll"))


@functools.cache
def _parser() -> Callable[[str], list[str]]:
    assemblies(SCRIPT_DOM)
    script_dom = importlib.import_module(SCRIPT_DOM)
    reader = importlib.import_module("System.IO").StringReader

    @functools.cache
    def check(sql: str) -> list[str]:
        _, old = script_dom.TSql130Parser(True).Parse(reader(sql), None)
        script, new = script_dom.TSql150Parser(True).Parse(reader(sql), None)
        found = dict.fromkeys(f"{e.Line}:{e.Column} {e.Message} ({e.Number})" for e in (*old, *new))
        return list(found) or _misread(script, sql)

    return check


def _misread(script: Any, sql: str) -> list[str]:
    # A batch may begin with the bare name of a procedure, so that `SELEC 1` is a call of SELEC to the parser.
    statements = [statement for batch in script.Batches for statement in batch.Statements]
    calls = [s for s in statements if s.GetType().Name == "ExecuteStatement"]
    bare = [s for s in calls if not re.match("exec", sql[s.StartOffset :], re.IGNORECASE)]
    if not statements:
        return ["no statement at all"]
    return [f"{s.StartLine}:{s.StartColumn} taken for the call of a procedure" for s in bare]
