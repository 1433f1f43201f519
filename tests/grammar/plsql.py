"""Oracle SQL and PL/SQL, checked by the ANTLR PL/SQL grammar on Node.js.

    npm install --prefix <directory> --ignore-scripts --legacy-peer-deps \\
        @griffithswaite/ts-plsql-parser@1.1.1 antlr4@4.13.2
    export SQLQUEUE_GRAMMAR_NODE=<directory>

The parser requires antlr4@4.13.0, which returns the same results but takes four times as long. The grammar is not
Oracle's own. It covers the syntax (except expressions after the LIMIT of a FETCH, which Oracle accepts), and
`plsql.mjs` adds a check for misplaced FOR UPDATE. It does not check names, types and locking.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.grammar import ParserMissingError, ask

_DIRECTORY = "SQLQUEUE_GRAMMAR_NODE"
_PACKAGES = ("@griffithswaite/ts-plsql-parser", "antlr4")
_INSTALL = (
    "npm install --prefix <directory> --ignore-scripts --legacy-peer-deps @griffithswaite/ts-plsql-parser@1.1.1"
    " antlr4@4.13.2"
)
_SCRIPT = Path(__file__).with_suffix(".mjs")
_YOUNG = "--max-semi-space-size=64"  # megabytes: with the default, collecting garbage takes a quarter of the time


def errors(statements: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the grammar's errors for each statement, by name; an empty list if it is accepted.

    Bound parameters are written `:name`. Raises `ParserMissingError`.
    """
    distinct = list(dict.fromkeys(statements.values()))
    found = dict(zip(distinct, ask(_command(), distinct), strict=True))
    return {name: found[sql] for name, sql in statements.items()}


def _command() -> list[str]:
    node = shutil.which("node")
    if node is None:
        raise ParserMissingError("no PL/SQL parser: node is not installed")
    directory = os.environ.get(_DIRECTORY)
    if not directory:
        raise ParserMissingError(f"no PL/SQL parser: {_DIRECTORY} is not set ({_INSTALL})")
    missing = [package for package in _PACKAGES if not Path(directory, "node_modules", package).is_dir()]
    if missing:
        raise ParserMissingError(f"no PL/SQL parser: {', '.join(missing)} not installed in {directory} ({_INSTALL})")
    return [node, _YOUNG, str(_SCRIPT), directory]
