"""The command ``sqlqueue check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from ..diagnostics.check import check as find
from ..dialects import adapter_for
from ..model.declaration import specs_of
from ..queue.spec import Finding, Severity
from ._database import connect, refusals
from ._options import Target, Url, load
from ._output import facts, plain, print_json, say

AsJson = Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")]
Strict = Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")]

_STYLES: dict[Severity, dict[str, Any]] = {
    Severity.ERROR: {"fg": "red", "bold": True},
    Severity.WARNING: {"fg": "yellow"},
    Severity.NOTE: {"dim": True},
}


def check(target: Target, url: Url, as_json: AsJson = False, strict: Strict = False) -> None:
    """Check whether a database can run an application's queues.

        sqlqueue check --url postgresql+psycopg://me@host/shop shop.models:Base

    Checks the server (its version, whether it is writable, the isolation level),
    then each queue (its table, columns and indexes, and this account's privileges
    on them), then whether the planner would use the indexes for claims. Each
    finding says what to do.

    Writes nothing and locks no rows: safe to run at any time.

    Exit status: 0 if the queues work, even with warnings and notes; 1 if there
    is an error, or with --strict a warning; 2 for bad usage or a database that does not respond.

    With --json: an object of engine, version, queues, ok and findings; each
    finding with severity (error, warning, note), code, model, table, message
    and fix. The meaning of a code never changes.
    """
    with refusals("check"):
        base = load(target)
        models = [_name(spec.entity) for spec in specs_of(base) if spec.holds_tasks]
        engine, version, findings = connect(url, lambda connection: (*_server(connection), find(connection, base)))
    fatal = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    ok = not any(finding.severity in fatal for finding in findings)
    if as_json:
        shown = [_finding(each) for each in findings]
        print_json({"engine": engine, "version": version, "queues": models, "ok": ok, "findings": shown})
    else:
        _show(f"{engine} {version}", models, findings)
    raise typer.Exit(0 if ok else 1)


def _server(connection: Connection) -> tuple[str, str]:
    version = connection.dialect.server_version_info or ()
    return adapter_for(connection.dialect).product.name, ".".join(map(str, version))


def _name(model: type[object]) -> str:
    return f"{model.__module__}.{model.__qualname__}"


def _finding(found: Finding) -> dict[str, object]:
    return {
        **facts(found, "severity", "code"),
        "model": found.model and _name(found.model),
        **facts(found, "table", "message", "fix"),
    }


def _show(server: str, models: Sequence[str], findings: Sequence[Finding]) -> None:
    counts = Counter(finding.severity for finding in findings)
    for finding in findings:
        about = f" {finding.model.__name__}: " if finding.model else " "
        # never wrapped: statements are copied
        typer.echo(typer.style(finding.severity, **_STYLES[finding.severity]) + plain(f"{about}{finding.message}"))
        say(f"    fix: {finding.fix}\n")
    said = [f"{number} {severity}{'s' * (number > 1)}" for severity, number in sorted(counts.items())]
    queues = f"{len(models)} queue{'s' * (len(models) != 1)}"
    say(f"{server}, {queues}: {', '.join(said) or 'no problems found'}.")
