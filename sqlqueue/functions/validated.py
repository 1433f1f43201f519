"""Arguments of all other types: pydantic validates them and converts them to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from .arguments import Kinds

# strict: a string is not accepted as a number, as in type checkers
_CONFIG = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")


class ValidatedCodec:
    """A codec that uses pydantic.  Raises :class:`ValueError` for values that do not match their annotations.

    The constructor raises it for types that cannot be represented in JSON.
    """

    def __init__(self, kinds: Kinds) -> None:
        make: Any = TypedDict
        # without an annotation, a value that is not JSON would come back as a string
        fields = {name: JsonValue if kind is Any else kind for name, kind in kinds.items()}
        shape: Any = make("Arguments", fields, total=False)
        # in a list, because a TypedDict alone does not apply its configuration to nested values when it serializes
        shapes: Any = list[shape]
        try:
            self._adapter: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(shapes, config=_CONFIG)
        except PydanticUserError as error:
            raise ValueError(str(error).partition("\n")[0]) from error

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated arguments as JSON values."""
        try:
            valid = self._adapter.validate_python([values])
            stored: list[dict[str, Any]] = self._adapter.dump_python(valid, mode="json", warnings="error")
        except ValidationError as error:
            raise _in_words(error) from error
        except PydanticSerializationError as error:
            raise ValueError(str(error)) from error
        return stored[0]

    def load(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored JSON values as validated arguments."""
        try:
            return self._adapter.validate_json(json.dumps([stored]))[0]
        except ValidationError as error:
            raise _in_words(error) from error


def _in_words(error: ValidationError) -> ValueError:
    """Return the errors as text, without the values, which may be confidential."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return ValueError("; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in found))
