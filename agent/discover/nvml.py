"""NVML through pynvml. Only this module depends on the library and its error numbers.

The errors are of three kinds. A value that the driver does not have is None. A lost card is a fault
of that card only (GpuGoneError). A driver that was unloaded or replaced ends the session
(DriverGoneError): the old library stays mapped for the life of the process. Calls with transient
errors are repeated. One thread makes all calls, because pynvml shares buffers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Any, Final

import pynvml

from agent.model.devices.gpus import NO_ANSWER

_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
MEMORY_V2: Final = pynvml.nvmlMemory_v2
"""The version of the struct in which the memory in use does not include the driver's own."""

_LIBRARY: Final = "libnvidia-ml.so.1"
_TRIES: Final = 3
_MAX_LINKS: Final = 8

_ENDED: Final = {
    pynvml.NVML_ERROR_UNINITIALIZED: "SessionLost",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "DriverNotLoaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "LibraryNotFound",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "DriverMismatch",
}
_GONE: Final = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "GpuLost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "ResetRequired",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "GpuLost",
}
_FAULTS: Final = {
    pynvml.NVML_ERROR_NO_PERMISSION: "NoPermission",
    pynvml.NVML_ERROR_IRQ_ISSUE: "InterruptIssue",
    pynvml.NVML_ERROR_TIMEOUT: NO_ANSWER,
    pynvml.NVML_ERROR_NOT_READY: NO_ANSWER,
    pynvml.NVML_ERROR_UNKNOWN: NO_ANSWER,
}
_NO_SUCH_THING: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
"""Not cached: MIG mode and new links change what a card supports while the driver stays loaded, and
each call costs microseconds."""

_PASSING: Final = (
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_IN_USE,
    pynvml.NVML_ERROR_NOT_READY,
    pynvml.NVML_ERROR_UNKNOWN,
)


class NvmlError(Exception):
    """A failed call, which the text names."""

    def __init__(self, call: str, code: int, fault: str) -> None:
        super().__init__(f"{call}: {pynvml.NVMLError(code)}")
        self.code = code
        """NVML's number."""
        self.fault = fault
        """A Condition's reason."""


class DriverGoneError(NvmlError):
    """The driver is missing, or is another one than the library in this process belongs to."""


class GpuGoneError(NvmlError):
    """This card does not answer any more; others may."""


class Nvml:
    """An open session.

    `driver_root`: the root of a driver in a container; without a library there, or with "", the
        linker's paths are searched.

    Raises DriverGoneError."""

    def __init__(self, driver_root: str = "") -> None:
        # pynvml loads the library by its SONAME, and gets the one that is loaded already.
        for path in _candidates(driver_root):
            try:
                ctypes.CDLL(path)
            except OSError:
                continue
            break
        try:
            self.must("nvmlInit")
        except NvmlError as error:
            raise DriverGoneError("nvmlInit", error.code, error.fault) from None

    def must(self, call: str, *arguments: object) -> Any:
        """The result of a call by its name. Raises NvmlError."""
        function = getattr(pynvml, call, None)
        if function is None:
            raise _error(call, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        for _ in range(_TRIES):
            try:
                return function(*arguments)
            except pynvml.NVMLError as error:
                code = error.value
            except UnicodeDecodeError:
                code = pynvml.NVML_ERROR_UNKNOWN
            if code not in _PASSING:
                break
        raise _error(call, code)

    def known(self, call: str, *arguments: object) -> Any:
        """The result of a call; None if the driver reports that the card does not support it.
        Raises NvmlError for any other failure: a card without MIG and one that does not answer
        differ."""
        try:
            return self.must(call, *arguments)
        except NvmlError as error:
            if error.code in _NO_SUCH_THING:
                return None
            raise

    def maybe(self, call: str, *arguments: object) -> Any:
        """The result of a call; None if it failed. Raises DriverGoneError, GpuGoneError."""
        try:
            return self.must(call, *arguments)
        except (DriverGoneError, GpuGoneError):
            raise
        except NvmlError:
            return None

    def cards(self) -> Iterable[tuple[int, Any]]:
        """Index and handle of every card, or the error in the handle's place."""
        for index in range(self.must("nvmlDeviceGetCount")):
            try:
                yield index, self.must("nvmlDeviceGetHandleByIndex", index)
            except DriverGoneError:
                raise
            except NvmlError as error:
                yield index, error

    def event_within(self, events: Any, milliseconds: int) -> Any:
        """The next event of a set, None if there is none within this time. Raises NvmlError."""
        try:
            return pynvml.nvmlEventSetWait(events, milliseconds)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise _error("nvmlEventSetWait", error.value) from None


def _error(call: str, code: int) -> NvmlError:
    if code in _ENDED:
        return DriverGoneError(call, code, _ENDED[code])
    if code in _GONE:
        return GpuGoneError(call, code, _GONE[code])
    return NvmlError(call, code, _FAULTS.get(code, f"NvmlError{code}"))


def _candidates(driver_root: str) -> list[str]:
    if not driver_root:
        return []
    paths = (os.path.join(driver_root, folder, _LIBRARY) for folder in _FOLDERS)
    return [_followed(driver_root, path) for path in paths]


def _followed(root: str, path: str) -> str:
    """Follows the links of a path below `root`: the target of an absolute link is below it too."""
    for _ in range(_MAX_LINKS):
        try:
            target = os.readlink(path)
        except OSError:
            break
        base = root if target.startswith("/") else os.path.dirname(path)
        path = os.path.join(base, target.lstrip("/"))
    return path
