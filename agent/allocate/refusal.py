"""Why a node does not take a pod, as data and as a text for people."""

from __future__ import annotations

import enum
import functools
from typing import Final

import msgspec

from agent.model.pod.numa_request import PartKind
from agent.model.quantities import amount


class Reason(enum.StrEnum):
    """Stable names, for metrics, explanations and messages."""

    ARCHITECTURE = "architecture"
    """ARM does not have this bind or exclusive policy."""
    CPU_NOT_INTEGER = "cpu-not-integer"
    """CPUs are bound, and the request is not a whole number of CPUs."""
    SMT_ALIGNMENT = "smt-alignment"
    """Whole cores are required, and the request is not a multiple of a core's threads."""
    BIND_POLICY_CONFLICT = "bind-policy-conflict"
    """The pod requires another bind policy than its node."""
    NOT_GUARANTEED = "not-guaranteed"
    """The node allocates only whole cores, and these only to Guaranteed, LSE and LSR pods."""
    NUMA_POLICY_CONFLICT = "numa-policy-conflict"
    """The pod has another NUMA policy than its node."""
    NO_CPU_TOPOLOGY = "no-cpu-topology"
    """CPUs are to be bound, and the node does not report its CPUs."""
    NO_NUMA_RESOURCES = "no-numa-resources"
    """A NUMA policy is in force, and the node does not report the resources of its NUMA nodes."""
    AMPLIFIED_CPU = "amplified-cpu"
    """Bound CPUs cost their amplified amount, and less than that is left."""
    NOT_ENOUGH_CPUS = "not-enough-cpus"
    """Fewer CPUs are free than requested."""
    BIND_POLICY_UNMET = "bind-policy-unmet"
    """Enough CPUs are free, but too few of them suit the required bind policy."""
    NUMA_UNSATISFIED = "numa-unsatisfied"
    """No NUMA nodes have enough of a resource."""
    NUMA_UNALIGNED = "numa-unaligned"
    """The resources have no set of NUMA nodes in common that the policy admits."""
    NUMA_INSUFFICIENT = "numa-insufficient"
    """The NUMA nodes do not have enough of a resource."""
    NUMA_COMPANION = "numa-companion"
    """The NUMA nodes with enough CPU and memory do not have the devices."""
    NO_POOL_FITS = "no-pool-fits"
    """The limit is larger than the shared pools."""

    NOT_ON_NODE = "not-on-node"
    """The whole node has no such resource."""
    NOT_IN_ZONES = "not-in-zones"
    """No NUMA node reports the resource."""
    NO_ZONE_HOLDS = "no-zone-holds"
    """No NUMA node has enough of this resource; NUMA nodes that lack an earlier one are left
    out."""
    ZONES_TOGETHER = "zones-together"
    """All NUMA nodes together do not have enough."""
    NO_PREFERRED_HOLDS = "no-preferred-holds"
    """No set of NUMA nodes that the kubelet prefers has enough of this resource; sets that lack an
    earlier one are left out."""
    SIZES_DIFFER = "sizes-differ"
    """The kubelet prefers another number of NUMA nodes for this resource than for others."""
    DEVICES_APART = "devices-apart"
    """The free devices are on more NUMA nodes than on an empty machine."""
    NO_CPUS_NEAR = "no-cpus-near"
    """The NUMA nodes of the devices do not have the CPUs."""
    NOT_NEAR = "not-near"
    """The node gives CPUs without regard to devices."""

    DEVICE_INSUFFICIENT = "device-insufficient"
    """Fewer devices fit than are requested."""
    DEVICE_NO_DEVICES = "device-no-devices"
    DEVICE_SEVERAL_TYPES = "device-several-types"
    """The Device object lists the resource for devices of several types."""
    DEVICE_UNEVEN = "device-uneven"
    """The amounts can't be divided into equal shares of the node's devices."""
    DEVICE_NO_VIRTUAL_FUNCTIONS = "device-no-virtual-functions"
    DEVICE_SCOPE = "device-scope"
    """Enough devices, but not within the scope that the pod requires."""
    DEVICE_NO_TOPOLOGY = "device-no-topology"
    """The pod requests a scope, or gets NUMA nodes, and the devices do not report their
    topology."""
    DEVICE_NO_PARTITION_TABLE = "device-no-partition-table"
    DEVICE_PARTITION_SIZE = "device-partition-size"
    """The partition table has no sets of this size."""
    DEVICE_PARTITION = "device-partition"
    """No set of the partition table is free, or none has the requested bandwidth."""
    DEVICE_JOINT = "device-joint"
    """No switches have every type of device that is requested together."""

    NODE_UNKNOWN = "node-unknown"
    NO_REPORT = "no-report"
    """The node has no NodeResourceTopology, or an invalid one."""
    NO_DEVICE_OBJECT = "no-device-object"
    """The node has no Device object, or an invalid one."""
    NO_AGENT = "no-agent"
    AGENT_NOT_READY = "agent-not-ready"
    STALE_REPORT = "stale-report"
    """The NodeResourceTopology counts other pods than the scheduler knows."""
    CPU_LIMIT_DIFFERS = "cpu-limit-differs"
    """The CPU limit of an LSE or LSR pod differs from its request."""
    STATIC_KUBELET = "static-kubelet"
    """The kubelet's static CPU policy would not assign CPUs to the pod."""
    GPU_ISOLATION = "gpu-isolation"
    """Parts of the node's GPUs are enforced by another library."""
    GPU_NOT_DIVIDED = "gpu-not-divided"
    """GPUs of the node's model are not divided."""
    TOO_COMPLEX = "too-complex"
    """The node's reports leave so many choices that an offer takes too long (`allocate.steps`)."""
    LOCKED = "locked"
    """The scheduler does not place pods on the node for the moment."""
    GROUP = "group"
    """The group of the pod does not admit it, or has no room on the node."""


