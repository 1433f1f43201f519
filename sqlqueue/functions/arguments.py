"""The arguments of calls as JSON: plain values and dataclasses; pydantic validates all others."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any, Protocol, TypeAlias, get_args, get_origin, get_type_hints

from sqlalchemy.orm import Session

from .._support.checks import not_json
from .._support.errors import ArgumentError

# -- arguments that are JSON values, and dataclasses of such values ---------------------------------------------------

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
        return {name: _converted(self._kinds[name], name, value, _from_dataclass) for name, value in values.items()}

    def load(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored JSON values as arguments, with dataclasses restored."""
        return {name: _converted(self._kinds[name], name, value, _to_dataclass) for name, value in stored.items()}


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
        takes_all = all(field.init for field in fields(kind))
        return takes_all and all(is_plain(each, (*within, kind)) for each in _hints(kind).values())
    return any(kind is each for each in _SCALARS)


def _is_dataclass(kind: Any) -> bool:
    # pydantic's dataclasses have validators, which only pydantic runs
    return isinstance(kind, type) and is_dataclass(kind) and not hasattr(kind, "__pydantic_validator__")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the annotations of the fields.  They are slow to inspect."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _converted(kind: Any, name: str, value: Any, of_dataclass: Callable[[Any, str, Any], Any]) -> Any:
    """Return ``value`` converted as one of type ``kind``; ``name`` is for errors."""
    if kind is Any or (type(value) is kind and kind in _SCALARS):
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        for each in inner:
            with suppress(ValueError):
                return _converted(each, name, value, of_dataclass)
    elif origin is dict and isinstance(value, dict):
        return {key: _converted(inner[1], f"{name}.{key}", each, of_dataclass) for key, each in value.items()}
    elif origin is list and isinstance(value, list):
        return [_converted(inner[0], f"{name}.{n}", each, of_dataclass) for n, each in enumerate(value)]
    elif _is_dataclass(kind):
        return of_dataclass(kind, name, value)
    elif _is_one(kind, origin, inner, value):
        return value
    # the message omits the value, which may be confidential
    wanted = kind.__name__ if isinstance(kind, type) and not inner else kind
    raise ValueError(f"{name}: expected {wanted}, got {type(value).__name__}")


def _is_one(kind: Any, origin: Any, inner: Sequence[Any], value: Any) -> bool:
    """Return whether ``value`` is one of ``kind``, which is neither a union nor a dataclass."""
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, types.NoneType if kind is None else origin or kind)


def _from_dataclass(kind: Any, name: str, value: Any) -> Any:
    hints = _hints(kind)
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    return {
        field: _converted(hint, f"{name}.{field}", getattr(value, field), _from_dataclass)
        for field, hint in hints.items()
    }


