"""Objects of the API as others wrote them: whatever is wrong with one is one error."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

Value = TypeVar("Value")

_LONGEST_NAME: Final = 253


class ObjectError(ValueError):
    """An object that can't be understood; the message names kind, object and field."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"{kind} {name}: {reason}")
        self.kind = kind
        self.name = name
        self.reason = reason


def converted(body: object, kind: str, into: type[Value]) -> Value:
    """The fields of a decoded object that `into` has. Raises ObjectError."""
    try:
        return msgspec.convert(body, into)
    except msgspec.ValidationError as error:
        raise ObjectError(kind, title(body), _plain(error)) from None


def decoded(text: bytes, kind: str, decoder: msgspec.json.Decoder[Value]) -> Value:
    """The same from JSON, without a value for the fields that nobody reads. Raises ObjectError."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise ObjectError(kind, title(_loose(text)), _plain(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ObjectError(kind, _NO_NAME, f"is not JSON: {error}") from None


def title(body: object) -> str:
    """`namespace/name` or `name`, as far as the object has them."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if not isinstance(metadata, dict):
        return _NO_NAME
    words = [metadata.get("namespace"), metadata.get("name")]
    return "/".join(each[:_LONGEST_NAME] for each in words if isinstance(each, str)) or _NO_NAME


_NO_NAME: Final = "without a name"


def _loose(text: bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _plain(error: msgspec.ValidationError) -> str:
    """msgspec says `... - at `$.a.b``; the field comes first here."""
    reason, at, path = str(error).rpartition(" - at `")
    return f"{path.rstrip('`').removeprefix('$').lstrip('.')}: {reason}" if at else str(error)
