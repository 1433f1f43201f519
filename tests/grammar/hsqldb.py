"""Oracle SQL, prepared by HSQLDB in its mode for Oracle, which binds names and types.

    apt-get install default-jre-headless libhsqldb-java
    pip install jpype1

It finds unknown tables, columns and functions, and types that do not fit, although its types are not quite Oracle's. It
binds the statements of a PL/SQL block, not the block itself. SKIP LOCKED and window functions, which it does not know,
are left out.
"""

import importlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.grammar import ParserMissingError, ask

_JAR = Path("/usr/share/java/hsqldb.jar")
_INSTALL = "apt-get install default-jre-headless libhsqldb-java; pip install jpype1"
_QUOTED = r"""'(?:[^']|'')*' | (?<!:)"(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/"""
_PARAMETER = re.compile(rf"""{_QUOTED} | (?<![:\w]):(?P<name>\w+|"\w+")""", re.VERBOSE | re.DOTALL)
_BLOCK = re.compile(r"\s*(DECLARE|BEGIN)\b")
_IN_BLOCK = re.compile(
    r"""\bIS\s+(?P<cursor>SELECT\b.*?);
    | \bIN\s+\((?P<loop>SELECT\b.*?)\)\s+LOOP\b
    | ^\s*(?P<write>(?:INSERT|UPDATE|DELETE)\b.*?);""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_RETURNING = re.compile(r"\sRETURNING\s+(?P<values>.*?)\s+(?:BULK\s+COLLECT\s+)?INTO\s.*", re.DOTALL)
_WINDOW = re.compile(r"\w+\([^()]*\) OVER \((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_TABLE = re.compile(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+(?:/\*.*?\*/\s*)?(?P<table>[\w\".]+)")


def errors(ddl: Sequence[str], statements: Mapping[str, str]) -> dict[str, list[str]]:
    """Return HSQLDB's errors for each statement, by name; those of the DDL under `""`.

    Bound parameters are written `:name`. Raises `ParserMissingError`.
    """
    if importlib.util.find_spec("jpype") is None or shutil.which("java") is None or not _JAR.exists():
        raise ParserMissingError(f"no binder of Oracle's SQL: HSQLDB, Java or JPype is not installed ({_INSTALL})")
    distinct = list(dict.fromkeys(statements.values()))
    *found, of_ddl = ask([sys.executable, "-m", __name__], {"ddl": ddl, "statements": distinct})
    return {"": of_ddl} | {name: found[distinct.index(sql)] for name, sql in statements.items()}


def parts(sql: str) -> Iterator[str]:
    """Return the statements of a block, or the statement itself, as HSQLDB can prepare them."""
    inside = [found[found.lastgroup or 0] for found in _IN_BLOCK.finditer(sql)]
    for part in inside if _BLOCK.match(sql) else [sql]:
        plain = re.sub(r"\bROWID = \w+\(\w+\)", "ROWID = ?", _PARAMETER.sub(_marked, part))
        plain = _WINDOW.sub("0", plain.replace(" SKIP LOCKED", ""))
        # RETURNING becomes a query of its own
        returned, target = _RETURNING.search(plain), _TABLE.match(plain)
        if returned and target:
            yield f"SELECT {returned['values']} FROM {target['table']}"
            plain = plain[: returned.start()]
        yield plain


def _marked(found: re.Match[str]) -> str:
    return "?" if found["name"] else found[0]


def table(sql: str) -> str:
    """Return the DDL with types that HSQLDB has, and with the pseudocolumn ROWID as a column."""
    sql = re.sub(r"\bVARCHAR\((\d+) CHAR\)", r"VARCHAR(\1)", sql.replace("NCLOB", "CLOB"))
    return re.sub(r"\n\)$", ",\n\tROWID VARCHAR2(18)\n)", sql) if sql.startswith("CREATE TABLE") else sql


def _bind(ddl: Sequence[str], statements: Sequence[str]) -> list[list[str]]:
    jpype = importlib.import_module("jpype")
    jpype.startJVM(classpath=[str(_JAR)])
    connection = jpype.java.sql.DriverManager.getConnection("jdbc:hsqldb:mem:oracle", "sa", "")
    connection.createStatement().execute("SET DATABASE SQL SYNTAX ORA TRUE")

    def complaints(act: Callable[[str], Any], given: Iterable[str]) -> list[str]:
        found = []
        for sql in given:
            try:
                act(sql)
            except jpype.java.sql.SQLException as error:
                found.append(f"{str(error.getMessage()).partition(' in statement [')[0]} in: {sql}")
        return found

    of_ddl = complaints(connection.createStatement().execute, map(table, ddl))
    return [*(complaints(connection.prepareStatement, parts(sql)) for sql in statements), of_ddl]


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump(_bind(asked["ddl"], asked["statements"]), sys.stdout)
