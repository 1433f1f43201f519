"""The plugin for Alembic 1.18 and newer that makes autogenerate handle queues. Alembic loads it automatically.

Without it, migrations of new queues are correct on the engine that they were generated on.  With it, a revision also

- sets the status of the existing rows of a table that becomes a queue: completed by default, and never pruned;
- replaces an index of a queue that differs from the one that claims need, which Alembic does not notice;
- adds and drops the columns of a queue in a form that runs on every engine;
- changes tables on SQLite in place and completely or not at all, instead of copying them in batch mode;
- gives time columns each engine's expression for the current time in UTC as their default, and corrects other defaults.

A revision is for the connected engine, or for those named by ``MigrationOptions(engines=...)``: on another one it
raises an error.  It contains standard operations only, and never imports this package.  Other tables are left alone. To
disable it: ``context.configure(autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.sqlqueue"])``.
"""

from importlib.metadata import entry_points

from .plugin import PLUGIN, MigrationOptions, plugin, verify

__all__ = ["PLUGIN", "MigrationOptions", "verify"]

if not entry_points(group="alembic.plugins", name=PLUGIN):  # run from the source tree, not installed
    from contextlib import suppress

    from alembic.runtime.plugins import Plugin

    with suppress(ValueError):  # already registered when the module is reloaded
        Plugin.setup_plugin_from_module(plugin, PLUGIN)
