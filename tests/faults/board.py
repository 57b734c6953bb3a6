"""The steps of an agent and the step at which to kill it: a few bytes that two processes map."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_NUMBERS = struct.Struct("<QQ")
_BYTES = 128


class Board:
    """`passed`: steps until now. `dies_at`: the step that is not executed; 0: none."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            self._map = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    def clear(self, dies_at: int = 0) -> None:
        self._map[:] = bytes(_BYTES)
        self.dies_at = dies_at

    @property
    def passed(self) -> int:
        return int(_NUMBERS.unpack_from(self._map)[0])

    @passed.setter
    def passed(self, value: int) -> None:
        self._map[:8] = value.to_bytes(8, "little")

    @property
    def dies_at(self) -> int:
        return int(_NUMBERS.unpack_from(self._map)[1])

    @dies_at.setter
    def dies_at(self, value: int) -> None:
        self._map[8:16] = value.to_bytes(8, "little")

    @property
    def place(self) -> str:
        """The step before which the agent was killed, "" for none."""
        return self._map[_NUMBERS.size :].rstrip(b"\0").decode()

    @place.setter
    def place(self, text: str) -> None:
        room = _BYTES - _NUMBERS.size
        self._map[_NUMBERS.size :] = text.encode()[:room].ljust(room, b"\0")

    def close(self) -> None:
        self._map.close()
