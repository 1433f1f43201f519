"""Messages between a worker and the child processes that run its jobs."""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from ..._support.texts import error_text
from ..handling.outcomes import Ended, is_signal
from ..handling.signals import Signal

V = TypeVar("V")


class CallHandler(NamedTuple):
    """To a child: call the handler."""

    task: bytes
    """Pickled separately, so that only this attempt fails if the child cannot unpickle it."""
    trace: str | None
    """The trace to continue."""


class Ready(NamedTuple):
    """From a child that has loaded the worker."""


class Refused(NamedTuple):
    """From a child that cannot load the worker."""

    reason: str


class Settling(NamedTuple):
    """From a child that is about to commit, and waits for confirmation that the task still belongs to the worker."""


class Retried(NamedTuple):
    """From a child that calls the handler again, in a new transaction."""

    reason: str


class Logged(NamedTuple):
    """From a child that has logged a record."""

    record: logging.LogRecord


class Answer(NamedTuple):
    """From a child whose handler has ended."""

    outcome: Portable[Any]
    error: Portable[Any]
    is_written: bool
    memory: int
    """The resident memory of the child in bytes."""

    @classmethod
    def of(cls, ended: Ended, memory: int) -> Answer:
        """Return the message about the end of a job, with replacements for what cannot be pickled."""
        outcome, error, is_written = ended
        plain = outcome and replace(outcome, cause=outcome.cause and Exception)
        portable = Portable.of(error, None if error is None else _plain(error))
        return cls(Portable.of(outcome, plain), portable, is_written, memory)

    def ended(self) -> Ended:
        """Return the end of the job."""
        return Ended(self.outcome.value(), self.error.value(), self.is_written)


class RemoteError(Exception):
    """An exception of a child process that cannot be pickled, as text."""


@dataclass(frozen=True, slots=True)
class Portable(Generic[V]):
    """A value that the other process may not be able to unpickle, and a plain one in its place."""

    pickled: bytes | None
    plain: V

    @classmethod
    def of(cls, value: V, plain: V) -> Portable[V]:
        """Return ``value`` in pickled form, or ``plain`` if it cannot be pickled and unpickled."""
        try:
            pickled = pickle.dumps(value)
            pickle.loads(pickled)
        except Exception:  # exceptions of applications can raise anything
            return cls(None, plain)
        return cls(pickled, plain)

    def value(self) -> V:
        """Return the value; the plain one if this process cannot unpickle it."""
        if self.pickled is None:
            return self.plain
        try:
            value: V = pickle.loads(self.pickled)
        except Exception:
            return self.plain
        return value


def _plain(error: BaseException) -> BaseException:
    plain = Signal(str(error)) if is_signal(error) else RemoteError(error_text(error))
    for note in getattr(error, "__notes__", ()):
        plain.add_note(note)
    return plain
