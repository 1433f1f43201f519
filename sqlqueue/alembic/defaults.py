"""The server defaults of time columns: each engine has its own expression for the current time in UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import AlterColumnOp
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column, DefaultClause, Identity

from ..dialects import adapter_for, moment_defaults
from ..sql.clock import utcdefault
from .adoption import MomentDefault, render_default


def is_ours(default: object) -> bool:
    """Return whether ``default`` is the queue's own default for time columns."""
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
    """Compare the defaults of time columns, whether or not Alembic compares defaults, which it does by text alone."""
    if isinstance(wanted.server_default, Identity) and not context.dialect.supports_identity_columns:
        op.modify_server_default = False  # the engine generates keys in another way, and SQLAlchemy omits Identity
    if is_ours(wanted.server_default):
        text = getattr(getattr(live.server_default, "arg", None), "text", None)
        if text is not None and adapter_for(context.dialect).schema.same_default(context.dialect, text):
            op.modify_server_default = False
        else:
            op.modify_server_default = wanted.server_default
            op.existing_server_default = live.server_default or False
            op.existing_type = wanted.type  # the reflected type may be specific to this engine
    return PriorityDispatchResult.CONTINUE


def render_item(context: AutogenContext) -> Callable[[str, Any, AutogenContext], Any]:
    """Return a ``render_item`` that renders the defaults of queues, and leaves the rest to the project's own.

    Revisions choose the default of a time column by the engine that they are run on, not the one that generated them.
    """
    given = context.opts.get("render_item")

    def render(kind: str, item: Any, rendering: AutogenContext) -> Any:
        if isinstance(item, MomentDefault):
            return render_default(rendering, item)
        rendered = given(kind, item, rendering) if given else False
        return _chosen(rendering) if rendered is False and kind == "server_default" and is_ours(item) else rendered

    return render


def _chosen(context: AutogenContext) -> str:
    sa, op = (context.opts[f"{module}_module_prefix"] or "" for module in ("sqlalchemy", "alembic"))
    words = moment_defaults()
    portable = max(words.values(), key=list(words.values()).count)
    others = {name: text for name, text in sorted(words.items()) if text != portable}
    return f"{sa}text({others!r}.get({op}get_context().dialect.name, {portable!r}))"
