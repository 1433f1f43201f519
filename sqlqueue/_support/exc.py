"""The errors of sqlqueue.

::

    SQLQueueError
    ├── ArgumentError               a call that cannot be carried out as written (also a ValueError)
    ├── ConfigurationError          a model that cannot be a queue; raised when its class is made
    ├── UnsupportedDialectError     an engine, or a version of it, that cannot be used for queues
    ├── UnsupportedIsolationError   a transaction in which a claim would be wrong
    ├── ClaimLostError              the row is no longer this claim's
    ├── UnsettledClaimError         a commit would drop a claim that only locks
    ├── IllegalTransitionError      the task was never claimed, or is settled already
    ├── DuplicateTaskError          a task with this key exists
    ├── HandlerNotFoundError        no handler for this task
    └── SchemaMismatchError         the live schema does not match the models

All of them carry their facts as attributes, and say what to do.  None is ever wrapped in
:class:`sqlalchemy.exc.StatementError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.exc import DontWrapMixin

from .claim import Claim


class SQLQueueError(DontWrapMixin, Exception):
    """The base of every error that sqlqueue raises on its own account."""


class SQLQueueWarning(UserWarning):
    """Something works, but not as well as it could; the text names the setting."""


class ArgumentError(SQLQueueError, ValueError):
    """A call that cannot be carried out as written.  Nothing was sent to the database."""


class ConfigurationError(SQLQueueError):
    """A model that cannot be a queue as declared.  ``model`` is its class."""

    def __init__(self, message: str, *, model: type[Any] | None = None) -> None:
        super().__init__(message)
        self.model = model


class UnsupportedDialectError(SQLQueueError):
    """An engine that cannot be used for queues: ``dialect``, its ``version`` and what is ``needed``."""

    def __init__(self, message: str, *, dialect: str, version: str | None = None, needed: str | None = None) -> None:
        super().__init__(message)
        self.dialect = dialect
        self.version = version
        self.needed = needed


class UnsupportedIsolationError(SQLQueueError):
    """A claim in a transaction at ``level``, where ``dialect`` would refuse it or make it wrong."""

    def __init__(self, message: str, *, dialect: str, level: str) -> None:
        super().__init__(message)
        self.dialect = dialect
        self.level = level


class ClaimLostError(SQLQueueError):
    """These rows are no longer held by the claims that tried to settle them.

    Their lease ended and another worker has them, or somebody cancelled, retried or deleted them.  Let the error end
    the transaction: what it wrote on behalf of a lost claim must not be committed.

    ``claims`` are all that were lost; ``model``, ``identity`` and ``attempt`` are those of the first.
    """

    def __init__(self, claims: Sequence[Claim]) -> None:
        first = claims[0]
        more = f" (and {len(claims) - 1} more)" if len(claims) > 1 else ""
        super().__init__(
            f"attempt {first.attempt} of {first.entity.__name__} {first.identity} no longer holds its row{more}: its"
            " lease ended, or it was cancelled, settled or deleted elsewhere. Roll this transaction back."
        )
        self.claims = tuple(claims)
        self.model = first.entity
        self.identity = first.identity
        self.attempt = first.attempt

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.claims,)


class UnsettledClaimError(SQLQueueError):
    """A commit with claims made by ``lease=None`` that nothing has settled; ``claims`` are those."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        super().__init__(
            f"{len(claims)} claim(s) made with lease=None are not settled, the first is {claims[0]}: complete, fail,"
            " release ... them before the commit, or roll back. Nothing was committed."
        )
        self.claims = tuple(claims)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.claims,)


class IllegalTransitionError(SQLQueueError):
    """``task`` is not claimed by this session's application: never was, or has been settled since."""

    def __init__(self, message: str, *, task: object = None) -> None:
        super().__init__(message)
        self.task = task


class DuplicateTaskError(SQLQueueError):
    """A task of ``model`` with the same key exists.  The cause is the driver's own error.

    ``keys``: those of the tasks that were to be inserted, by names of attributes, one of which it is; none if it is the
    ``unique_key`` of a task that was to be retried, or a unique constraint of the application.
    """

    def __init__(self, message: str, *, model: type[Any], keys: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.model = model
        self.keys = tuple(keys)


class HandlerNotFoundError(SQLQueueError):
    """No handler is registered under ``name``."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class SchemaMismatchError(SQLQueueError):
    """The live schema does not match the models; ``differences`` says where."""

    def __init__(self, message: str, *, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)
