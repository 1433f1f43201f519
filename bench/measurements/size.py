"""Counts modules and lines of code, without blank lines, comments and docstrings: `python -m bench.measurements.size`.

Prints a line for each package of the library, sums for the library and for the tests, and the smallest modules.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ("tests", "bench/tests")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Module(NamedTuple):
    path: Path
    lines: int
    """Lines of code."""


def lines_of_code(text: str) -> int:
    """Return the number of lines with code, docstrings not included: those below attributes neither."""
    with_tokens = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(with_tokens - {line for text in _texts(ast.parse(text)) for line in range(text.lineno, _end(text))})


def _texts(tree: ast.AST) -> Iterator[ast.Expr]:
    """Yield the expressions that are only a string: docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def _end(node: ast.Expr) -> int:
    return (node.end_lineno or node.lineno) + 1


def modules(*folders: str) -> list[Module]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Module(path.relative_to(ROOT), lines_of_code(path.read_text("utf-8"))) for path in paths]


def _package(module: Module) -> str:
    return module.path.parts[1] if len(module.path.parts) > 2 else "(top)"


def _line(name: str, counted: Iterable[Module]) -> str:
    counted = list(counted)
    return f"{name:14} {len(counted):5} modules {sum(each.lines for each in counted):7,} lines of code"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smallest", type=int, default=0, metavar="N", help="also list the N smallest modules")
    given = parser.parse_args()
    library = modules("sqlqueue")
    for package in sorted({_package(each) for each in library}):
        print(_line(package, (each for each in library if _package(each) == package)))
    print(_line("sqlqueue", library))
    print(_line("tests", modules(*TESTS)))
    for each in sorted(library, key=lambda module: module.lines)[: given.smallest]:
        print(f"{each.lines:5} {each.path}")


if __name__ == "__main__":
    main()
