"""The defaults of moments: each engine says in words of its own how the clock is read in UTC."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import AlterColumnOp
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column, DefaultClause, Identity

from ..dialects import adapter_for, moment_defaults
from ..sql.clock import utcdefault


def is_ours(default: object) -> bool:
    return isinstance(default, DefaultClause) and isinstance(default.arg, utcdefault)


def compare_default(
    context: AutogenContext,
    op: AlterColumnOp,
    _schema: str | None,
    _table: str,
    _column: str,
    live: Column[Any],
    wanted: Column[Any],
) -> PriorityDispatchResult:
    """Whether or not Alembic compares defaults, which it does by their words alone."""
    if isinstance(wanted.server_default, Identity) and not context.dialect.supports_identity_columns:
        op.modify_server_default = False  # the engine numbers keys in another way, and SQLAlchemy leaves it out
    if is_ours(wanted.server_default):
        text = getattr(getattr(live.server_default, "arg", None), "text", None)
        if text is not None and adapter_for(context.dialect).schema.same_default(context.dialect, text):
            op.modify_server_default = False
        else:
            op.modify_server_default = wanted.server_default
            op.existing_server_default = live.server_default or False
            op.existing_type = wanted.type  # which every engine can read
    return PriorityDispatchResult.CONTINUE


def render_defaults(context: AutogenContext) -> None:
    """Have revisions choose the default when they are run, by the engine that they are run on."""
    given = context.opts.get("render_item")

    def render(kind: str, item: Any, rendering: AutogenContext) -> Any:
        rendered = given(kind, item, rendering) if given else False
        return _chosen(rendering) if rendered is False and kind == "server_default" and is_ours(item) else rendered

    context.opts = {**context.opts, "render_item": render}


def _chosen(context: AutogenContext) -> str:
    sa, op = (context.opts[f"{module}_module_prefix"] or "" for module in ("sqlalchemy", "alembic"))
    words = moment_defaults()
    portable = max(words.values(), key=list(words.values()).count)
    others = {name: text for name, text in sorted(words.items()) if text != portable}
    return f"{sa}text({others!r}.get({op}get_context().dialect.name, {portable!r}))"