def _to_dataclass(kind: Any, name: str, value: Any) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict) or not hints.keys() >= value.keys():
        raise ValueError(f"{name}: expected the fields of {kind.__name__}")
    given = {field: _converted(hints[field], f"{name}.{field}", each, _to_dataclass) for field, each in value.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


# -- conversion of a call's arguments to JSON and back ----------------------------------------------------------------

_SESSIONS = ("Session", "QueueSession", "AsyncSession", "AsyncQueueSession")
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Codec(Protocol):
    """A converter of arguments, by parameter name, to JSON and back.  Raises :class:`ValueError` for bad values."""

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values.  Raises ``ValueError`` for values that do not fit."""
        ...

    def load(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored JSON values as arguments.  Raises ``ValueError`` for values that do not fit."""
        ...


class Arguments:
    """A function's parameters other than the session."""

    def __init__(self, function: str, signature: Signature, codec: Codec, *, takes_session: bool) -> None:
        """``function``: the function's name, for messages."""
        self.signature = signature
        self.takes_session = takes_session
        self._function = function
        self._codec = codec
        parameters = signature.parameters.values()
        self._names = {each.name for each in parameters}
        self._required = {each.name for each in parameters if _is_required(each)}
        self._defaults = {each.name: _default(each) for each in parameters if not _is_required(each)}
        self._by_position = [each.name for each in parameters if each.kind in _BY_POSITION]
        self._by_name = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
        self._variadic = [each for each in parameters if each.kind in _VARIADIC]

    def store(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as JSON, by parameter name.

        Raises :class:`.ArgumentError` for arguments that the function does not take or that JSON cannot represent.
        """
        try:
            values: dict[str, Any] = dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise ArgumentError(f"{self._function}{self.signature}: {error}") from None
        for name, value in values.items():
            if self.signature.parameters[name].kind is Parameter.VAR_POSITIONAL:
                values[name] = list(value)
        try:
            stored = self._codec.dump(values)
        except ValueError as error:
            raise ArgumentError(f"{self._function}{self.signature}: {error}") from None
        for name, value in stored.items():
            if (problem := not_json(value, name)) is not None:
                raise ArgumentError(f"{self._function}{self.signature}: {problem}, which cannot be stored as JSON")
        return stored

    def restore(self, stored: object) -> dict[str, Any]:
        """Return stored arguments, and the defaults of the others, by parameter name.  Raises :class:`.ArgumentError`
        if they do not fit the function's current parameters."""
        try:
            return {**self._defaults, **self._codec.load(self._fitting({} if stored is None else stored))}
        except ValueError as error:
            raise ArgumentError(
                f"{self._function}{self.signature} cannot be called with the stored arguments: {error}"
            ) from None

    def spread(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments of a call with these values of all parameters."""
        args, kwargs = [values[name] for name in self._by_position], {name: values[name] for name in self._by_name}
        for each in self._variadic:
            if each.kind is Parameter.VAR_POSITIONAL:
                args += values[each.name]
            else:
                kwargs |= values[each.name]
        return args, kwargs

    def _fitting(self, stored: object) -> Mapping[str, Any]:
        if not isinstance(stored, (dict, Mapping)):
            raise ValueError("they are not a JSON object")
        names = stored.keys()
        if self._required <= names <= self._names:
            return stored
        unknown = [f"{name} is not a parameter" for name in sorted(names - self._names)]
        missing = [f"{name} is missing" for name in self.signature.parameters if name in self._required - names]
        raise ValueError(" and ".join([*unknown, *missing]))


def arguments_of(function: Callable[..., Any], name: str) -> Arguments:
    """Return the parameters of ``function``.  Raises :class:`.ArgumentError` if some arguments could not be stored."""
    parameters = list(inspect.signature(function).parameters.values())
    kinds = _annotations(function, name)
    takes_session = bool(parameters) and is_session(parameters[0], kinds.get(parameters[0].name))
    misplaced = [each.name for each in parameters[1:] if _is_session_type(kinds.get(each.name))]
    if misplaced:
        raise ArgumentError(f"{name}: {', '.join(misplaced)}: make the session the first parameter")
    if takes_session:
        del parameters[0]
    codec = _codec(name, {each.name: _kind(each, kinds.get(each.name, Any)) for each in parameters})
    return Arguments(name, Signature(parameters), codec, takes_session=takes_session)


def _annotations(function: Callable[..., Any], name: str) -> dict[str, Any]:
    # sessions are often imported under TYPE_CHECKING only
    known: dict[str, Any] = {
        **dict.fromkeys(_SESSIONS, Session),
        **getattr(inspect.unwrap(function), "__globals__", {}),
    }
    try:
        return get_type_hints(function, globalns=known, include_extras=True)
    except NameError as error:
        raise ArgumentError(
            f"{name}: an annotation cannot be resolved: {error}. Import it at the top level, not only for type checkers"
        ) from error


def is_session(parameter: Parameter, kind: Any = None) -> bool:
    """Return whether a parameter takes a session, by its name or annotation; ``kind`` is the resolved annotation."""
    if parameter.kind in (*_VARIADIC, Parameter.KEYWORD_ONLY):
        return False
    return parameter.name == "session" or _is_session_type(parameter.annotation if kind is None else kind)


def _is_session_type(kind: Any) -> bool:
    if isinstance(kind, str):  # unresolved
        return kind.rpartition(".")[2] in _SESSIONS
    return isinstance(kind, type) and (issubclass(kind, Session) or hasattr(kind, "sync_session_class"))


def _kind(parameter: Parameter, kind: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list[kind]
    return dict[str, kind] if parameter.kind is Parameter.VAR_KEYWORD else kind


def _codec(name: str, kinds: Kinds) -> Codec:
    unlike = [parameter for parameter, kind in kinds.items() if not is_plain(kind)]
    if not unlike:
        return PlainCodec(kinds)
    try:
        from .validated import ValidatedCodec  # noqa: PLC0415
    except ImportError as error:
        raise ArgumentError(
            f"{name}: {', '.join(unlike)}: arguments of these types need pydantic: pip install"
            " 'sqlalchemy-queue[pydantic]', the distribution of sqlqueue"
        ) from error
    try:
        return ValidatedCodec(kinds)
    except ValueError as error:
        raise ArgumentError(f"{name}: its arguments cannot be stored as JSON: {error}") from error


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind not in _VARIADIC


def _default(parameter: Parameter) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return ()
    return {} if parameter.kind is Parameter.VAR_KEYWORD else parameter.default
