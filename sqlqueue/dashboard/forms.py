"""The fields of a form that a browser has sent."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.datastructures import MultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request

LARGEST = 1_000_000
"""Maximum bytes of a form; selecting a whole page of tasks takes far fewer."""
_DIGITS = 18


def whole_number(text: str) -> int:
    """Return the number in a field of a form; 400 if there is none."""
    if not text.isdecimal() or len(text) > _DIGITS:
        raise HTTPException(400, f"{text[:_DIGITS]!r} is not a whole number of reasonable size.")
    return int(text)


async def fields_of(request: Request) -> MultiDict:
    """Return the fields of a form; 413 if it is too large, 400 if it is not a form."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise HTTPException(413, "This form is too large.")
    try:
        return MultiDict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10_000))
    except ValueError as error:
        raise HTTPException(400, "This is not a form.") from error
