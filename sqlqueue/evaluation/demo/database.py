"""The demo's database: a temporary SQLite file, or the database of a URL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine, inspect

from ..database import reached
from ..errors import EvaluationError
from .models import Base


@contextmanager
def tables(url: str | None, *, keep: bool, drop: bool) -> Iterator[Engine]:
    """Yield an engine with the demo's tables, and drop them afterwards unless ``keep``.

    Raises :class:`.EvaluationError` if the database cannot be used, or the tables exist and ``drop`` is not given.
    """
    with ExitStack() as stack:
        engine = reached(url or _temporary(stack, keep=keep))
        stack.callback(engine.dispose)
        _create(engine, drop=drop)
        if url and not keep:
            stack.callback(Base.metadata.drop_all, engine)
        yield engine


def _temporary(stack: ExitStack, *, keep: bool) -> str:
    directory = tempfile.mkdtemp(prefix="sqlqueue-demo-")
    if not keep:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return f"sqlite:///{directory}/demo.db"


def _create(engine: Engine, *, drop: bool) -> None:
    present = [name for name in Base.metadata.tables if inspect(engine).has_table(name)]
    if present and not drop:
        raise EvaluationError(
            f"{' and '.join(present)} already exist: another demo runs, or was kept. --drop replaces it."
        )
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
