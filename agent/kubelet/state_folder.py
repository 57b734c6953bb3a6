"""All state files in a kubelet's folder, also damaged ones: those of the CPU manager, the memory
manager and the device manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from agent.kubelet import cpu_manager_state, device_checkpoint, memory_manager_state, statefile
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.device_checkpoint import DeviceCheckpoint
from agent.kubelet.memory_manager_state import MemoryManagerState
from agent.kubelet.statefile import Checked, StateFileError

State = CpuManagerState | MemoryManagerState | DeviceCheckpoint

_FILES: Final[dict[str, Callable[[bytes], State]]] = {
    cpu_manager_state.FILE_NAME: cpu_manager_state.decode,
    memory_manager_state.FILE_NAME: memory_manager_state.decode,
    device_checkpoint.FILE_NAME: device_checkpoint.decode,
}


class StateFile(msgspec.Struct, frozen=True):
    """A file of the folder."""

    name: str
    state: State | None = None
    """None if the file is absent or can't be read."""
    error: str = ""
    """Why the file can't be read."""

    @property
    def problem(self) -> str:
        """The error, or that the checksum is wrong; "" for an intact or absent file."""
        if self.state is not None and self.state.checked is Checked.MISMATCH:
            return "its checksum is wrong"
        return self.error


def read(folder: str) -> list[StateFile]:
    """The files in the order CPU manager, memory manager, device manager."""
    found = []
    for name, decode in _FILES.items():
        try:
            raw = statefile.load(f"{folder}/{name}")
            found.append(StateFile(name, None if raw is None else decode(raw)))
        except StateFileError as error:
            found.append(StateFile(name, error=str(error)))
    return found


def body(shown: object) -> Any:
    """State files, or values of them, as JSON values and bytes: CPU sets as Linux lists."""
    return msgspec.to_builtins(shown, builtin_types=(bytes,), enc_hook=str)
