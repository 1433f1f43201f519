"""Arguments that are JSON values, and dataclasses of such values."""

from __future__ import annotations

import builtins
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

Kinds: TypeAlias = Mapping[str, Any]
"""Annotations by parameter, ``Any`` for parameters without one."""
_UNIONS = (typing.Union, types.UnionType)
_SCALARS = (Any, str, int, float, bool, None, types.NoneType, list, dict)


class PlainCodec:
    """A codec for JSON values and dataclasses.  Raises :class:`ValueError` for values that do not match annotations."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values, with dataclasses as objects."""
        return {name: _convert(name, self._kinds[name], value, _from_dataclass) for name, value in values.items()}

    def load(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored JSON values as arguments, with dataclasses restored."""
        return {name: _convert(name, self._kinds[name], value, _to_dataclass) for name, value in stored.items()}


def is_plain(kind: Any, within: tuple[Any, ...] = ()) -> bool:
    """Return whether values of type ``kind`` can be converted without pydantic.  ``within``: the enclosing
    dataclasses."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Literal:
        return all(isinstance(each, (str, int, types.NoneType)) for each in inner)
    if origin is dict:
        return inner[0] is str and is_plain(inner[1], within)
    if origin is list or origin in _UNIONS:
        return all(is_plain(each, within) for each in inner)
    if _is_dataclass(kind) and kind not in within:
        hints = _hints(kind)
        return all(field.init and is_plain(hints[field.name], (*within, kind)) for field in fields(kind))
    return any(kind is each for each in _SCALARS)


def _is_dataclass(kind: Any) -> bool:
    # pydantic's dataclasses have validators, which only pydantic runs
    return isinstance(kind, type) and is_dataclass(kind) and not hasattr(kind, "__pydantic_validator__")


def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


_OfDataclass: TypeAlias = Callable[[str, Any, Any], Any]


def _convert(name: str, kind: Any, value: Any, of_dataclass: _OfDataclass) -> Any:
    """Return ``value`` with its dataclasses converted; ``name`` is for errors."""
    inner = get_args(kind)
    match get_origin(kind):
        case typing.Union | types.UnionType:
            for each in inner:
                try:
                    return _convert(name, each, value, of_dataclass)
                except ValueError:
                    continue
        case builtins.list if isinstance(value, list):
            return [_convert(f"{name}.{n}", inner[0], each, of_dataclass) for n, each in enumerate(value)]
        case builtins.dict if isinstance(value, dict):
            return {key: _convert(f"{name}.{key}", inner[1], each, of_dataclass) for key, each in value.items()}
        case None if _is_dataclass(kind):
            return of_dataclass(name, kind, value)
        case origin if _is_one(kind if origin is None else origin, inner, value):
            return value
    # the message omits the value, which may be confidential
    wanted = kind.__name__ if isinstance(kind, type) and not inner else kind
    raise ValueError(f"{name}: expected {wanted}, got {type(value).__name__}")


def _is_one(kind: Any, inner: tuple[Any, ...], value: Any) -> bool:
    if kind is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if inner or kind is Any:
        return not inner
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, types.NoneType if kind is None else kind)


def _from_dataclass(name: str, kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    hints = _hints(kind)
    given = {field.name: getattr(value, field.name) for field in fields(kind)}
    return {field: _convert(f"{name}.{field}", hints[field], each, _from_dataclass) for field, each in given.items()}


def _to_dataclass(name: str, kind: Any, value: Any) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict) or not hints.keys() >= value.keys():
        raise ValueError(f"{name}: expected the fields of {kind.__name__}")
    given = {field: _convert(f"{name}.{field}", hints[field], each, _to_dataclass) for field, each in value.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
