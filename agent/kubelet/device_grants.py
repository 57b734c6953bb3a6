"""The kubelet's device checkpoint as grants: which devices its plugins gave to which container. The
ids name the devices; the answer of the plugin (v1beta1 ContainerAllocateResponse) adds the carriers
of ids that name none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.allocate.device_holders import grants
from agent.allocate.device_holders.grants import Carriers
from agent.hooks import cri
from agent.kubelet.device_checkpoint import DeviceCheckpoint, DeviceEntry
from agent.model.holding import DeviceGrant, HoldingSource

_ENVIRONMENT: Final = 1
_MOUNTS: Final = 2
_DEVICES: Final = 3
_ANNOTATIONS: Final = 4
_CDI_DEVICES: Final = 5
_CONTAINER_PATH: Final = 1
_HOST_PATH: Final = 2
_NAME: Final = 1


def carriers(answer: bytes) -> Carriers:
    """Raises ValueError for bytes that are not such a message."""
    return Carriers(
        environment=tuple(cri.string_map(answer, _ENVIRONMENT).items()),
        cdi_devices=tuple(cri.text(each, _NAME) for each in _messages(answer, _CDI_DEVICES)),
        annotations=tuple(cri.string_map(answer, _ANNOTATIONS).items()),
        mounts=tuple(cri.text(each, _CONTAINER_PATH) for each in _messages(answer, _MOUNTS)),
        nodes=tuple(cri.text(each, _HOST_PATH) for each in _messages(answer, _DEVICES)),
    )


def _messages(answer: bytes, wanted: int) -> Iterator[bytes]:
    for field, kind, payload in cri.fields(answer):
        if (field, kind) == (wanted, cri.BYTES):
            yield payload


def of_checkpoint(
    checkpoint: DeviceCheckpoint, boot_id: str = ""
) -> tuple[tuple[DeviceGrant, ...], tuple[str, ...]]:
    """The grants, and problems. The ids name the devices; the plugin's answer adds the carriers of
    ids without a meaning. After a reboot (`boot_id`: of this boot) a kubelet still gives a pod its
    devices, so entries of the last boot count for pods that will run again."""
    found: list[DeviceGrant] = []
    problems = list(checkpoint.problems)
    if boot_id and checkpoint.boot_id and checkpoint.boot_id != boot_id:
        problems.append(f"BootID {checkpoint.boot_id}: written before the last reboot")
    for entry in checkpoint.entries:
        names = tuple(sorted({name for ids in entry.devices.values() for name in ids}))
        found.append(
            DeviceGrant(entry.uid, entry.container, entry.resource, names, HoldingSource.CHECKPOINT)
        )
        found += _answered(entry, problems)
    return tuple(found), tuple(problems)


def _answered(entry: DeviceEntry, problems: list[str]) -> tuple[DeviceGrant, ...]:
    if not entry.answer:
        return ()
    try:
        answered = carriers(entry.answer)
    except ValueError as error:
        problems.append(f"pod {entry.uid}, {entry.container}: AllocResp: {error}")
        return ()
    return grants.of_carriers(entry.uid, entry.container, answered, HoldingSource.ANSWER)
