"""CPUs that a scheduler chose, in the place of those that the kubelet's static policy gave: the
kubelet of the proposal keeps its checkpoint, with other CPUs in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.kubelet.checksum import Checked
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.model.cpuset import EMPTY, CpuSet, union


class TakeoverError(ValueError):
    """What must not be written; the message names pod, container and CPUs."""


def take_over(
    state: CpuManagerState,
    chosen: Mapping[str, Mapping[str, CpuSet]],
    reserved: CpuSet = EMPTY,
) -> CpuManagerState:
    """The state with the chosen CPUs by pod uid and container name, and with the rest of the
    machine as its shared CPUs.

    `reserved` are the kubelet's, without which among the shared CPUs it does not start. Containers
    of one pod may have the same CPUs, as the kubelet's own init containers do. Raises
    TakeoverError.
    """
    _require_whole(state)
    machine = state.default | union(state.by_uid.values())
    entries = {uid: dict(containers) for uid, containers in state.entries.items()}
    for uid, containers in chosen.items():
        for name, cpus in containers.items():
            title = f"pod {uid}, container {name}"
            if not cpus:
                raise TakeoverError(f"{title}: no CPUs")
            if foreign := cpus - machine:
                raise TakeoverError(f"{title}: CPUs {foreign} are not the kubelet's ({machine})")
            if kept := cpus & reserved:
                raise TakeoverError(f"{title}: the kubelet reserves CPUs {kept}")
            if uid in state.pods:
                raise TakeoverError(f"{title}: the kubelet gave CPUs {state.pods[uid]} to the pod")
            entries.setdefault(uid, {})[name] = cpus
    owner: dict[int, str] = {}
    for uid, title, cpus in _holdings(entries, state.pods):
        if other := next((owner[cpu] for cpu in cpus if owner.get(cpu, uid) != uid), None):
            both = CpuSet(cpu for cpu in cpus if owner.get(cpu) == other)
            raise TakeoverError(f"{title}: CPUs {both} are those of pod {other} too")
        owner |= dict.fromkeys(cpus, uid)
    default = machine - CpuSet(owner)
    if not default:
        raise TakeoverError(f"no CPU of {machine} would be left to share")
    return msgspec.structs.replace(state, default=default, entries=entries)


def _require_whole(state: CpuManagerState) -> None:
    if not state.static:
        raise TakeoverError(f"the kubelet's CPU manager policy is {state.policy}, not static")
    if state.version not in (2, 3, 4):
        raise TakeoverError(f"a state of version {state.version or 'unknown'} is not rewritten")
    if state.checked is Checked.MISMATCH:
        raise TakeoverError("the checksum is not that of the content")
    if state.problems:
        raise TakeoverError(f"not all can be read: {state.problems[0]}")
    if state.originals:
        raise TakeoverError(f"pod {min(state.originals)} has been resized in place")


def _holdings(
    entries: Mapping[str, Mapping[str, CpuSet]], pods: Mapping[str, CpuSet]
) -> Iterator[tuple[str, str, CpuSet]]:
    for uid, cpus in sorted(pods.items()):
        yield uid, f"pod {uid}", cpus
    for uid, containers in sorted(entries.items()):
        for name, cpus in sorted(containers.items()):
            yield uid, f"pod {uid}, container {name}", cpus
