"""Reads objects of the API: every fault of an object is an ObjectError."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from agent.model.bounds import reason as shortened

Value = TypeVar("Value")

_LONGEST_NAME: Final = 253
_LONGEST_UID: Final = 64


class ObjectError(ValueError):
    """An object that can't be understood; the message names kind, object and field."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"{kind} {name}: {reason}")
        self.kind = kind
        self.name = name
        self.reason = reason


class ObjectIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that identifies an object. Decoding it skips labels and annotations."""

    name: str
    namespace: str = ""
    uid: str = ""


class ObjectMetadata(ObjectIdentity, frozen=True, rename="camel"):
    """The metadata that decisions read; a kind that needs more fields adds them."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ObjectOwner(msgspec.Struct, frozen=True, rename="camel"):
    """An owner reference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


def controller(owners: Iterable[ObjectOwner], api_version: str, kind: str, name: str) -> str:
    """The uid of the object, where it is the controller among the owners; "" otherwise."""
    for each in owners:
        if each.controller and (each.api_version, each.kind, each.name) == (
            api_version,
            kind,
            name,
        ):
            return each.uid[:_LONGEST_UID]
    return ""


def converted(body: object, kind: str, into: type[Value]) -> Value:
    """The fields of a decoded object that `into` has. Raises ObjectError."""
    try:
        return msgspec.convert(body, into)
    except msgspec.ValidationError as error:
        raise ObjectError(kind, title(body), _plain(error)) from None


def decoded(text: bytes, kind: str, decoder: msgspec.json.Decoder[Value]) -> Value:
    """The same from JSON, decoding only the fields that are read. Raises ObjectError."""
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
    parts = [metadata.get("namespace"), metadata.get("name")]
    return "/".join(each[:_LONGEST_NAME] for each in parts if isinstance(each, str)) or _NO_NAME


_NO_NAME: Final = "without a name"


def _loose(text: bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _plain(error: msgspec.ValidationError) -> str:
    """msgspec writes `... - at `$.a.b``; this text begins with the field. It may quote a value of
    any length."""
    reason, at, path = str(error).rpartition(" - at `")
    field = f"{path.rstrip('`').removeprefix('$').lstrip('.')}: " if at else ""
    return shortened(field + (reason if at else path))


class Operator(enum.StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(msgspec.Struct, frozen=True):
    """One of `matchExpressions`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Matches where all of its terms match; an empty one matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(
            labels.get(key) == value for key, value in (self.match_labels or {}).items()
        ) and all(each.matches(labels) for each in self.match_expressions or ())


def label_value(text: str) -> str:
    """The text with the characters that a label value may not have replaced, shortened to 63."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")
