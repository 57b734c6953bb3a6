"""The fake runtime reads the frames that containerd reads, and loses those that it loses."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from tests.nri.fake import FrameLostError, Reader


def message(size: int) -> bytes:
    return struct.pack(">IIBB", size, 1, 1, 0) + bytes(size)


def split(content: bytes, *sizes: int) -> list[bytes]:
    """Pieces of these sizes, and the rest."""
    pieces = []
    for size in sizes:
        pieces.append(content[:size])
        content = content[size:]
    return [*pieces, content]


def chunks(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


LARGE = message(6_000)
HUGE = message(4_194_294)
READ_FRAMES = {
    "one frame of 4096 bytes": [message(4_086)],
    "header and payload": split(HUGE, 10),
    "4096 bytes and the rest": split(LARGE, 4096),
    "4000 bytes and the rest": split(LARGE, 4000),
    "a header in halves": split(LARGE, 5, 5),
    "a payload in frames of 3000": [LARGE[:10], *chunks(LARGE[10:], 3_000)],
    "two small messages in one frame": [message(20) + message(30)],
}
LOST_FRAMES = {
    "one frame of 4097 bytes": [message(4_087)],
    "two messages of together more than 4096 bytes": [message(3_000) + message(3_000)],
    "payload and next header": [LARGE[:10], LARGE[10:] + message(6_000)[:10]],
}


def read(frames: Iterable[bytes]) -> list[tuple[int, int, bytes]]:
    reader = Reader()
    for each in frames:
        reader.frame(each)
    return reader.messages


@pytest.mark.parametrize("frames", READ_FRAMES.values(), ids=READ_FRAMES.keys())
def test_frames_that_a_runtime_reads(frames: Iterable[bytes]) -> None:
    assert read(frames)


@pytest.mark.parametrize("frames", LOST_FRAMES.values(), ids=LOST_FRAMES.keys())
def test_frames_that_a_runtime_loses(frames: Iterable[bytes]) -> None:
    with pytest.raises(FrameLostError):
        read(frames)
