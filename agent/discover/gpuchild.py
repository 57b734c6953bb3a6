"""The child process with NVML: it answers requests and passes events on, until its parent ends. It
is a process of its own because a driver can be replaced only under a process that ends, can hang,
and is large: `python -P -m agent.discover.gpuchild [DRIVER_ROOT]`, with a socket as standard
input."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from typing import Final

import msgspec

from agent.discover.gpuevents import EventReader
from agent.discover.gpuinventory import InventoryReader
from agent.discover.gpumessages import BUFFER_BYTES, Answer, GpuSeen, Lines, Look, Over, Told, line
from agent.discover.gpureadings import readings
from agent.discover.nvml import DriverGoneError, Nvml, NvmlError
from agent.model.gpus import GpuEvent, GpuSight

_WAIT_MILLISECONDS: Final = 200
"""For events, in one thread with the calls: a look waits for it, an event never."""

_NVLINK_XIDS: Final = frozenset({74, *range(144, 151)})
_MOST_FAILURES: Final = 5
_MOST_LAST_EVENTS: Final = 100
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
        """Until the parent hangs up. Raises DriverGoneError."""
        lines = Lines()
        decoder = msgspec.json.Decoder(Look)
        while True:
            listening = self._events is not None and not self._events.silent
            if self._poll.poll(0 if listening else None):
                received = self._connection.recv(BUFFER_BYTES)
                if not received:
                    return
                for each in lines.feed(received):
                    self._say(GpuSeen(decoder.decode(each).number, self._sight()))
            else:
                self._pass_events_on()

    def _sight(self) -> GpuSight:
        inventory, handles = self._inventory.read()
        watched = tuple(handles)
        if watched != self._watched:
            if self._events is not None:
                self._pass_last_events_on(self._events)
                self._events.close()
            self._events, self._watched = EventReader(self._nvml, handles), watched
        indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
        found, silent = readings(self._nvml, handles, indices)
        if silent:
            inventory = msgspec.structs.replace(inventory, silent=inventory.silent + silent)
        return GpuSight(inventory=inventory, readings=found)

    def _pass_events_on(self) -> None:
        assert self._events is not None
        try:
            event = self._events.within(_WAIT_MILLISECONDS)
        except DriverGoneError:
            raise
        except NvmlError as error:
            # Some drivers say so here that a card is lost, and say it again at once.
            self._failures += 1
            if self._failures > _MOST_FAILURES:
                raise DriverGoneError("nvmlEventSetWait", error.code, error.fault) from None
            self._poll.poll(_WAIT_MILLISECONDS)
            return
        self._failures = 0
        if event is not None:
            self._tell(event)

    def _pass_last_events_on(self, events: EventReader) -> None:
        """The last events of a lost card; at most as many as may have come since."""
        if events.silent:
            return
        for _ in range(_MOST_LAST_EVENTS):
            try:
                event = events.within(0)
            except DriverGoneError:
                raise
            except NvmlError:
                return
            if event is None:
                return
            self._tell(event)

    def _tell(self, event: GpuEvent) -> None:
        if event.xid in _NVLINK_XIDS:
            self._inventory.look_at_links_again()
        self._say(Told(event))

    def _say(self, message: Answer) -> None:
        self._connection.sendall(line(message))


def main() -> None:
    # Reading the end of its input is how it learns of the parent's end, unless a call hangs.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    try:
        try:
            _Child(connection, Nvml(*sys.argv[1:2])).run()
        except NvmlError as error:
            # Also of a question that is about no card: without its answer there is no look.
            connection.sendall(line(Over(error.fault, str(error))))
    except (BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    main()
