"""Where what a container should run on and what it runs on have drifted apart."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from agent.model.cpuset import CpuSet
from agent.model.qos import QoS
from agent.model.snapshot import Owner
from agent.node.overlaps import may_hold


class ObservedContainer(msgspec.Struct, frozen=True):
    """One running container and its CPUs by each source; None when a source has none. `claimed`:
    its pod's annotation; `kubelet`: the kubelet's checkpoint; `wanted`: the agent's snapshot;
    `group`: the effective cpuset of its cgroup; `processes`: the union of its processes'
    affinities. `trouble`: why the agent does not honour the pod's claim, or why the annotation
    can't be read."""

    pod_uid: str
    title: str
    qos: QoS
    claimed: CpuSet | None = None
    kubelet: CpuSet | None = None
    wanted: CpuSet | None = None
    group: CpuSet | None = None
    processes: CpuSet | None = None
    trouble: str = ""


class DriftKind(enum.StrEnum):
    """What is wrong; stable words for scripts."""

    CLAIM = "claim-not-honoured"
    CLAIM_UNSEEN = "claim-not-seen-by-agent"
    NO_GROUP = "no-cgroup"
    GROUP = "cgroup-differs"
    PROCESSES = "processes-outside-cgroup"
    KUBELET = "kubelet-differs"
    OVERLAP = "overlap"


class Finding(msgspec.Struct, frozen=True):
    """`expected` and `found`: CPU lists, where there are two to compare; `detail`: in words, such
    as the owner of the CPUs that overlap."""

    kind: DriftKind
    container: str
    expected: str = ""
    found: str = ""
    detail: str = ""


def findings(seen: Sequence[ObservedContainer], owners: Sequence[Owner]) -> tuple[Finding, ...]:
    """`owners` of the agent's snapshot, none without one."""
    found: list[Finding] = []
    for each in seen:
        found += _of_container(each, owners)
    return tuple(found)


def _of_container(seen: ObservedContainer, owners: Sequence[Owner]) -> list[Finding]:
    found: list[Finding] = []

    def add(
        kind: DriftKind, expected: CpuSet | None = None, got: CpuSet | None = None, detail: str = ""
    ) -> None:
        texts = ["" if cpus is None else str(cpus) for cpus in (expected, got)]
        found.append(Finding(kind, seen.title, texts[0], texts[1], detail))

    own = next((owner.cpus for owner in owners if owner.uid == seen.pod_uid), None)
    if seen.trouble:
        add(DriftKind.CLAIM, seen.claimed, seen.group, seen.trouble)
    elif seen.claimed and own is None:
        add(DriftKind.CLAIM_UNSEEN, seen.claimed, seen.group)
    elif seen.claimed and own is not None and seen.claimed != own:
        add(DriftKind.CLAIM, seen.claimed, own, f"CPUs {seen.claimed - own} are not online")
    if seen.group is None:
        add(DriftKind.NO_GROUP)
        return found
    wanted = seen.wanted
    if wanted is None and seen.kubelet:
        if seen.kubelet != seen.group:
            add(DriftKind.KUBELET, seen.kubelet, seen.group)
    elif wanted is not None and wanted != seen.group:
        add(DriftKind.GROUP, wanted, seen.group)
    if seen.processes is not None and not seen.processes <= seen.group:
        add(DriftKind.PROCESSES, seen.group, seen.processes)
    for owner in owners:
        common = seen.group & owner.cpus
        if common and not may_hold(seen.pod_uid, seen.qos, owner):
            add(DriftKind.OVERLAP, None, common, f"they are {owner.title}'s own")
    return found
