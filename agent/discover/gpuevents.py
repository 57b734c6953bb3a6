"""Events of the driver: XIDs, and those that need a new report."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from agent.discover.nvml import DriverGoneError, Nvml, NvmlError
from agent.model.gpus import GpuEvent

_XID: Final = 0x8
_LOOK_AGAIN: Final = (
    0x2  # an uncorrectable ECC error
    | 0x100  # MIG was configured anew
    | 0x400  # memory was retired
    | 0x800  # memory could not be retired
    | 0x4000  # a card can't be used
    | 0x8000  # the driver recommends another action
)
_ANY_INSTANCE: Final = 0xFFFFFFFF


class EventReader:
    """Events of these cards, by UUID. Raises DriverGoneError."""

    def __init__(self, nvml: Nvml, handles: dict[str, Any]) -> None:
        self._nvml = nvml
        # A lost card no longer tells its UUID; the driver's handle of it stays what it was.
        self._uuids = {_address(handle): uuid for uuid, handle in handles.items()}
        self._events = nvml.maybe("nvmlEventSetCreate") if handles else None
        registered = [self._register(handle) for handle in handles.values()]
        self.silent = not any(registered)
        """Whether no event will ever come."""

    def within(self, milliseconds: int) -> GpuEvent | None:
        """Raises NvmlError too, when waiting itself goes wrong."""
        data = self._nvml.event_within(self._events, milliseconds)
        if data is None:
            return None
        uuid = self._uuids.get(_address(data.device), "")
        if data.eventType != _XID:
            return GpuEvent(uuid)
        instance = None if data.gpuInstanceId == _ANY_INSTANCE else int(data.gpuInstanceId)
        return GpuEvent(uuid, int(data.eventData), instance)

    def close(self) -> None:
        if self._events is not None:
            self._nvml.maybe("nvmlEventSetFree", self._events)

    def _register(self, handle: Any) -> bool:
        if self._events is None:
            return False
        try:
            known = self._nvml.must("nvmlDeviceGetSupportedEventTypes", handle)
            wanted = known & (_XID | _LOOK_AGAIN)
            self._nvml.must("nvmlDeviceRegisterEvents", handle, wanted, self._events)
        except DriverGoneError:
            raise
        except NvmlError:
            return False
        return True


def _address(handle: Any) -> int:
    """Of the driver's own object: handles themselves do not compare."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
