"""The messages between the agent and its child with NVML: JSON objects, one a line."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.devices.gpus import GpuEvent, GpuReport

BUFFER_BYTES: Final = 1 << 16
MAX_BYTES: Final = 16 << 20
"""The most bytes of one line; a longer one is an error."""


class Query(msgspec.Struct, frozen=True, tag="query"):
    """The agent's request for a report; the answer is a Result with the same number."""

    number: int


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The answer to the Query with this number."""

    number: int
    report: GpuReport


class Event(msgspec.Struct, frozen=True, tag="event"):
    """An event of the driver."""

    event: GpuEvent


class End(msgspec.Struct, frozen=True, tag="over"):
    """The child's last message: the reason why it can't use the driver."""

    fault: str
    message: str


Answer = Result | Event | End

_encoder = msgspec.json.Encoder()


def line(message: Query | Answer) -> bytes:
    """A message as a line. JSON text has no line end inside."""
    return _encoder.encode(message) + b"\n"


class Lines:
    """Received bytes, cut into lines. Raises ValueError for a line without end."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        self._rest += received
        *whole, rest = self._rest.split(b"\n")
        if len(rest) > MAX_BYTES:
            raise ValueError(f"a line of more than {MAX_BYTES} bytes")
        self._rest = rest
        return [bytes(each) for each in whole]
