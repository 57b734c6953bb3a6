"""The fake reads frames as containerd does: it accepts the frames that containerd accepts."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from tests.nri.fake import FrameLostError, Reader


def message(size: int) -> bytes:
    return struct.pack(">IIBB", size, 1, 1, 0) + bytes(size)


def cut(content: bytes, *sizes: int) -> list[bytes]:
    """Splits it into pieces of these sizes, and the rest."""
    pieces = []
    for size in sizes:
        pieces.append(content[:size])
        content = content[size:]
    return [*pieces, content]


def every(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


LARGE = message(6_000)
HUGE = message(4_194_294)
TAKEN = {
    "one frame of 4096 bytes": [message(4_086)],
    "header and payload": cut(HUGE, 10),
    "4096 bytes and the rest": cut(LARGE, 4096),
    "4000 bytes and the rest": cut(LARGE, 4000),
    "a header in halves": cut(LARGE, 5, 5),
    "a payload in frames of 3000": [LARGE[:10], *every(LARGE[10:], 3_000)],
    "two small messages in one frame": [message(20) + message(30)],
}
LOST = {
    "one frame of 4097 bytes": [message(4_087)],
    "two messages beyond 4096 bytes": [message(3_000) + message(3_000)],
    "payload and next header": [LARGE[:10], LARGE[10:] + message(6_000)[:10]],
}


def read(frames: Iterable[bytes]) -> list[tuple[int, int, bytes]]:
    reader = Reader()
    for each in frames:
        reader.frame(each)
    return reader.messages


@pytest.mark.parametrize("frames", TAKEN.values(), ids=TAKEN.keys())
def test_frames_that_a_runtime_accepts(frames: Iterable[bytes]) -> None:
    assert read(frames)


@pytest.mark.parametrize("frames", LOST.values(), ids=LOST.keys())
def test_frames_that_a_runtime_loses(frames: Iterable[bytes]) -> None:
    with pytest.raises(FrameLostError):
        read(frames)
