"""The file with the batch and mid resources that the agent offers, and what they were computed
from."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.usage.batch_mid import OfferedResource, Zones

_MAX_BYTES: Final = 64 << 10


class Offered(msgspec.Struct, frozen=True):
    """What the agent offers since a time, in seconds since 1970."""

    at: float = 0.0
    resources: tuple[OfferedResource, ...] = ()
    zones: Zones = {}

    @property
    def amounts(self) -> dict[str, int]:
        return {each.name: each.amount for each in self.resources}

    @property
    def origins(self) -> dict[str, int]:
        """The amounts before other systems took theirs."""
        return {resource.name: resource.origin for resource in self.resources}

    @property
    def shared(self) -> dict[str, int]:
        """The origins of the resources that other systems share."""
        return {
            resource.name: resource.origin
            for resource in self.resources
            if resource.third_party is not None
        }


_offered: Final = msgspec.json.Decoder(Offered)


def read(path: str) -> Offered:
    """What the agent offers, by its file. Raises OSError and JsonError."""
    with open(path, "rb") as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise JsonError(f"is larger than {_MAX_BYTES} bytes")
    return bounds.decode(_offered, text)
