"""The plugin for Alembic 1.18 and newer, by which autogenerate knows queues.  Alembic loads it by itself.

Without it, migrations of new queues are right as well, on the engine that they were generated on.  With it, a revision
also

- says what the rows of a table become that is turned into a queue: completed, unless told otherwise, and never pruned;
- mends an index of a queue that is there but is not the one that claims need, which Alembic does not see;
- adds and drops the columns of a queue so that it runs on every engine, whichever it was generated on;
- gives moments the default that each engine has for the clock in UTC, also where a table has another.

What it writes are standard operations: a migration never needs this package.  Other tables are left alone.  To leave
it out, ``context.configure(autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.sqlqueue"])``.
"""

from importlib.metadata import entry_points

from .options import MigrationOptions
from .plugin import PLUGIN, plugin
from .verification import verify

__all__ = ["PLUGIN", "MigrationOptions", "verify"]

if not entry_points(group="alembic.plugins", name=PLUGIN):  # run from its source, without being installed
    from contextlib import suppress

    from alembic.runtime.plugins import Plugin

    with suppress(ValueError):  # reloaded, it is registered already
        Plugin.setup_plugin_from_module(plugin, PLUGIN)
