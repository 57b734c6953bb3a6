"""The notes of Events of the Node: about its faults while they last, and about its changes. Pure
functions; `node.change_log` limits how often the Events are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Device
from agent.node.sources import SourceName

AGENT_NOT_READY: Final = "AgentNotReady"
INVALID_NODE: Final = "InvalidNodeConfiguration"
KUBELET_INCOMPATIBLE: Final = "KubeletIncompatible"
SOURCE_UNREADABLE: Final = "SourceUnreadable"
CPU_OVERLAP: Final = "CPUOverlap"
DEVICE_UNHEALTHY: Final = "DeviceUnhealthy"
COMPETING_WRITER: Final = "CompetingWriter"
NODE_CPUS_CHANGED: Final = "NodeCPUsChanged"
KUBELET_POLICY_CHANGED: Final = "KubeletPolicyChanged"

DELAY_SECONDS: Final[Mapping[str, float]] = {
    AGENT_NOT_READY: 10.0,
    INVALID_NODE: 0.0,
    KUBELET_INCOMPATIBLE: 10.0,
    SOURCE_UNREADABLE: 60.0,
    CPU_OVERLAP: 60.0,
    DEVICE_UNHEALTHY: 10.0,
    COMPETING_WRITER: 0.0,
}
"""How long a fault lasts before an Event says so: a kubelet that restarts can't be read for
moments, and without a frontend each start of a container overlaps for moments."""
_NAMED: Final = 8


class NodeNotes(NamedTuple):
    """What Events of the Node say."""

    name: str
    uid: str
    """The Node's uid in the API, empty while it is not known."""
    faults: Mapping[str, str]
    """Notes by the reason of a warning."""
    state: Mapping[str, str] = {}
    """By the reason of the normal Event that reports its change."""


class DeviceFaults(NamedTuple):
    """What is wrong with devices."""

    devices: Iterable[Device] = ()
    missing: Iterable[str] = ()
    """PCI addresses of GPUs that the driver does not list."""
    fault: str = ""
    """Why the driver can't be read."""


def faults(
    of_object: Iterable[str],
    sources: Mapping[SourceName, Iterable[str]],
    overlaps: Iterable[str],
    devices: DeviceFaults,
    others: Iterable[str] = (),
) -> dict[str, str]:
    """Notes by reason.

    `of_object`: why annotations and labels of the Node have no effect.
    `sources`: the problems of each source.
    `overlaps`: sentences about containers on CPUs of owners.
    `others`: sentences about other processes that keep changing values."""
    kubelet = sources.get(SourceName.KUBELET_COMBINATION, ())
    reported = (SourceName.KUBELET_COMBINATION, SourceName.NODE_OBJECT)
    unreadable = (
        f"{source.value}: {problem}"
        for source, problems in sources.items()
        if source not in reported
        for problem in problems
    )
    notes = {
        INVALID_NODE: "; ".join(of_object),
        KUBELET_INCOMPATIBLE: "; ".join(kubelet),
        SOURCE_UNREADABLE: "; ".join(sorted(unreadable)),
        CPU_OVERLAP: _first(overlaps),
        DEVICE_UNHEALTHY: _first(_of_devices(devices)),
        COMPETING_WRITER: _first(others),
    }
    return {reason: note for reason, note in notes.items() if note}


def _of_devices(faults: DeviceFaults) -> Iterator[str]:
    for each in faults.devices:
        if not each.healthy:
            reasons = [condition.message or condition.reason for condition in each.conditions]
            why = f": {', '.join(reasons)}" if reasons else ""
            yield f"{each.type} {each.minor} ({each.uuid}) is not healthy{why}"
    for address in faults.missing:
        yield f"the driver does not list the GPU at {address}"
    if faults.fault:
        yield f"the GPU driver can't be read: {faults.fault}"


def _first(texts: Iterable[str]) -> str:
    """The first _NAMED texts, and the number of the others."""
    listed = list(texts)
    more = [f"and {len(listed) - _NAMED} more"] if len(listed) > _NAMED else []
    return "; ".join(listed[:_NAMED] + more)


def state(topology: Topology, kubelet: KubeletConfiguration | None) -> dict[str, str]:
    """What normal Events of the Node report when it changes, by reason.

    `kubelet`: None if its configuration is not known."""
    nodes = ", ".join(
        f"{numa_node.cpus} on NUMA node {numa_node.id}"
        for numa_node in topology.numa_nodes
        if numa_node.cpus
    )
    texts = {NODE_CPUS_CHANGED: f"CPUs {nodes} are online"}
    if kubelet is not None:
        policies = {
            "cpuManagerPolicy": kubelet.cpu_manager_policy,
            "topologyManagerPolicy": kubelet.topology_manager_policy,
            "memoryManagerPolicy": kubelet.memory_manager_policy,
        }
        texts[KUBELET_POLICY_CHANGED] = ", ".join(map(" ".join, policies.items()))
    return texts


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Notes by reason, for the state that differs. A state that is known on one side only has not
    changed."""
    return {
        reason: f"{text}; before: {before[reason]}"
        for reason, text in after.items()
        if before.get(reason, text) != text
    }
