"""JSON as text, for engines that have no type for it."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine


class JSONText(TypeDecorator[Any]):
    """What is stored is ASCII in the stock type beneath.  Its class is made by :func:`json_text`."""

    impl = Text
    cache_ok = True

    def __reduce__(self) -> tuple[Any, ...]:
        return json_text, ()  # its class cannot be found under the name that it goes by

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def json_text() -> TypeEngine[Any]:
    """A :class:`JSONText` that goes by the name of the stock type, for the sake of migrations; see :func:`.utc`."""
    names = {"cache_ok": True, "__module__": Text.__module__}
    made: TypeEngine[Any] = type(Text.__name__, (JSONText,), names)()
    return made
