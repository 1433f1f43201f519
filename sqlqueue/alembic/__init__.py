"""Queues in Alembic: ``import sqlqueue.alembic`` in ``env.py``, and autogenerate knows them.  Alembic 1.18 and newer.

Without it, migrations of queues are right as well.  With it, a revision also

- mends an index of a queue that is there but is not the one that claims need, which Alembic does not see;
- says what the rows become of a table that is turned into a queue: completed, unless told otherwise;
- adds and drops the columns of a queue so that it runs on every engine, whichever it was generated on.

What it writes are standard operations: a migration never needs this package.  Other tables are left alone.  To leave
it out, ``context.configure(autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.sqlqueue"])``.
"""

import sys
from contextlib import suppress

from alembic.runtime.plugins import Plugin
from alembic.util import DispatchPriority

from .comparison import complete, verify, verify_first
from .options import MigrationOptions

__all__ = ["PLUGIN", "MigrationOptions", "verify"]

PLUGIN = "alembic.autogenerate.sqlqueue"
"""Its name; within the names that Alembic takes when it is told none."""


def setup(plugin: Plugin) -> None:
    plugin.add_autogenerate_comparator(verify_first, "autogenerate", priority=DispatchPriority.FIRST)
    plugin.add_autogenerate_comparator(complete, "autogenerate", priority=DispatchPriority.LAST)


with suppress(ValueError):  # reloaded, it is registered already
    Plugin.setup_plugin_from_module(sys.modules[__name__], PLUGIN)
