"""JSON that others wrote: whatever is wrong with a text is one error."""

from __future__ import annotations

from typing import TypeVar

import msgspec

Value = TypeVar("Value")


class JsonError(ValueError):
    """No JSON, or not of the wanted shape; the message says where."""


def decode(decoder: msgspec.json.Decoder[Value], text: bytes | str) -> Value:
    """Raises JsonError; so too for bytes that are no UTF-8 and for nesting without end, which
    msgspec reports as other errors than its own."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise JsonError(str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise JsonError(f"is not JSON: {error}") from None
