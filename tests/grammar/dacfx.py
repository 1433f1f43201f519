"""T-SQL, bound by Microsoft's own model of a database (DacFx, the tool behind SQL Server's data-tier applications).

    apt-get install libicu-dev, or another package with ICU
    pip install pythonnet dotnetcore2
    pip install --no-deps mssql-cli==1.0.0
    pip install --target <directory> --no-deps --only-binary=:all: --python-version 3.10 pymssql==2.2.5
    export SQLQUEUE_GRAMMAR_OPENSSL=<directory>

It finds unknown tables and columns (also in OUTPUT and CTEs), unknown indexes in INDEX(..) hints, undeclared variables,
and predicates that a filtered index cannot have. It does not check the types of expressions, conflicting hints, plans
and locking. Its .NET needs OpenSSL 1.1, which newer systems do not have, but that wheel does.
"""

import ctypes.util
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.grammar import ParserMissingError, ask
from tests.grammar.tsql import SCRIPT_DOM, assemblies, package, parameters, with_variables

VERSIONS = {"2016": "Sql130", "2019": "Sql150", "Azure": "SqlAzure"}
_OPENSSL = "SQLQUEUE_GRAMMAR_OPENSSL"
_INSTALL = "pip install --target <directory> --no-deps --only-binary=:all: --python-version 3.10 pymssql==2.2.5"
_MODEL = "Microsoft.SqlServer.Dac.Model"
_ASSEMBLIES = (
    SCRIPT_DOM,
    "Microsoft.Data.Tools.Utilities",
    "Microsoft.Data.Tools.Schema.Sql",
    "Microsoft.SqlServer.Dac",
    "Microsoft.SqlServer.Dac.Extensions",
)
_PROCEDURE = re.compile(r"Error validating element \[dbo\]\.\[p(\d+)\]: (SqlProcedure: \[dbo\]\.\[p\d+\] )?")


def errors(ddl: Sequence[str], statements: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Return the model's errors for each version of SQL Server and statement, by name; those of the DDL under `""`.

    Bound parameters are written `:name`. Raises `ParserMissingError`.
    """
    for name in ("pythonnet", "dotnetcore2", "mssqlcli"):
        package(name)
    with tempfile.TemporaryDirectory() as links:
        settings = _libraries(Path(links))
        distinct = list(dict.fromkeys(statements.values()))
        found = ask([sys.executable, "-m", __name__], {"ddl": ddl, "statements": distinct}, **settings)
    return {
        version: {"": given[-1]} | {name: given[distinct.index(sql)] for name, sql in statements.items()}
        for version, given in zip(VERSIONS, found, strict=True)
    }


def _libraries(links: Path) -> dict[str, str]:
    """Return the environment in which .NET finds the libraries that it needs."""
    icu = re.search(r"\.so\.(\d+)", ctypes.util.find_library("icuuc") or "")
    if icu is None:
        raise ParserMissingError("no binder of T-SQL: ICU is not installed (apt-get install libicu-dev)")
    directory = Path(os.environ.get(_OPENSSL, "nowhere"), "pymssql.libs")
    for name in ("libssl", "libcrypto"):
        library = next(directory.glob(f"{name}-*.so.1.1"), None)
        if library is None:
            raise ParserMissingError(f"no binder of T-SQL: {_OPENSSL} is not set to a directory with it ({_INSTALL})")
        (links / f"{name}.so.1.1").symlink_to(library.resolve())
    return {
        "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "0",
        "CLR_ICU_VERSION_OVERRIDE": icu[1],
        "LD_LIBRARY_PATH": f"{links}:{directory.resolve()}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }


def _bind(ddl: Sequence[str], statements: Sequence[str]) -> list[list[list[str]]]:
    assemblies(*_ASSEMBLIES)
    dac = importlib.import_module(_MODEL)
    procedures = [_procedure(f"p{number}", sql) for number, sql in enumerate(statements)]
    return [
        _errors(dac.TSqlModel(getattr(dac.SqlServerVersion, version), dac.TSqlModelOptions()), ddl, procedures)
        for version in VERSIONS.values()
    ]


def _errors(model: Any, ddl: Sequence[str], procedures: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in (*procedures, "the DDL")]
    for number, sql in [(-1, sql) for sql in ddl] + [*enumerate(procedures)]:
        try:
            model.AddObjects(sql)
        except Exception as error:  # one of .NET
            found[number].append(f"{error} in: {sql}")
    for message in model.Validate():
        owner = _PROCEDURE.search(message.Message)
        found[int(owner[1]) if owner else -1].append(_PROCEDURE.sub("", message.Message))
    return [list(dict.fromkeys(given)) for given in found]


def _procedure(name: str, sql: str) -> str:
    """Return a procedure around the statement, since the model binds the bodies of procedures."""
    declared = ", ".join(f"@{parameter} BIGINT" for parameter in parameters(sql))
    return f"CREATE PROCEDURE {name} {declared} AS BEGIN\n{with_variables(sql)}\nEND"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump(_bind(asked["ddl"], asked["statements"]), sys.stdout)
