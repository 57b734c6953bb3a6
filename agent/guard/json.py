"""JSON by the scanner in C of the standard library, without its package, which would load the
modules of regular expressions."""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class ScanError(ValueError):
    """A text that is no JSON; the message is the reason."""


class _Settings:
    """The scanner reads these attributes; the values are those of json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = make_scanner(_Settings)  # type: ignore[arg-type]


def decoded(text: bytes) -> Any:
    """The value. Raises ScanError."""
    try:
        content = text.decode().strip()
        value, end = _scan(content, 0)
    except StopIteration:
        raise ScanError("it ends before a value") from None
    except SystemError:  # Python 3.11 makes the error of json.decoder only if that is loaded
        raise ScanError("it is no JSON") from None
    except (ValueError, RecursionError) as error:
        raise ScanError(f"{type(error).__name__}: {error}") from None
    if end != len(content):
        raise ScanError(f"there is more after the value, at character {end}")
    return value


def encoded(values: Mapping[str, str | int]) -> str:
    """An object of texts, numbers and truth values; characters beyond ASCII are escaped."""
    fields = (f"{encode_basestring_ascii(name)}:{_literal(each)}" for name, each in values.items())
    return f"{{{','.join(fields)}}}"


def quoted(text: str) -> str:
    """The text as a JSON string."""
    return encode_basestring_ascii(text)


def _literal(value: str | int) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return str(value).lower()
