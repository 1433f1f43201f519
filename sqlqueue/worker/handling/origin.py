"""Where child processes find a worker and its handlers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any, TypeGuard

from ..._support.errors import ArgumentError
from .handlers import Handler, name_of


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a handler among those of an importable worker."""

    origin: str
    """The worker, as ``module:attribute``."""
    number: int
    """The position of the handler."""
    name: str
    """The name of the function and of the model, for a check."""


def origin_of(worker: object) -> str | None:
    """Return the global variable that holds ``worker`` as ``module:attribute``, or ``None`` if there is none."""
    for module_name, module in sys.modules.copy().items():  # other threads may be importing
        for name, value in tuple(getattr(module, "__dict__", {}).items()):
            if value is worker:
                return f"{module_name}:{name}"
    return None


def is_importable(origin: str | None) -> TypeGuard[str]:
    """Return whether child processes can find the worker at ``origin``: the main program is different in each."""
    return origin is not None and not origin.startswith("__m")


def place_of(handler: Handler, handlers: Sequence[Handler], origin: str) -> Place:
    """Return the place of ``handler`` among ``handlers``, by which a child process finds it."""
    return Place(origin, handlers.index(handler), _name(handler))


def load(place: Place) -> tuple[Any, Handler]:
    """Import a worker; return it and the handler at ``place``.  Raises :class:`.ArgumentError` if it is not there."""
    module_name, _, path = place.origin.partition(":")
    worker: Any = reduce(getattr, path.split("."), import_module(module_name))
    if place.number >= len(worker.handlers) or _name(worker.handlers[place.number]) != place.name:
        raise ArgumentError(
            f"{place.origin} has no handler {place.name} at position {place.number + 1} where it is imported again:"
            " register handlers at the top level of modules, always in the same order"
        )
    return worker, worker.handlers[place.number]


def _name(handler: Handler) -> str:
    return f"{name_of(handler.function)} of {handler.entity.__name__}"
