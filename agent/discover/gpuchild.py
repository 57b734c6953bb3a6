"""The child process with NVML: it answers the agent's requests with the inventory of the GPUs and
their readings (use, processes, and the counters that show a card's health), and forwards the
driver's events, until the agent ends.

It is a separate process because NVML can hang, needs much memory, and can't be unloaded, as it must
be before another version of the driver is used. It is started as
`python -P -m agent.discover.gpuchild [DRIVER_ROOT]`, with a socket as standard input.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from agent.discover.gpumessages import BUFFER_BYTES, Answer, End, Event, Lines, Query, Result, line
from agent.discover.nvml import MEMORY_V2, DriverGoneError, GpuGoneError, Nvml, NvmlError
from agent.model.devices.gpus import (
    Ancestor,
    Gpu,
    GpuEvent,
    GpuInventory,
    GpuPair,
    GpuProcess,
    GpuReading,
    GpuReport,
    LinkEnd,
    MigInstance,
    NvLink,
    RemappedRows,
    SilentGpu,
    pci_address,
)

_MAX_LINKS: Final = 36
_ENDS: Final = {0: LinkEnd.GPU, 1: LinkEnd.NPU, 2: LinkEnd.SWITCH}
_LINKS_LAST: Final = 60
"""The number of reports after which links and pairs are read again: the fabric manager activates
links at NVSwitches without an event."""
_MAY_READ: Final = 0
"""NVML_P2P_CAPS_INDEX_READ, as a number, because pynvml's constant is a tuple."""


