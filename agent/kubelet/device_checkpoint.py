"""The kubelet's device checkpoint: the devices that its device manager allocated to containers
(kubelet: pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go).

The checksum covers only `Data`. Most device ids identify a device; where they are arbitrary, the
plugin's answer does (`reported_devices.of_answer`).
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from agent.allocate.device_holders import reported_devices
from agent.kubelet import statefile
from agent.kubelet.podresources import MAX_NODE
from agent.kubelet.statefile import Checked, StateFileError
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.devices.holding import DeviceNodes, HoldingSource, ReportedDevices
from agent.model.wire import WireError

FILE_NAME: Final = "device-plugins/kubelet_internal_checkpoint"

NO_NODE: Final = -1
"""The kubelet's key for devices without a NUMA node."""

_KNOWN: Final = frozenset({"Data", "Checksum", "BootID"})
_KNOWN_DATA: Final = frozenset({"PodDeviceEntries", "RegisteredDevices"})


class DeviceEntry(msgspec.Struct, frozen=True):
    """The devices of one resource that a container has."""

    uid: str
    container: str
    resource: str
    devices: dict[int, tuple[str, ...]]
    """Ids by NUMA node."""
    answer: bytes | None = None
    """The device plugin's ContainerAllocateResponse (protobuf), None without one."""


class DeviceCheckpoint(msgspec.Struct, frozen=True):
    """The kubelet's device checkpoint, without entries that can't be read. Version 1 has device ids
    without NUMA nodes, which are under NO_NODE here."""

    entries: tuple[DeviceEntry, ...] = ()
    registered: dict[str, tuple[str, ...]] = {}
    """Device ids by resource."""
    boot_id: str = ""
    """Empty if the kubelet wrote none."""
    version: int | None = None
    """None for an unknown version."""
    checked: Checked = Checked.UNKNOWN
    problems: tuple[str, ...] = ()

    @property
    def checksum_field(self) -> str:
        return "Checksum"


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: list[str] | dict[str, list[str] | None] | None = msgspec.field(name="DeviceIDs")
    alloc_resp: str | None = None

    @property
    def listed(self) -> bool:
        return isinstance(self.device_ids, list)


def read(path: str) -> DeviceCheckpoint:
    """The default value for an absent file: no device plugin has registered. Raises StateFileError,
    also for a wrong checksum."""
    return statefile.read(path, decode, DeviceCheckpoint())


def decode(raw: bytes) -> DeviceCheckpoint:
    """Raises StateFileError for a torn text or an unknown format; `checked` reports a wrong
    checksum."""
    outer = statefile.parse(raw)
    data = statefile.field(outer, "Data", dict, None)
    if data is None:
        raise StateFileError("Data is missing")
    problems = statefile.unknown_fields(outer, _KNOWN) + statefile.unknown_fields(
        data, _KNOWN_DATA, "Data."
    )
    entries = []
    raw_entries: list[_Entry] = []
    for position, item in enumerate(statefile.field(data, "PodDeviceEntries", list, [])):
        try:
            entry = msgspec.convert(item, _Entry)
            entries.append(_entry(entry))
            raw_entries.append(entry)
        except ValueError as error:
            problems.append(f"{_title(item, position)}: {error}")
    registered = _registered(data, problems)
    listed = {entry.listed for entry in raw_entries if entry.device_ids is not None}
    version = None if problems or len(listed) > 1 else 1 if True in listed else 2
    forms = []
    if version is not None:
        some = raw_entries if data.get("PodDeviceEntries") is not None else None
        text = _text(some, data.get("RegisteredDevices"), listed=version == 1)
        forms = [(version, statefile.checksum_of("checkpoint.checkpointData", text))]
    return DeviceCheckpoint(
        entries=tuple(entries),
        registered=registered,
        boot_id=statefile.field(outer, "BootID", str, ""),
        version=version,
        checked=statefile.matching_version(statefile.number(outer, "Checksum"), forms)[1],
        problems=tuple(problems),
    )


def _entry(entry: _Entry) -> DeviceEntry:
    """Raises ValueError."""
    if isinstance(entry.device_ids, dict):
        devices = {_node(key): tuple(ids or ()) for key, ids in entry.device_ids.items()}
    else:
        devices = {NO_NODE: tuple(entry.device_ids)} if entry.device_ids else {}
    return DeviceEntry(
        uid=entry.pod_uid,
        container=entry.container_name,
        resource=entry.resource_name,
        devices=devices,
        answer=_bytes(entry.alloc_resp),
    )


