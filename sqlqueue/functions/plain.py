"""Arguments that are JSON values, and dataclasses of such values."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

Kinds: TypeAlias = Mapping[str, Any]
"""Annotations by parameter, ``Any`` for parameters without one."""
_UNIONS = (typing.Union, types.UnionType)
_SCALARS = (Any, str, int, float, bool, None, types.NoneType, list, dict)


class PlainCodec:
    """A codec for JSON values and dataclasses.  Raises :class:`ValueError` for values that do not match annotations."""

    def __init__(self, kinds: Kinds) -> None:
        self._dumps = {name: _converter(kind, _from_dataclass) for name, kind in kinds.items()}
        self._loads = {name: _converter(kind, _to_dataclass) for name, kind in kinds.items()}

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values, with dataclasses as objects."""
        return {name: self._dumps[name](name, value) for name, value in values.items()}

    def load(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored JSON values as arguments, with dataclasses restored."""
        return {name: self._loads[name](name, value) for name, value in stored.items()}


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


_Convert: TypeAlias = Callable[[str, Any], Any]
"""Converts a value.  The first argument is its name, for errors."""


def _converter(kind: Any, of_dataclass: Callable[[type[Any]], _Convert]) -> _Convert:
    """Return the conversion of values of type ``kind``.  It is made once, since annotations are slow to inspect."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Literal:
        return _checked(kind, lambda value: any(type(value) is type(each) and value == each for each in inner))
    if origin is None:
        return of_dataclass(kind) if _is_dataclass(kind) else _checked(kind, _check(kind))
    return _compound(kind, origin, [_converter(each, of_dataclass) for each in inner])


def _compound(kind: Any, origin: Any, inner: Sequence[_Convert]) -> _Convert:
    def one_of(name: str, value: Any) -> Any:
        for convert in inner:
            try:
                return convert(name, value)
            except ValueError:
                continue
        raise _unexpected(name, kind, value)

    def items(name: str, value: Any) -> Any:
        if not isinstance(value, origin):
            raise _unexpected(name, kind, value)
        convert = inner[-1]
        if origin is dict:
            return {key: convert(f"{name}.{key}", each) for key, each in value.items()}
        return [convert(f"{name}.{n}", each) for n, each in enumerate(value)]

    return one_of if origin in _UNIONS else items


def _checked(kind: Any, check: Callable[[Any], bool]) -> _Convert:
    def convert(name: str, value: Any) -> Any:
        if check(value):
            return value
        raise _unexpected(name, kind, value)

    return convert


def _check(kind: Any) -> Callable[[Any], bool]:
    if kind is Any:
        return lambda value: True
    if kind in (int, float):
        return lambda value: isinstance(value, (int, kind)) and not isinstance(value, bool)
    of_type = types.NoneType if kind is None else kind
    return lambda value: isinstance(value, of_type)


def _unexpected(name: str, kind: Any, value: Any) -> ValueError:
    # the message omits the value, which may be confidential
    wanted = kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind
    return ValueError(f"{name}: expected {wanted}, got {type(value).__name__}")


def _from_dataclass(kind: type[Any]) -> _Convert:
    converters = _of_fields(kind, _from_dataclass)

    def convert(name: str, value: Any) -> Any:
        if type(value) is not kind:
            raise _unexpected(name, kind, value)
        return {field: each(f"{name}.{field}", getattr(value, field)) for field, each in converters.items()}

    return convert


def _to_dataclass(kind: type[Any]) -> _Convert:
    converters = _of_fields(kind, _to_dataclass)

    def convert(name: str, value: Any) -> Any:
        if not isinstance(value, dict) or not converters.keys() >= value.keys():
            raise ValueError(f"{name}: expected the fields of {kind.__name__}")
        given = {field: converters[field](f"{name}.{field}", each) for field, each in value.items()}
        try:
            return kind(**given)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error

    return convert


def _of_fields(kind: type[Any], of_dataclass: Callable[[type[Any]], _Convert]) -> dict[str, _Convert]:
    hints = _hints(kind)
    return {field.name: _converter(hints[field.name], of_dataclass) for field in fields(kind)}
