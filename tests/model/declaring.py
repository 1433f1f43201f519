"""The columns and indexes of a model, by their names."""

from __future__ import annotations

from typing import Any

from sqlqueue.model import declaration

COLUMNS = set(declaration.COLUMNS)


def columns(model: Any) -> set[str]:
    return {column.name for column in model.__table__.columns}


def indexes(model: Any) -> set[str]:
    return {str(index.name) for index in model.__table__.indexes}
