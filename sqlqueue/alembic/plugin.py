"""The object that Alembic loads through the entry point ``alembic.plugins``.

Alembic loads it during its own import, so this module must not import Alembic until it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from alembic.runtime.plugins import Plugin

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
