"""Models whose one table serves all queues of a ``MetaData``: pauses, registered workers, and the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import MetaData, Table

from .._support.exc import ConfigurationError
from ..queue.spec import QueueSpec
from .declaration import place
from .mixins import subclasses


class CompanionMixin:
    """The base of mixins for such models: declares their columns."""

    @staticmethod
    def __companion_columns__() -> Mapping[str, dict[str, Any]]:
        """Return the arguments of each column by its name."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        is_mixin = CompanionMixin in cls.__bases__ or cls.__dict__.get("__abstract__")
        if not is_mixin and not any("__mapper__" in base.__dict__ for base in cls.__mro__[1:]):
            for name, arguments in cls.__companion_columns__().items():
                place(cls, name, arguments)
        super().__init_subclass__(**kwargs)


def companion_table(mixin: type[CompanionMixin], metadata: MetaData) -> Table | None:
    """Return the table of the model in ``metadata`` that derives from ``mixin``, or ``None``.

    Raises :class:`.ConfigurationError` if there are several.
    """
    mapped = (cls.__dict__.get("__table__") for cls in subclasses(mixin))
    found = [table for table in mapped if table is not None and table.metadata is metadata]
    if len(found) > 1:
        names = ", ".join(sorted(table.fullname for table in found))
        raise ConfigurationError(
            f"all queues share one table, not {names}: derive only one model from {mixin.__name__}"
        )
    return found[0] if found else None


def missing_companion(mixin: type[CompanionMixin], spec: QueueSpec, problem: str) -> ConfigurationError:
    """Return the error that no model derives from ``mixin``, with an example; ``problem``: what is impossible."""
    name = mixin.__name__
    kind = name.removesuffix("Mixin")
    return ConfigurationError(
        f"{problem}: there is no model derived from {name}. Add one, and migrate:\n\n"
        f"    from sqlqueue import {name}\n\n"
        f"    class Queue{kind}({name}, Base):\n"
        f'        __tablename__ = "queue_{kind.lower()}"\n',
        model=spec.entity,
    )
