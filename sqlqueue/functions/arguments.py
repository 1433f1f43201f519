"""Conversion of a call's arguments to JSON and back."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import BoundArguments, Parameter, Signature
from typing import Any, Protocol, get_type_hints

from sqlalchemy.orm import Session

from .._support.exc import ArgumentError
from .._support.json_values import not_json
from .plain import Kinds, PlainCodec, is_plain

_SESSIONS = ("Session", "QueueSession", "AsyncSession", "AsyncQueueSession")
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Codec(Protocol):
    """A converter of arguments, by parameter name, to JSON and back.  Raises :class:`ValueError` for bad values."""

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values.  Raises ``ValueError`` for values that do not fit."""
        ...

    def load(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored JSON values as arguments.  Raises ``ValueError`` for values that do not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Arguments:
    """A function's parameters other than the session."""

    function: str
    """The function's name, for messages."""
    takes_session: bool
    signature: Signature
    codec: Codec

    def store(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as JSON, by parameter name.

        Raises :class:`.ArgumentError` for arguments that the function does not take or that JSON cannot represent.
        """
        try:
            values: dict[str, Any] = dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise ArgumentError(f"{self.function}{self.signature}: {error}") from None
        for name, value in values.items():
            if self.signature.parameters[name].kind is Parameter.VAR_POSITIONAL:
                values[name] = list(value)
        try:
            stored = self.codec.dump(values)
        except ValueError as error:
            raise ArgumentError(f"{self.function}{self.signature}: {error}") from None
        for name, value in stored.items():
            if (problem := not_json(value, name)) is not None:
                raise ArgumentError(f"{self.function}{self.signature}: {problem}, which cannot be stored as JSON")
        return stored

    def restore(self, stored: object) -> BoundArguments:
        """Return stored arguments bound to the function's current parameters.  Raises :class:`.ArgumentError` on
        mismatch."""
        try:
            return self._bound(self.codec.load(self._fitting({} if stored is None else stored)))
        except ValueError as error:
            raise ArgumentError(
                f"{self.function}{self.signature} cannot be called with the stored arguments: {error}"
            ) from None

    def _fitting(self, stored: object) -> Mapping[str, Any]:
        if not isinstance(stored, Mapping):
            raise ValueError("they are not a JSON object")
        parameters = self.signature.parameters
        unknown = sorted(stored.keys() - parameters.keys())
        missing = [name for name, each in parameters.items() if _is_required(each) and name not in stored]
        if unknown or missing:
            raise ValueError(
                " and ".join([*(f"{n} is not a parameter" for n in unknown), *(f"{n} is missing" for n in missing)])
            )
        return stored

    def _bound(self, values: Mapping[str, Any]) -> BoundArguments:
        bound = BoundArguments(self.signature, OrderedDict(values))
        bound.apply_defaults()
        return bound


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
    return Arguments(
        function=name,
        takes_session=takes_session,
        signature=Signature(parameters),
        codec=_codec(name, {each.name: _kind(each, kinds.get(each.name, Any)) for each in parameters}),
    )


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
