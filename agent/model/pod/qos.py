"""Koordinator's QoS and priority classes, how the QoS class of a pod is determined, and which class
uses which pool of CPUs; and the CPUs of the pools by name and NUMA node.

A decision, the snapshot and everything that shows them hold pools by name. `POOLS` is the only
place that lists them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import msgspec

from agent.model.bounds import unknown_value
from agent.model.cpu.cpuset import CpuSet, union


class Pool(msgspec.Struct, frozen=True):
    """The shared CPUs of one NUMA node, in the shape of Koordinator's pool annotations (which leave
    out an empty cpuset)."""

    socket: int
    node: int
    cpuset: str = ""

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.parse(self.cpuset)


Pools: TypeAlias = Mapping[str, tuple[Pool, ...]]
"""By the name of a pool: its CPUs on each NUMA node. A pool without CPUs has no entries, or is
missing."""


def pool_cpus(pools: tuple[Pool, ...], nodes: tuple[int, ...] = ()) -> CpuSet:
    """All CPUs of the pools, or of the pools on the given NUMA nodes."""
    return union(pool.cpus for pool in pools if not nodes or pool.node in nodes)


QOS_LABEL = "koordinator.sh/qosClass"
PRIORITY_CLASS_LABEL = "koordinator.sh/priority-class"

KubeClass = Literal["guaranteed", "burstable", "besteffort"]


class QoS(enum.StrEnum):
    """LSE and LSR pods own CPUs, LS and BE pods share pools, SYSTEM pods run on the CPUs reserved
    for them, if there are any."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


class PoolKind(msgspec.Struct, frozen=True):
    """A row of the table of pools."""

    name: str
    """Its name in the snapshot, in metrics and, with the suffix -pool, in the audit trail."""
    qos: QoS
    """The class of the pods that use it while they own no CPUs."""
    excluded: frozenset[QoS]
    """The classes of owners whose CPUs are not in the pool."""
    fallback: str | None = None
    """The pool that its pods use while it has no CPU; None if they use no other."""
    dedicated: bool = False
    """Whether it has only the CPUs that the node's configuration gives to its class. Any other pool
    has all CPUs that are not reserved."""

    @property
    def title(self) -> str:
        """Its name on screens."""
        return self.name.upper()


_EVERY_OWNER: Final = frozenset(QoS)

POOLS: Final = {
    kind.name: kind
    for kind in (
        PoolKind("ls", QoS.LS, _EVERY_OWNER),
        PoolKind("be", QoS.BE, frozenset({QoS.LSE})),
        PoolKind("system", QoS.SYSTEM, _EVERY_OWNER, fallback="ls", dedicated=True),
    )
}
"""All pools, by name."""
DEFAULT_POOL: Final = POOLS["ls"]
"""The pool of pods whose class has no pool of its own, while they own no CPUs. Node-local policies
take CPUs from it."""

_BY_CLASS: Final = {kind.qos: kind for kind in POOLS.values()}


def pool_of_class(qos: QoS) -> PoolKind:
    """The pool that pods of a class use while they own no CPUs."""
    return _BY_CLASS.get(qos, DEFAULT_POOL)


def usable_pools(kind: PoolKind) -> tuple[PoolKind, ...]:
    """The pool, and those that its pods use while it has no CPU, in this order."""
    return (kind,) if kind.fallback is None else (kind, *usable_pools(POOLS[kind.fallback]))


class PriorityClass(enum.StrEnum):
    """The bands of priorities."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"


CPU_OWNERS: Final = frozenset({QoS.LSE, QoS.LSR})
_SLICE: Final = ".slice"
_BY_LABEL = {each.value: each for each in QoS}


def qos_of(labels: Mapping[str, str], kube_class: KubeClass | None) -> QoS:
    """The class in the label. Without a known label, BestEffort pods are BE and all others LS."""
    by_label = _BY_LABEL.get(labels.get(QOS_LABEL, ""))
    return by_label or (QoS.BE if kube_class == "besteffort" else QoS.LS)


def label_faults(labels: Mapping[str, str], kube_class: KubeClass | None) -> tuple[str, ...]:
    """A message for each of a pod's two labels that has no effect: its value is unknown, or it is
    BE and the pod's cgroup is not BestEffort."""
    classes: tuple[tuple[str, type[enum.StrEnum]], ...] = (
        (QOS_LABEL, QoS),
        (PRIORITY_CLASS_LABEL, PriorityClass),
    )
    unknown = tuple(
        unknown_value(f"label {key}", value, known)
        for key, known in classes
        if (value := labels.get(key)) and value not in tuple(known)
    )
    if labels.get(QOS_LABEL) != QoS.BE or kube_class == "besteffort":
        return unknown
    return (*unknown, f"label {QOS_LABEL}: BE counts only in BestEffort pods, the pod is LS")


def kube_class(cgroup_parent: str) -> KubeClass | None:
    """The Kubernetes QoS class that the path of a pod's or container's cgroup shows. None for a
    path outside the kubelet's hierarchy, and for its root. The kubelet's `cgroupRoot` may precede
    `kubepods`."""
    for name, below in pairwise(_names(cgroup_parent)):
        if name == "kubepods":
            if below == "burstable":
                return "burstable"
            if below == "besteffort":
                return "besteffort"
            if below.startswith("pod"):
                return "guaranteed"
    return None


def is_qos_root(group: str) -> bool:
    """Whether this is the kubelet's cgroup of all pods, or of one QoS class.

    The kubelet owns such a cgroup: it writes its files at start, and does not start if the kernel
    refuses that.
    """
    return _names(group)[-2:] in _QOS_ROOTS or _names(group)[-1:] == ["kubepods"]


_QOS_ROOTS: Final = tuple(["kubepods", each] for each in ("guaranteed", "burstable", "besteffort"))


def _names(group: str) -> list[str]:
    """The names of nested cgroups; the name of a slice contains those of the slices above it."""
    names: list[str] = []
    for part in group.split("/"):
        if part.endswith(_SLICE):
            names = part.removesuffix(_SLICE).split("-")
        elif part:
            names.append(part)
    return names
