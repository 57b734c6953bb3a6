"""The kubelet's device checkpoint as grants: what plugins gave to which container."""

from __future__ import annotations

from agent.allocate.foreign import carriers
from agent.kubelet import device_answer
from agent.kubelet.device_checkpoint import DeviceCheckpoint, DeviceEntry
from agent.model.holding import Grant, Source


def grants(
    checkpoint: DeviceCheckpoint, boot_id: str = ""
) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """The grants, and problems. The ids say what was given; the plugin's answer tells more only of
    ids that mean nothing. After a reboot (`boot_id`: of this one) a kubelet still gives a pod what
    it had, so entries of the one before count for pods that are still to run here."""
    found: list[Grant] = []
    problems = list(checkpoint.problems)
    if boot_id and checkpoint.boot_id and checkpoint.boot_id != boot_id:
        problems.append(f"BootID {checkpoint.boot_id}: written before the last reboot")
    for entry in checkpoint.entries:
        names = tuple(sorted({name for ids in entry.devices.values() for name in ids}))
        found.append(Grant(entry.uid, entry.container, entry.resource, names, Source.CHECKPOINT))
        found += _answered(entry, problems)
    return tuple(found), tuple(problems)


def _answered(entry: DeviceEntry, problems: list[str]) -> tuple[Grant, ...]:
    if not entry.answer:
        return ()
    try:
        answered = device_answer.carriers(entry.answer)
    except ValueError as error:
        problems.append(f"pod {entry.uid}, {entry.container}: AllocResp: {error}")
        return ()
    return carriers.grants(entry.uid, entry.container, answered, Source.ANSWER)
