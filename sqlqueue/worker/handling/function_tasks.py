"""The handler that serves all functions registered as tasks of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..._support.errors import ArgumentError
from ...functions import Functions
from .handlers import DEFAULT_BATCH, Handler, handler_of

CONCURRENCY = 10


class FunctionTasks:
    """Collects the functions of one model and makes their common handler."""

    def __init__(self, entity: type[Any]) -> None:
        self._entity = entity
        self._functions: Functions[Any] = Functions(entity)
        self._settings: dict[str, Any] = {}
        self.handler: Handler | None = None

    def add(self, task: Any, given: Mapping[str, Any]) -> Handler:
        """Add a task.  Returns the handler for it and those added before."""
        settings = self._together({name: value for name, value in given.items() if value is not None})
        self._functions.add(task)
        self._settings = settings
        self.handler = self._made()
        return self.handler

    def _together(self, given: dict[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            if self._settings.get(name, value) != value:
                raise ArgumentError(
                    f"{name}={value!r}: it is {self._settings[name]!r} for all tasks of {self._entity.__name__}, which"
                    " share one handler. Set it once, or give this task its own model"
                )
        return {**self._settings, **given}

    def _made(self) -> Handler:
        functions = self._functions
        handler = handler_of(
            functions.perform_in_session if functions.takes_session else functions.perform,
            self._entity,
            (functions.calls,),
            batch=DEFAULT_BATCH,
            mode="lease",
            **{"concurrency": CONCURRENCY, "timeout": None, "lease": None, **self._settings},
        )
        return replace(handler, is_coroutine=functions.is_coroutine, functions=functions.names)
