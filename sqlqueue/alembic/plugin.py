"""A project's options for the migrations of its queues, and the object that Alembic loads as a plugin.

Alembic loads it during its own import, so this module must not import Alembic until it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self

from sqlalchemy import Connection, MetaData

from .._support.errors import ArgumentError
from ..dialects import adapter_for, adapters
from ..model.declaration import queues
from ..queue.options import FINAL, Status

if TYPE_CHECKING:
    from alembic.runtime.plugins import Plugin

# -- a project's options for the migrations of its queues -------------------------------------------------------------

KEYWORD = "sqlqueue"
"""The name of the argument of ``context.configure``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOptions:
    """Options for migrations, set in ``env.py``: ``context.configure(..., sqlqueue=MigrationOptions(...))``."""

    engines: Collection[str] = ()
    """The engines that revisions are for, by the names of SQLAlchemy's dialects, such as ``("postgresql", "sqlite")``:
    by default the connected one.  On another engine, a revision raises an error."""
    existing_rows: Status | Literal["completed", "cancelled", "discarded", "available"] = Status.COMPLETED
    """The status of the existing rows of a table that becomes a queue: ``completed``, ``cancelled`` or ``discarded``,
    which leaves their ``finished_at`` NULL, so that ``prune`` does not delete them; or ``available``, so that workers
    claim all of them."""
    concurrently: bool = False
    """Whether PostgreSQL creates and drops the indexes of queues on existing tables ``CONCURRENTLY``, without blocking
    writers.  This cannot be rolled back, and it commits what the revision did before: put it into a separate revision,
    or set ``transaction_per_migration=True``.  The next autogenerate notices an index that failed to build.  Other
    engines ignore the option."""
    postgresql_storage: bool = False
    """Whether the tables of queues get storage parameters on PostgreSQL.  A queue updates each row several times, and
    a claim has to skip the dead entries that this leaves in its index:

    - ``fillfactor = 80``: new versions of a row fit into its page, which the claim has just read.
    - ``autovacuum_vacuum_scale_factor = 0.01``: with the default of 0.2, dead rows could grow to a fifth of the table,
      finished rows included.
    - ``autovacuum_vacuum_threshold = 1000``: with the default of 50, every round would vacuum a small queue.
    - ``autovacuum_vacuum_cost_delay = 0``: a vacuum that pauses does not keep up with a busy queue.
    - ``autovacuum_analyze_scale_factor = 0.02``: the number of available rows, which the planner relies on, changes
      faster than the table grows.

    Other engines ignore the option."""

    def __post_init__(self) -> None:
        unknown = {self.engines} if isinstance(self.engines, str) else {*self.engines} - {*adapters()}
        if unknown:
            known = ", ".join(sorted(adapters()))
            raise ArgumentError(f"engines={self.engines!r}: give a list of names of dialects: {known}")
        allowed = (Status.AVAILABLE, *FINAL)
        if self.existing_rows not in allowed:
            raise ArgumentError(
                f"existing_rows={self.existing_rows!r}: give {', '.join(allowed[:-1])} or {allowed[-1]};"
                " no other status makes sense for a row that was never claimed"
            )


def options_in(configured: dict[str, Any]) -> MigrationOptions:
    """Return the options given to ``context.configure``; the defaults if there are none."""
    options = configured.get(KEYWORD, MigrationOptions())
    if not isinstance(options, MigrationOptions):
        raise ArgumentError(f"context.configure({KEYWORD}={options!r}): give a sqlqueue.alembic.MigrationOptions(...)")
    return options


# -- the check, before a migration, of whether the server supports the project's queues -------------------------------


def verify(connection: Connection, metadata: MetaData | Sequence[MetaData]) -> None:
    """Raise :class:`.UnsupportedDialectError` if this server does not support the queues of ``metadata``.

    Nothing is changed.  Autogenerate calls this automatically.  For ``alembic upgrade``, call it in ``env.py`` before
    ``context.configure``: most engines do not roll back a migration that fails halfway.
    """
    if not any(queues(each) for each in listed(metadata)):
        return
    within = connection.in_transaction()
    adapter_for(connection.dialect).inspection.verify(connection)
    if not within:
        connection.rollback()  # otherwise Alembic would take the transaction for the caller's, and not commit it


def listed(metadata: MetaData | Sequence[MetaData] | None) -> Sequence[MetaData]:
    """Return ``metadata`` as a sequence, since a project can have one, several or none."""
    return [metadata] if isinstance(metadata, MetaData) else metadata or ()


# -- the object that Alembic loads through the entry point `alembic.plugins` ------------------------------------------

PLUGIN = "alembic.autogenerate.sqlqueue"
"""The plugin's name; it matches ``alembic.autogenerate.*``, which Alembic enables by default."""


class PluginModule(ModuleType):
    """The plugin in both forms that Alembic accepts: a module, and up to version 1.20.0 a collection of modules."""

    def __iter__(self) -> Iterator[Self]:
        yield self

    @staticmethod
    def setup(plugin: Plugin) -> None:
        """Register the comparators; called by Alembic."""
        from alembic.util import DispatchPriority  # noqa: PLC0415

        first, last, add = DispatchPriority.FIRST, DispatchPriority.LAST, plugin.add_autogenerate_comparator
        add(_calling("comparison", "verify_first"), "autogenerate", priority=first)
        add(_calling("operations", "compare_default"), "column", "queue_default", priority=last)
        add(_calling("comparison", "complete"), "autogenerate", priority=last)


def _calling(module: str, name: str) -> Callable[..., Any]:
    def compare(*arguments: Any) -> Any:
        return getattr(import_module(f".{module}", __package__), name)(*arguments)

    return compare


plugin = PluginModule(__name__)
