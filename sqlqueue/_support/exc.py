"""The errors of sqlqueue.

::

    SQLQueueError
    ├── ArgumentError               a call that cannot be carried out as written (also a ValueError)
    ├── ConfigurationError          a model that cannot be a queue; raised when its class is defined
    ├── UnsupportedDialectError     an engine, a version or a cluster that cannot be used for queues, or not in this way
    ├── UnsupportedIsolationError   a transaction in which a claim would be wrong
    ├── ClaimLostError              the claim no longer holds its row
    ├── UnsettledClaimError         a commit would drop a claim that only locks
    ├── IllegalTransitionError      the task was never claimed, or is already settled
    ├── DuplicateTaskError          a task with this key exists
    ├── HandlerNotFoundError        no handler for this task
    ├── SchemaMismatchError         the live schema does not match the models
    └── ProcessDiedError            the child process of a handler died

Every error has its details as attributes, and its message says how to fix the problem.  No error is ever wrapped in
:class:`sqlalchemy.exc.StatementError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.exc import DontWrapMixin

from .claim import Claim


class SQLQueueError(DontWrapMixin, Exception):
    """The base class of all errors that sqlqueue raises itself."""


class SQLQueueWarning(UserWarning):
    """Issued for a suboptimal configuration; the text names the setting to change."""


class ArgumentError(SQLQueueError, ValueError):
    """Raised for a call that cannot be carried out as written.  Nothing was sent to the database."""


class ConfigurationError(SQLQueueError):
    """Raised for a model that cannot be a queue as declared.  ``model`` is its class."""

    def __init__(self, message: str, *, model: type[Any] | None = None) -> None:
        super().__init__(message)
        self.model = model


class UnsupportedDialectError(SQLQueueError):
    """Raised for an engine or a server that cannot be used for queues, or not in this way.

    ``dialect`` is its name, ``version`` the server's version, and ``needed`` what is required instead.
    """

    def __init__(self, message: str, *, dialect: str, version: str | None = None, needed: str | None = None) -> None:
        super().__init__(message)
        self.dialect = dialect
        self.version = version
        self.needed = needed


class UnsupportedIsolationError(SQLQueueError):
    """Raised for a claim at an isolation ``level`` that ``dialect`` does not allow, or at which a claim would be
    wrong."""

    def __init__(self, message: str, *, dialect: str, level: str) -> None:
        super().__init__(message)
        self.dialect = dialect
        self.level = level


class ClaimLostError(SQLQueueError):
    """Raised when claims no longer hold the rows that they are to settle.

    Their leases expired and another worker took the rows over, or the rows were cancelled, retried, settled or deleted.
    Roll the transaction back: what it wrote for a lost claim must not be committed.

    ``claims`` contains all lost claims; ``model``, ``identity`` and ``attempt`` are those of the first.
    """

    def __init__(self, claims: Sequence[Claim]) -> None:
        first = claims[0]
        more = f" (and {len(claims) - 1} more)" if len(claims) > 1 else ""
        super().__init__(
            f"attempt {first.attempt} of {first.entity.__name__} {first.identity} no longer holds its row{more}: its"
            " lease expired, or it was cancelled, settled or deleted elsewhere. Roll this transaction back."
        )
        self.claims = tuple(claims)
        self.model = first.entity
        self.identity = first.identity
        self.attempt = first.attempt

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.claims,)


class UnsettledClaimError(SQLQueueError):
    """Raised for a commit that would drop ``claims``, which were made with ``lease=None`` and are not settled."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        super().__init__(
            f"{len(claims)} claim(s) made with lease=None are not settled; the first is {claims[0]}: complete, fail or"
            " release them before the commit, or roll back. Nothing was committed."
        )
        self.claims = tuple(claims)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.claims,)


class IllegalTransitionError(SQLQueueError):
    """Raised when ``task`` is settled although it was never claimed, or is already settled."""

    def __init__(self, message: str, *, task: object = None) -> None:
        super().__init__(message)
        self.task = task


class DuplicateTaskError(SQLQueueError):
    """Raised for a task of ``model`` whose key already exists.  ``__cause__`` is the driver's error.

    ``keys`` contains the keys of the tasks to insert, by attribute name.  One of them exists, or one of the tasks
    violates a unique constraint of the application.
    """

    def __init__(self, message: str, *, model: type[Any], keys: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.model = model
        self.keys = tuple(keys)


class HandlerNotFoundError(SQLQueueError):
    """Raised for a task without a handler: none is registered for ``name``."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class SchemaMismatchError(SQLQueueError):
    """Raised when the live schema does not match the models; ``differences`` lists the mismatches."""

    def __init__(self, message: str, *, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class ProcessDiedError(SQLQueueError):
    """Raised for a handler whose process died.  ``status`` is its exit status, or the negative number of a signal."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