def _node(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise ValueError(f"DeviceIDs.{key}: is not a NUMA node") from None


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"AllocResp: {error}") from None


def _title(item: Any, position: int) -> str:
    """Pod and container if they can be read, else the position in the list."""
    if isinstance(item, dict) and "PodUID" in item:
        return f"Data.PodDeviceEntries: pod {item['PodUID']}, {item.get('ContainerName', '')}"
    return f"Data.PodDeviceEntries[{position}]"


def _registered(data: dict[str, Any], problems: list[str]) -> dict[str, tuple[str, ...]]:
    registered = {}
    for resource, ids in sorted(statefile.field(data, "RegisteredDevices", dict, {}).items()):
        try:
            registered[resource] = tuple(msgspec.convert(ids, list[str] | None) or ())
        except msgspec.ValidationError as error:
            problems.append(f"Data.RegisteredDevices.{resource}: {error}")
    return registered


def _text(
    entries: list[_Entry] | None, registered: dict[str, list[str] | None] | None, *, listed: bool
) -> str:
    """The text over which the kubelet computes the checksum. It is made from the file's own values,
    because an absent value and an empty one have different texts."""
    kind = "[]string" if listed else "checkpoint.DevicesPerNUMA"

    def entry_text(entry: _Entry) -> str:
        ids = entry.device_ids
        return statefile.go_struct(
            ("PodUID", "string", entry.pod_uid),
            ("ContainerName", "string", entry.container_name),
            ("ResourceName", "string", entry.resource_name),
            (
                "DeviceIDs",
                kind,
                statefile.go_map(
                    {int(key): value for key, value in ids.items()}, statefile.go_slice
                )
                if isinstance(ids, dict)
                else statefile.go_slice(ids),
            ),
            ("AllocResp", "[]uint8", statefile.go_slice(_bytes(entry.alloc_resp))),
        )

    return statefile.go_struct(
        (
            "PodDeviceEntries",
            "[]checkpoint.PodDevicesEntry",
            statefile.go_slice(entries, entry_text),
        ),
        (
            "RegisteredDevices",
            "map[string][]string",
            statefile.go_map(registered, statefile.go_slice),
        ),
    )


def reported_devices_of(
    checkpoint: DeviceCheckpoint, boot_id: str = ""
) -> tuple[tuple[ReportedDevices, ...], tuple[str, ...]]:
    """The devices of containers, and problems. The ids name the devices; the plugin's answer adds
    those of arbitrary ids.

    `boot_id`: the id of this boot. Entries of the last boot are used too, because a kubelet gives
        pods the same devices again after a reboot."""
    reported: list[ReportedDevices] = []
    problems = list(checkpoint.problems)
    if boot_id and checkpoint.boot_id and checkpoint.boot_id != boot_id:
        problems.append(f"BootID {checkpoint.boot_id}: written before the last reboot")
    for entry in checkpoint.entries:
        names = tuple(sorted({name for ids in entry.devices.values() for name in ids}))
        reported.append(
            ReportedDevices(
                entry.uid, entry.container, entry.resource, names, HoldingSource.CHECKPOINT
            )
        )
        try:
            reported += reported_devices.of_answer(entry.uid, entry.container, entry.answer)
        except WireError as error:
            problems.append(f"pod {entry.uid}, {entry.container}: AllocResp: {error}")
    return tuple(reported), tuple(problems)


def nodes_of(checkpoint: DeviceCheckpoint) -> DeviceNodes:
    """The NUMA nodes of the devices of each container."""
    nodes: dict[tuple[str, str], dict[tuple[str, str], CpuSet]] = {}
    for entry in checkpoint.entries:
        of_container = nodes.setdefault((entry.uid, entry.container), {})
        for node, ids in entry.devices.items():
            near = CpuSet((node,) if 0 <= node <= MAX_NODE else ())
            for device in ids:
                key = entry.resource, device
                of_container[key] = of_container.get(key, EMPTY) | near
    return {key: tuple(of_container.values()) for key, of_container in nodes.items()}
