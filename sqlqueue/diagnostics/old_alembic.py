"""A guard for Alembic before 1.18, which loads no plugins: existing rows of a table that becomes a queue would be
tasks."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..model.mixins import queues

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps


def watch() -> None:
    """Make autogenerate reject such revisions, if an old Alembic was imported before the models."""
    if "alembic" in sys.modules and find_spec("alembic.runtime.plugins") is None:
        from alembic.autogenerate import comparators  # noqa: PLC0415

        comparators.dispatch_for("schema")(refuse_adoption)


def refuse_adoption(context: AutogenContext, found: UpgradeOps, _: Any) -> None:
    """Raise ``CommandError`` if an existing table gets the columns of a queue."""
    from alembic.operations.ops import AddColumnOp, ModifyTableOps  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    given: Any = context.metadata
    specs = [spec for each in (given if isinstance(given, (list, tuple)) else [given]) for spec in queues(each)]
    states = {(spec.table.schema, spec.table.name, spec["status"].name) for spec in specs}
    for op in found.ops:
        for added in op.ops if isinstance(op, ModifyTableOps) else ():
            if isinstance(added, AddColumnOp) and (added.schema, added.table_name, added.column.name) in states:
                raise CommandError(
                    f"{added.table_name} becomes a queue, and workers would run all of its rows as tasks: upgrade to"
                    " Alembic 1.18 or newer, which loads sqlqueue's plugin, so that the rows become completed"
                )
