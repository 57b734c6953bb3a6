"""A step counter in shared memory: the steps of an agent, and the step at which it is killed."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_NUMBERS = struct.Struct("<QQ")
_BYTES = 128


class StepCounter:
    """`count`: the steps until now. `kill_at`: the process is killed before this step; 0: never."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            self._map = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    def clear(self, kill_at: int = 0) -> None:
        self._map[:] = bytes(_BYTES)
        self.kill_at = kill_at

    @property
    def count(self) -> int:
        return int(_NUMBERS.unpack_from(self._map)[0])

    @count.setter
    def count(self, value: int) -> None:
        self._map[:8] = value.to_bytes(8, "little")

    @property
    def kill_at(self) -> int:
        return int(_NUMBERS.unpack_from(self._map)[1])

    @kill_at.setter
    def kill_at(self, value: int) -> None:
        self._map[8:16] = value.to_bytes(8, "little")

    @property
    def killed_before(self) -> str:
        """The step before which the agent was killed, "" for none."""
        return self._map[_NUMBERS.size :].rstrip(b"\0").decode()

    @killed_before.setter
    def killed_before(self, text: str) -> None:
        room = _BYTES - _NUMBERS.size
        self._map[_NUMBERS.size :] = text.encode()[:room].ljust(room, b"\0")

    def close(self) -> None:
        self._map.close()