class Refusal(msgspec.Struct, frozen=True, dict=True, cache_hash=True):
    """Why a node does not take a pod. Amounts are in milli-CPU, or in units of the resource."""

    reason: Reason
    resource: str = ""
    """The resource that the node lacks; for devices their type, or the resource if its type is not
    known."""
    requested: int | None = None
    available: int | None = None
    """The amount that is left, of the NUMA nodes that `reason` speaks of; `None` if it is not
    known or does not matter."""
    nodes: tuple[int, ...] = ()
    """The NUMA nodes that lack the amount; empty for the whole machine."""
    detail: str = ""
    """What conflicts with the pod, such as the node's policy. It is the whole message for a reason
    that has no text."""
    kind: PartKind | None = None
    """The part of the pod that does not fit on the NUMA nodes; `None` for the whole pod's CPUs and
    devices."""
    name: str = ""
    """The name of the container of that part; empty for the pod."""
    lasting: bool = False
    """Whether the node does not take the pod without other pods either, although the reason alone
    does not say so."""
    others: tuple[Refusal, ...] = ()
    """Refusals for further resources; for a group those of its members."""

    @functools.cached_property
    def unresolvable(self) -> bool:
        """Whether no eviction can help."""
        return (
            self.lasting
            or self.reason not in _TEMPORARY
            or any(other.unresolvable for other in self.others)
        )

    @property
    def reasons(self) -> tuple[Refusal, ...]:
        """One refusal for each resource."""
        if not self.others:
            return (self,)
        return msgspec.structs.replace(self, others=()), *self.others

    @functools.cached_property
    def text(self) -> str:
        """A message for people: the missing resources with the requested and the available
        amounts."""
        return self._joined(self._text(), [other.text for other in self.others])

    @functools.cached_property
    def summary(self) -> str:
        """The message without amounts and NUMA nodes, which differ between similar nodes."""
        return self._joined(self._summary(), [other.summary for other in self.others])

    def _joined(self, own: str, others: list[str]) -> str:
        if self.reason is Reason.GROUP and others:
            return f"{own}: {'; '.join(others)}"
        return "; ".join((own, *others))

    def _text(self) -> str:
        if self.kind is not None:
            return self._requested() + self._left()
        if self.reason not in _TEXTS:
            return self.detail
        facts = [self.detail] if self.detail else []
        if self.requested is not None:
            facts.append(f"requested {amount(self.resource, self.requested)}")
        if self.available is not None:
            facts.append(f"available {amount(self.resource, self.available)}")
        if self.nodes:
            facts.append(f"NUMA nodes {','.join(map(str, self.nodes))}")
        return f"{self._summary()} ({', '.join(facts)})" if facts else self._summary()

    def _summary(self) -> str:
        text = _TEXTS.get(self.reason, self.detail)
        if self.kind is not None:
            return self._requested() + text.format(self.detail)
        return f"{self.resource}: {text}" if self.resource else text

    def _requested(self) -> str:
        who = f"{self.kind} {self.name}".rstrip()
        return f"{who} requests {amount(self.resource, self.requested or 0)} {self.resource}: "

    def _left(self) -> str:
        left = amount(self.resource, self.available or 0)
        match self.reason:
            case Reason.ZONES_TOGETHER:
                return f"all NUMA nodes together have {left} left"
            case Reason.NO_PREFERRED_HOLDS:
                return f"{_PREFERRED.format(self.detail)}: at most {left} left there"
            case Reason.DEVICES_APART | Reason.NO_CPUS_NEAR:
                nodes = ", ".join(map(str, self.nodes))
                if self.reason is Reason.NO_CPUS_NEAR:
                    return f"NUMA nodes {nodes} of its devices have {left} left"
                return f"{_TEXTS[self.reason]}: NUMA nodes {nodes}"
            case Reason.NO_ZONE_HOLDS:
                several = len(self.nodes) > 1
                nodes = f"NUMA node{'s' if several else ''} {', '.join(map(str, self.nodes))}"
                if self.available is None:
                    return f"{nodes} {'have' if several else 'has'} none"
                if several:
                    return f"{nodes} have at most {left} left each"
                return f"{nodes} has {left} left"
        return _TEXTS[self.reason].format(self.detail)