class InventoryReader:
    """Reads the inventory. Links and pairs, which need many calls, are read again only when the
    cards change, after `forget_links`, and after _LINKS_LAST reports."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._links: dict[str, tuple[NvLink, ...]] = {}
        self._pairs: tuple[GpuPair, ...] = ()
        self._known: tuple[str, ...] | None = None
        self._reports = 0

    def read(self) -> tuple[GpuInventory, dict[str, Any]]:
        """The inventory, and the handles of the cards that answered, by UUID; they are valid for
        this session. Raises DriverGoneError."""
        gpus: list[Gpu] = []
        silent: list[SilentGpu] = []
        handles: dict[str, Any] = {}
        for index, handle in self._nvml.cards():
            if isinstance(handle, NvmlError):
                silent.append(SilentGpu(index, handle.fault))
                continue
            uuid = bus = ""
            try:
                uuid = self._nvml.must("nvmlDeviceGetUUID", handle)
                bus = pci_address(self._nvml.must("nvmlDeviceGetPciInfo_v3", handle).busId)
                gpus.append(self._gpu(index, handle, uuid, bus))
                handles[uuid] = handle
            except DriverGoneError:
                raise
            except NvmlError as error:
                silent.append(SilentGpu(index, error.fault, uuid, bus))
        return self._inventory(gpus, silent, handles), handles

    def forget_links(self) -> None:
        self._known = None

    def _inventory(
        self, gpus: list[Gpu], silent: list[SilentGpu], handles: dict[str, Any]
    ) -> GpuInventory:
        uuids = tuple(gpu.uuid for gpu in gpus)
        self._reports += 1
        anew = uuids != self._known or self._reports >= _LINKS_LAST
        if anew:
            self._links = {uuid: self._links_of(handle) for uuid, handle in handles.items()}
        linked = tuple(structs.replace(gpu, links=self._links[gpu.uuid]) for gpu in gpus)
        if anew:
            self._pairs = pairs(linked, self._sharing(handles))
            self._known, self._reports = uuids, 0
        return GpuInventory(
            self._nvml.must("nvmlSystemGetDriverVersion"),
            linked,
            self._pairs,
            tuple(silent),
        )

    def _gpu(self, index: int, handle: Any, uuid: str, bus: str) -> Gpu:
        query, know = self._nvml.maybe, self._nvml.known
        mig = know("nvmlDeviceGetMigMode", handle)
        memory = know("nvmlDeviceGetMemoryInfo", handle)
        divided = None if mig is None else mig[0] == 1
        capability = query("nvmlDeviceGetCudaComputeCapability", handle)
        return Gpu(
            uuid,
            index,
            bus,
            query("nvmlDeviceGetName", handle) or "",
            know("nvmlDeviceGetMinorNumber", handle),
            None if memory is None else int(memory.total),
            query("nvmlDeviceGetSerial", handle),
            query("nvmlDeviceGetModuleId", handle),
            None if capability is None else (capability[0], capability[1]),
            divided,
            self._instances(handle) if divided else (),
        )

    def _instances(self, handle: Any) -> tuple[MigInstance, ...]:
        most = self._nvml.maybe("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        instances = (
            (place, self._nvml.maybe("nvmlDeviceGetMigDeviceHandleByIndex", handle, place))
            for place in range(most)
        )
        answered = (self._instance(place, each) for place, each in instances if each is not None)
        return tuple(each for each in answered if each is not None)

    def _instance(self, index: int, handle: Any) -> MigInstance | None:
        """The instance, None if it is being removed."""
        query = self._nvml.maybe
        uuid = query("nvmlDeviceGetUUID", handle)
        gpu_instance = query("nvmlDeviceGetGpuInstanceId", handle)
        if uuid is None or gpu_instance is None:
            return None
        attributes = query("nvmlDeviceGetAttributes_v2", handle)
        slices = None
        if attributes is not None:
            slices = (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount)
        compute_instance = query("nvmlDeviceGetComputeInstanceId", handle)
        memory = query("nvmlDeviceGetMemoryInfo", handle)
        total = None if memory is None else int(memory.total)
        return MigInstance(uuid, gpu_instance, compute_instance, slices, total, index)

    def _links_of(self, handle: Any) -> tuple[NvLink, ...]:
        links = []
        for number in range(_MAX_LINKS):
            try:
                up = self._nvml.maybe("nvmlDeviceGetNvLinkState", handle, number)
                if up:
                    links.append(self._link(handle, number))
            except GpuGoneError:
                # The next report has the fault of the card.
                break
        return tuple(links)

    def _link(self, handle: Any, number: int) -> NvLink:
        end = self._nvml.maybe("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
        far = self._nvml.maybe("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
        bus = "" if far is None else pci_address(far.busId)
        # Drivers without this call support only links to GPUs.
        kind = _ENDS.get(end, LinkEnd.UNKNOWN) if end is not None or not bus else LinkEnd.GPU
        version = self._nvml.maybe("nvmlDeviceGetNvLinkVersion", handle, number)
        return NvLink(number, version, kind, bus)

    def _sharing(self, handles: dict[str, Any]) -> dict[frozenset[str], Sharing]:
        return {
            frozenset((one, two)): self._shared(handles[one], handles[two])
            for one, two in itertools.combinations(handles, 2)
        }

    def _shared(self, one: Any, two: Any) -> Sharing:
        try:
            level = self._nvml.maybe("nvmlDeviceGetTopologyCommonAncestor", one, two)
            status = self._nvml.maybe("nvmlDeviceGetP2PStatus", one, two, _MAY_READ)
        except GpuGoneError:
            return None, None
        is_ancestor = level is not None and level in Ancestor.__members__.values()
        return Ancestor(level) if is_ancestor else None, None if status is None else status == 0


MB_PER_SECOND: Final = {1: 20_000, 2: 25_000, 3: 25_000, 4: 25_000, 5: 50_000}
"""Bandwidth of one link in one direction, by NVLink version (hwloc's topology-nvml.c)."""

_UNKNOWN_VERSION: Final = 2
_NEWEST: Final = 5

Sharing = tuple[Ancestor | None, bool | None]
"""The common ancestor of two cards, and whether they may be peers."""


def pairs(gpus: Iterable[Gpu], sharing: Mapping[frozenset[str], Sharing]) -> tuple[GpuPair, ...]:
    """Every two cards, in order of index.

    Direct links between two cards are counted at both ends, and the lower count is used: a link
    with an inactive end carries nothing. Cards at switches reach each other over all their links.

    `sharing`: by the UUIDs of two cards."""
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    return tuple(_pair(one, two, sharing) for one, two in itertools.combinations(ordered, 2))


def _pair(one: Gpu, two: Gpu, sharing: Mapping[frozenset[str], Sharing]) -> GpuPair:
    ancestor, peer = sharing.get(frozenset((one.uuid, two.uuid)), (None, None))
    straight = _straight(one, two), _straight(two, one)
    switched = _switched(one), _switched(two)
    for ends in straight, switched:
        if any(ends):
            links = min(map(len, ends))
            through = bool(links) and ends is switched
            speed = min(map(_speed, ends))
            return GpuPair(one.uuid, two.uuid, ancestor, peer, links, speed, through)
    return GpuPair(one.uuid, two.uuid, ancestor, peer)


def _straight(gpu: Gpu, other: Gpu) -> list[NvLink]:
    return [link for link in gpu.links if link.end is LinkEnd.GPU and link.bus == other.bus]


def _switched(gpu: Gpu) -> list[NvLink]:
    return [link for link in gpu.links if link.end is LinkEnd.SWITCH]


def _speed(links: list[NvLink]) -> int:
    versions = (min(link.version or _UNKNOWN_VERSION, _NEWEST) for link in links)
    return sum(MB_PER_SECOND[version] for version in versions)


_SM: Final = 1
_UNCORRECTED: Final = 1
_SINCE_LOAD: Final = 0
_RECOVERY_ACTION: Final = 230
_NO_INSTANCE: Final = 0xFFFFFFFF
_SAMPLED_MICROSECONDS: Final = 1_000_000


def readings(
    nvml: Nvml, handles: dict[str, Any], indices: dict[str, int]
) -> tuple[tuple[GpuReading, ...], tuple[SilentGpu, ...]]:
    """Current readings, and the cards that stopped answering. Raises DriverGoneError."""
    answered: list[GpuReading] = []
    silent: list[SilentGpu] = []
    for uuid, handle in handles.items():
        try:
            answered.append(_reading(nvml, uuid, handle))
        except GpuGoneError as error:
            silent.append(SilentGpu(indices[uuid], error.fault, uuid))
    return tuple(answered), tuple(silent)


def _reading(nvml: Nvml, uuid: str, handle: Any) -> GpuReading:
    query = nvml.maybe
    rates = query("nvmlDeviceGetUtilizationRates", handle)
    rows = query("nvmlDeviceGetRemappedRows", handle)
    # Cards before Ampere retire pages; later ones remap rows.
    pages = query("nvmlDeviceGetRetiredPagesPendingStatus", handle) if rows is None else None
    return GpuReading(
        uuid,
        _used(nvml, handle),
        None if rates is None else rates.gpu,
        query("nvmlDeviceGetClockInfo", handle, _SM),
        query("nvmlDeviceGetTemperature", handle, 0),
        query("nvmlDeviceGetPowerUsage", handle),
        query("nvmlDeviceGetTotalEnergyConsumption", handle),
        query("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_LOAD),
        None if rows is None else RemappedRows(rows[1], rows[2] != 0, rows[3] != 0),
        None if pages is None else pages != 0,
        _recovery_action(nvml, handle),
        _processes(nvml, handle),
    )


def _used(nvml: Nvml, handle: Any) -> int | None:
    info = nvml.maybe("nvmlDeviceGetMemoryInfo", handle, MEMORY_V2)
    if info is None:
        info = nvml.maybe("nvmlDeviceGetMemoryInfo", handle)
    return None if info is None else int(info.used)


def _recovery_action(nvml: Nvml, handle: Any) -> int | None:
    values = nvml.maybe("nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION])
    return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None


def _processes(nvml: Nvml, handle: Any) -> tuple[GpuProcess, ...] | None:
    """The processes on a card, None if the driver does not list any. A process that uses both
    compute and graphics is listed once, as compute."""
    # With an older driver, pynvml's names without a version raise another kind of error.
    compute = nvml.maybe("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    graphics = nvml.maybe("nvmlDeviceGetGraphicsRunningProcesses_v3", handle)
    if compute is None and graphics is None:
        return None
    since = time.time_ns() // 1000 - _SAMPLED_MICROSECONDS
    samples = nvml.maybe("nvmlDeviceGetProcessUtilization", handle, since) or ()
    used = {sample.pid: sample for sample in samples}
    answered = [(each, True) for each in graphics or ()] + [(each, False) for each in compute or ()]
    processes = {}
    for each, graphic in answered:
        sample = used.get(each.pid)
        instance = each.gpuInstanceId
        processes[each.pid, instance] = GpuProcess(
            each.pid,
            each.usedGpuMemory,
            None if instance == _NO_INSTANCE else instance,
            graphic,
            None if sample is None else sample.smUtil,
        )
    return tuple(processes[key] for key in sorted(processes))


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
