"""The values of the node's page, made when a browser requests them: from the results of the agent's
last pass, the audit trail, and the load of each CPU.

All calls are made in the HTTP server's thread. The page requests `load` each second, and `state` or
`history` when its revision in `load` has changed."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from agent.discover import hardware, sysfs_devices
from agent.discover.sysfs_devices import SysfsDevices
from agent.host.files import Tree
from agent.model import audit
from agent.model.bounds import reason
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import GpuReading, GpuReport
from agent.model.devices.pci import Fpgas, Function, Rdma
from agent.node.reconcile import LastPass
from agent.node.reserved_load import cpu_times
from agent.telemetry import audit as trail
from agent.view import devices as devices_view
from agent.view import machine
from agent.view.devices import DeviceSources, ShownDevice
from agent.view.history import PoolSize, RecentChange, RecentChanges
from agent.view.live import SCHEMA_VERSION, Attention, LiveNode, drift, live, loads

if TYPE_CHECKING:
    from agent.usage.past import PastHour

_HISTORY_SECONDS: Final = 86_400.0
_POOL_SECONDS: Final = 3_600.0
_FIRST_BYTES: Final = 1 << 20
"""How much of each file of the trail is read when the first browser asks: its last bytes."""
_USAGE_SECONDS: Final = 60.0
"""The time between two revisions of the usage."""
LOAD_SECONDS: Final = 0.4
"""The least time between two reads of the load: several browsers get the same one."""
_Sysfs = tuple[Mapping[str, Function], Rdma, Fpgas]
_NO_SYSFS: Final[_Sysfs] = {}, Rdma(), Fpgas()
_NO_TOPOLOGY: Final = Topology((), (), CpuSet(), CpuSet(), False)


class _DeviceUse(msgspec.Struct, frozen=True):
    """The use of a GPU; values are None if unknown."""

    percent: int | None
    memory_used_bytes: int | None


class _History(msgspec.Struct, frozen=True):
    """The fields of `history.Recent`, with pools and drift of the last hour."""

    schema_version: int
    revision: int
    begin: str
    """When that hour starts."""
    since: dict[str, str]
    pools: tuple[PoolSize, ...]
    changes: tuple[RecentChange, ...]
    drift: tuple[Attention, ...]


class _Load(msgspec.Struct, frozen=True):
    """What the page asks for each second."""

    time: str
    state: int
    """The revision of the state."""
    history: int
    """The revision of the history."""
    usage: int
    """The revision of the usage, 0 if no use of CPU and memory is sampled."""
    problem: str
    """Why the agent is not Ready."""
    load: str
    """One byte for each CPU of the state, see `live.loads`, in base64."""
    devices: dict[str, _DeviceUse]
    """By address."""


class _Usage(msgspec.Struct, frozen=True):
    """The use of CPU and memory."""

    schema_version: int
    hour: object
    """A `past.PastHour`; None if nothing is sampled."""


class NodePage:
    """The page of the node, and what it asks for.

    `last`: returns what the last pass found, None before the first one.
    `sysfs`: the devices, None if they are switched off.
    `problem`: returns why the agent is not Ready, "" if it is.
    `past`: returns the load and pressure of the last hour; None if no use of CPU and memory is
        sampled."""

    def __init__(
        self,
        node: str,
        root: str,
        state_dir: str,
        last: Callable[[], LastPass | None],
        sysfs: SysfsDevices | None,
        gpu_report: Callable[[], GpuReport | None],
        problem: Callable[[], str],
        past: Callable[[], PastHour] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._files = Tree(root)
        self._root = root
        self._state_dir = state_dir
        self._last = last
        self._sysfs = sysfs
        self._gpu_report = gpu_report
        self._problem = problem
        self._past = past
        self._clock = clock
        self._made_of: object = None
        self._live: LiveNode | None = None
        # Another agent's revisions differ, so that a page that stays open asks again.
        self._state = self._history = int(clock() * 1000)
        self._hardware: tuple[Topology, tuple[str, ...]] = _NO_TOPOLOGY, ()
        self._offsets: dict[str, int] = {}
        self._recent = RecentChanges()
        self._times: dict[int, tuple[int, int]] = {}
        self._read_at = 0.0
        self._loads: tuple[Topology, bytes] = _NO_TOPOLOGY, b""

    def state(self) -> bytes:
        """The node as `live.LiveNode`."""
        return msgspec.json.encode(self._node_now())

    def history(self) -> bytes:
        """The changes of the last day, and the pools and the drift of the last hour."""
        now = self._clock()
        self._read_trail()
        recent = self._recent.since(audit.stamp(now - _HISTORY_SECONDS))
        hour = audit.stamp(now - _POOL_SECONDS)
        return msgspec.json.encode(
            _History(
                SCHEMA_VERSION,
                self._history,
                hour,
                recent.since,
                self._recent.since(hour).pools,
                recent.changes,
                drift(recent, hour),
            )
        )

    def load(self) -> bytes:
        """What changes each second."""
        self._node_now()
        self._read_trail()
        last = self._last()
        return msgspec.json.encode(
            _Load(
                audit.stamp(self._clock()),
                self._state,
                self._history,
                int(self._clock() // _USAGE_SECONDS) if self._past else 0,
                reason(self._problem()),
                base64.b64encode(self._load_of(last.topology if last else _NO_TOPOLOGY)).decode(),
                self._use(),
            )
        )

    def usage(self) -> bytes:
        """The load and pressure of the last hour as `past.PastHour`."""
        return msgspec.json.encode(_Usage(SCHEMA_VERSION, self._past() if self._past else None))

    def _node_now(self) -> LiveNode:
        last = self._last() or LastPass(_NO_TOPOLOGY, None)
        sysfs, gpus = _NO_SYSFS, self._gpu_report()
        if self._sysfs is not None:
            sysfs = self._sysfs.functions, self._sysfs.rdma, self._sysfs.fpgas
        if gpus is not None:
            # Readings change each second: they are in `load`.
            gpus = msgspec.structs.replace(gpus, readings=())
        made_of = last, sysfs, gpus
        if self._live is None or made_of != self._made_of:
            shown = _shown(last, sysfs, gpus, sysfs_devices.interfaces(self._root, sysfs[0]))
            if last.topology is not self._hardware[0]:
                parts = hardware.read(self._root, last.topology)
                self._hardware = last.topology, tuple(machine.about(parts))
            node = live(
                self._node,
                last.topology,
                last.snapshot,
                shown,
                _attention(last),
                self._hardware[1],
            )
            if node != self._live:
                self._state += 1
            self._live, self._made_of = node, made_of
        return self._live

    def _use(self) -> dict[str, _DeviceUse]:
        report = self._gpu_report()
        if report is None or report.inventory is None:
            return {}
        buses = {each.uuid: each.bus for each in report.inventory.gpus}
        return {buses[each.uuid]: _used(each) for each in report.readings if each.uuid in buses}

    def _load_of(self, topology: Topology) -> bytes:
        now = time.monotonic()
        of, by_cpu = self._loads
        if topology is not of or now - self._read_at >= LOAD_SECONDS:
            times = cpu_times(self._files.text("proc/stat") or "")
            by_cpu = loads(self._times, times, (cpu.id for cpu in topology.cpus))
            self._times, self._read_at, self._loads = times, now, (topology, by_cpu)
        return by_cpu

    def _read_trail(self) -> None:
        """A trail that can't be read counts as one without records; the log has the reason."""
        try:
            for record in trail.appended(self._state_dir, self._offsets, _FIRST_BYTES):
                if self._recent.add(record):
                    self._history += 1
        except OSError:
            return