def combined(refusals: list[Refusal]) -> Refusal:
    """Joins at least one refusal into one that names the resources of all."""
    first, *others = refusals
    return msgspec.structs.replace(first, others=tuple(others)) if others else first


_TEMPORARY: Final = frozenset(
    {
        Reason.AMPLIFIED_CPU,
        Reason.NOT_ENOUGH_CPUS,
        Reason.BIND_POLICY_UNMET,
        Reason.NUMA_UNSATISFIED,
        Reason.NUMA_UNALIGNED,
        Reason.NUMA_INSUFFICIENT,
        Reason.NUMA_COMPANION,
        Reason.NO_POOL_FITS,
        Reason.NO_ZONE_HOLDS,
        Reason.ZONES_TOGETHER,
        Reason.NO_PREFERRED_HOLDS,
        Reason.DEVICES_APART,
        Reason.NO_CPUS_NEAR,
        Reason.DEVICE_INSUFFICIENT,
        Reason.DEVICE_SCOPE,
        Reason.DEVICE_PARTITION,
        Reason.DEVICE_JOINT,
        Reason.GROUP,
    }
)
"""Reasons that may end when pods leave the node."""
_PREFERRED: Final = "the kubelet's topology manager prefers {}"
_TEXTS: Final = {
    Reason.ARCHITECTURE: "the architecture has no such policy",
    Reason.CPU_NOT_INTEGER: "bound CPUs have to be a whole number",
    Reason.SMT_ALIGNMENT: "CPUs are not a multiple of a core's threads",
    Reason.BIND_POLICY_CONFLICT: "the node has another CPU bind policy",
    Reason.NOT_GUARANTEED: "the node allocates cores to Guaranteed, LSE and LSR pods only",
    Reason.NUMA_POLICY_CONFLICT: "the node has another NUMA policy",
    Reason.NO_CPU_TOPOLOGY: "the node does not report its CPU topology",
    Reason.NO_NUMA_RESOURCES: "the NUMA nodes do not report their resources",
    Reason.AMPLIFIED_CPU: "not enough amplified CPU",
    Reason.NOT_ENOUGH_CPUS: "not enough free CPUs",
    Reason.BIND_POLICY_UNMET: "not enough CPUs that suit the bind policy",
    Reason.NUMA_UNSATISFIED: "the NUMA nodes do not have enough",
    Reason.NUMA_UNALIGNED: "no NUMA nodes that the policy admits",
    Reason.NUMA_INSUFFICIENT: "the NUMA nodes do not have enough",
    Reason.NUMA_COMPANION: "the devices are not on the NUMA nodes of CPU and memory",
    Reason.NO_POOL_FITS: "the limit is larger than the shared CPUs",
    Reason.NOT_ON_NODE: "the node has none",
    Reason.NOT_IN_ZONES: "the NodeResourceTopology reports none in any zone",
    Reason.NO_ZONE_HOLDS: "no NUMA node has that much left",
    Reason.ZONES_TOGETHER: "all NUMA nodes together do not have that much left",
    Reason.NO_PREFERRED_HOLDS: f"{_PREFERRED}: not that much is left there",
    Reason.SIZES_DIFFER: f"{_PREFERRED} for it, and more for the rest",
    Reason.DEVICES_APART: "the free ones are on more NUMA nodes than on an empty machine",
    Reason.NO_CPUS_NEAR: "the NUMA nodes of its devices do not have that much left",
    Reason.NOT_NEAR: "CPUs do not follow devices there",
    Reason.DEVICE_INSUFFICIENT: "not enough devices are free",
    Reason.DEVICE_NO_DEVICES: "the node has none",
    Reason.DEVICE_SEVERAL_TYPES: "the node lists the resource for several device types",
    Reason.DEVICE_UNEVEN: "the amounts can't be divided into equal shares of the node's devices",
    Reason.DEVICE_NO_VIRTUAL_FUNCTIONS: "the node has no virtual functions",
    Reason.DEVICE_SCOPE: "not enough within the required scope",
    Reason.DEVICE_NO_TOPOLOGY: "the devices do not report their topology",
    Reason.DEVICE_NO_PARTITION_TABLE: "the node has no partition table",
    Reason.DEVICE_PARTITION_SIZE: "the partition table has no sets of this size",
    Reason.DEVICE_PARTITION: "no set of the partition table is free",
    Reason.DEVICE_JOINT: "not under the same switches as the other devices",
    Reason.AGENT_NOT_READY: "its agent is not Ready",
    Reason.NO_AGENT: "it has no agent",
    Reason.STALE_REPORT: "the report of its NUMA nodes counts other pods than the scheduler knows",
}
"""The messages. Those for a part of the pod follow its request, and `{}` is the detail."""
