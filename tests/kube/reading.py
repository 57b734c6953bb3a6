"""Functions that decode an object for the watches of tests."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from agent.kube.objects import Read
from agent.model import bounds

T = TypeVar("T")


def as_type(type_: type[T]) -> Read[T]:
    """Decodes the fields of the type."""
    decoder = msgspec.json.Decoder(type_)
    return lambda text: bounds.decode(decoder, text)
