"""The child process with NVML: it answers the agent's requests and forwards the driver's events,
until the agent ends. It is a separate process because NVML can hang, needs much memory, and can't
be unloaded, as it must be before another version of the driver is used. It is started as
`python -P -m agent.discover.gpuchild [DRIVER_ROOT]`, with a socket as standard input."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from typing import Any, Final

import msgspec

from agent.discover.gpumessages import BUFFER_BYTES, Answer, End, Event, Lines, Query, Result, line
from agent.discover.gpureport import InventoryReader, readings
from agent.discover.nvml import DriverGoneError, Nvml, NvmlError
from agent.model.devices.gpus import GpuEvent, GpuReport

_XID: Final = 0x8
_STATE_EVENTS: Final = (
    0x2  # an uncorrectable ECC error
    | 0x100  # MIG was reconfigured
    | 0x400  # memory was retired
    | 0x800  # memory could not be retired
    | 0x4000  # a card can't be used
    | 0x8000  # the driver recommends another action
)
_ANY_INSTANCE: Final = 0xFFFFFFFF


class EventReader:
    """Registers for the events of cards, and reads them.

    `handles`: the cards by UUID.

    Raises DriverGoneError."""

    def __init__(self, nvml: Nvml, handles: dict[str, Any]) -> None:
        self._nvml = nvml
        # The UUID of a lost card can't be read any more; the driver's handle stays the same.
        self._uuids = {_address(handle): uuid for uuid, handle in handles.items()}
        self._events = nvml.maybe("nvmlEventSetCreate") if handles else None
        registered = [self._register(handle) for handle in handles.values()]
        self.silent = not any(registered)
        """Whether the driver has no events."""

    def within(self, milliseconds: int) -> GpuEvent | None:
        """The next event, None if there is none within this time. Raises DriverGoneError, and
        NvmlError when the wait fails."""
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
            supported = self._nvml.must("nvmlDeviceGetSupportedEventTypes", handle)
            wanted = supported & (_XID | _STATE_EVENTS)
            self._nvml.must("nvmlDeviceRegisterEvents", handle, wanted, self._events)
        except DriverGoneError:
            raise
        except NvmlError:
            return False
        return True


def _address(handle: Any) -> int:
    """The address of the driver's object, because handles themselves can't be compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


_WAIT_MILLISECONDS: Final = 200
"""How long one wait for an event takes. The same thread answers requests, so a request may wait
that long; an event ends the wait."""

_NVLINK_XIDS: Final = frozenset({74, *range(144, 151)})
_MAX_FAILURES: Final = 5
"""Failed waits for an event, one after the other, before the session ends."""
_MAX_LAST_EVENTS: Final = 100
"""The driver keeps as many events."""
_PR_SET_PDEATHSIG: Final = 1


class _Child:
    def __init__(self, connection: socket.socket, nvml: Nvml) -> None:
        self._connection = connection
        self._nvml = nvml
        self._inventory = InventoryReader(nvml)
        self._events: EventReader | None = None
        self._watched: tuple[str, ...] = ()
        self._failures = 0
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def run(self) -> None:
        """Runs until the parent closes the socket. Raises DriverGoneError."""
        lines = Lines()
        decoder = msgspec.json.Decoder(Query)
        while True:
            listening = self._events is not None and not self._events.silent
            if self._poll.poll(0 if listening else None):
                received = self._connection.recv(BUFFER_BYTES)
                if not received:
                    return
                for each in lines.feed(received):
                    self._send(Result(decoder.decode(each).number, self._report()))
            else:
                self._forward_events()

    def _report(self) -> GpuReport:
        inventory, handles = self._inventory.read()
        watched = tuple(handles)
        if watched != self._watched:
            if self._events is not None:
                self._forward_last_events(self._events)
                self._events.close()
            self._events, self._watched = EventReader(self._nvml, handles), watched
        indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
        answered, silent = readings(self._nvml, handles, indices)
        if silent:
            inventory = msgspec.structs.replace(inventory, silent=inventory.silent + silent)
        return GpuReport(inventory=inventory, readings=answered)

    def _forward_events(self) -> None:
        assert self._events is not None
        try:
            event = self._events.within(_WAIT_MILLISECONDS)
        except DriverGoneError:
            raise
        except NvmlError as error:
            # Some drivers report a lost card by this error, and repeat it at once.
            self._failures += 1
            if self._failures > _MAX_FAILURES:
                raise DriverGoneError("nvmlEventSetWait", error.code, error.fault) from None
            self._poll.poll(_WAIT_MILLISECONDS)
            return
        self._failures = 0
        if event is not None:
            self._forward(event)

    def _forward_last_events(self, events: EventReader) -> None:
        """Forwards the events that the driver still has when the list of cards changes: those of a
        lost card."""
        if events.silent:
            return
        for _ in range(_MAX_LAST_EVENTS):
            try:
                event = events.within(0)
            except DriverGoneError:
                raise
            except NvmlError:
                return
            if event is None:
                return
            self._forward(event)

    def _forward(self, event: GpuEvent) -> None:
        if event.xid in _NVLINK_XIDS:
            self._inventory.forget_links()
        self._send(Event(event))

    def _send(self, message: Answer) -> None:
        self._connection.sendall(line(message))


def main() -> None:
    # The socket's end shows that the parent has ended, but not to a process that hangs in a call.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    try:
        try:
            _Child(connection, Nvml(*sys.argv[1:2])).run()
        except NvmlError as error:
            # A report needs the answers to the calls that concern all cards.
            connection.sendall(line(End(error.fault, str(error))))
    except (BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    main()