def _used(reading: GpuReading) -> _DeviceUse:
    return _DeviceUse(reading.gpu_percent, reading.memory_used_bytes)


def _shown(
    last: LastPass,
    sysfs: _Sysfs,
    gpus: GpuReport | None,
    interfaces: Mapping[str, tuple[str, ...]],
) -> tuple[ShownDevice, ...]:
    functions, rdma, fpgas = sysfs
    health = {each.uuid: each.healthy for each in last.devices}
    snapshot = last.snapshot
    holders = devices_view.holders(snapshot) if snapshot else {}
    numa_nodes = devices_view.numa_nodes(snapshot) if snapshot else {}
    devices = devices_view.shown(
        DeviceSources(functions, interfaces, rdma, fpgas, gpus, holders, health, numa_nodes)
    )
    faults = {each.uuid: _fault(each) for each in last.devices if not each.healthy}
    return tuple(
        msgspec.structs.replace(each, state=fault)
        if (fault := faults.get(each.id or each.address))
        else each
        for each in devices
    )


def _fault(device: Device) -> str:
    return next((each.message for each in device.conditions if each.status == "False"), "")


def _attention(last: LastPass) -> Iterator[Attention]:
    pods = last.snapshot.pods if last.snapshot else {}
    for each in last.shortfalls:
        # A refused claim is the pod's own finding.
        if each.uid not in pods or not pods[each.uid].refused:
            yield Attention("CPUs differ", each.text, pod=each.title)
    for limit in last.refused:
        yield Attention("Limit refused", limit.text, pod=limit.title)
