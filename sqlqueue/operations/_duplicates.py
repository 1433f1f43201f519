"""A violated unique key becomes an error of ours."""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from ..dialects.base import Adapter
from ..exc import DuplicateTaskError
from ..spec import QueueSpec


class translating:
    """A violated unique key becomes :class:`.DuplicateTaskError`."""

    def __init__(self, adapter: Adapter, spec: QueueSpec) -> None:
        self.adapter, self.spec = adapter, spec

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, IntegrityError) and self.adapter.is_duplicate(error):
            name = self.spec.entity.__name__
            raise DuplicateTaskError(
                f"a {name} with this key exists: roll back, or say what to do by on_conflict='ignore', 'replace' or"
                " 'rerun'",
                model=self.spec.entity,
            ) from error
