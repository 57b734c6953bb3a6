"""What the node says of itself, out of what was decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.allocate.aside import KubeletCpus, given_away
from agent.allocate.pools import Decision
from agent.model import fingerprint, report
from agent.model.annotations import AnnotationError, resource_status
from agent.model.apipods import ApiPod, Phase
from agent.model.availability import Held, Reserved
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.nodetopology import Owner
from agent.model.pods import Pod
from agent.model.report import DeviceReport, Facts, Report
from agent.model.resources import NodeConfiguration, PodCpuAlloc
from agent.model.topology import Topology
from agent.node.assigned import Assigned
from agent.node.configured import rules
from agent.node.kubeletword import KubeletWord


class Moment(msgspec.Struct, frozen=True):
    """What a look came to. The kubelet's state tells which policy is at work, its `word` what else
    it gave to pods."""

    topology: Topology
    decision: Decision
    pods: tuple[Pod, ...]
    kubelet: KubeletCpus
    configured: NodeConfiguration
    assigned: Assigned = Assigned()
    devices: DeviceReport = DeviceReport()
    word: KubeletWord = KubeletWord()


class Reporter:
    """Builds again only when what the report is made of has changed."""

    def __init__(
        self, node_name: str, tell: Callable[[Report], bool], *, waits: bool = False
    ) -> None:
        """`tell` says whether anything was written. `waits`: nothing is said before the cluster
        told of Node, pods and devices, as a part of them would be taken for the whole."""
        self._name = node_name
        self._tell = tell
        self._waits = waits
        self._reported: Facts | None = None

    def report(self, moment: Moment) -> bool:
        """Whether anything was written; raises what `tell` raises."""
        assigned = moment.assigned
        if self._waits and not (assigned.pods_told and assigned.node and assigned.devices):
            return False
        now = facts(self._name, moment)
        if now == self._reported:
            return False
        written = self._tell(report.built(now))
        self._reported = now
        return written


def facts(name: str, moment: Moment) -> Facts:
    """What is reported of it."""
    decision, pods, kubelet = moment.decision, moment.pods, moment.kubelet
    assigned, word = moment.assigned, moment.word
    policy = "static" if kubelet.static else "none"
    uid = assigned.node.uid if assigned.node else ""
    return Facts(
        name,
        moment.topology,
        decision.ls_pools,
        decision.be_pools,
        _allocs(pods, kubelet),
        held(decision, pods, kubelet, word.held),
        _reserved(moment.configured, word),
        msgspec.structs.replace(moment.configured, kubelet_policy=policy),
        moment.devices,
        word.portions,
        Owner(name, uid) if uid else None,
        _fingerprint(assigned.pods.values()) if uid else None,
    )


def held(
    decision: Decision,
    pods: tuple[Pod, ...],
    kubelet: KubeletCpus,
    said: Mapping[str, Held],
) -> tuple[Held, ...]:
    """What each pod holds: CPUs of its own, and of NUMA nodes what the kubelet says (by uid) that
    it gave it, else what its scheduler did."""
    cpus: dict[str, CpuSet] = {owner.uid: owner.cpus for owner in decision.owners}
    for uid, given in given_away(pods, kubelet).items():
        cpus[uid] = cpus.get(uid, EMPTY) | given
    amounts = {}
    for pod in pods:
        told = said.get(pod.uid, Held())
        if told.cpus:
            cpus[pod.uid] = cpus.get(pod.uid, EMPTY) | told.cpus
        if found := told.amounts or _amounts(pod):
            amounts[pod.uid] = found
    return tuple(
        Held(cpus.get(uid, EMPTY), amounts.get(uid, {}))
        for uid in sorted(cpus.keys() | amounts.keys())
    )


def _amounts(pod: Pod) -> dict[int, dict[str, int]]:
    try:
        by_node = resource_status(pod.annotations).amounts()
    except AnnotationError:
        return {}  # told as a refusal
    left = {
        node: {name: amount for name, amount in of_node.items() if name != "cpu"}
        for node, of_node in by_node.items()
    }
    return {node: of_node for node, of_node in left.items() if of_node}


def _reserved(configured: NodeConfiguration, word: KubeletWord) -> Reserved:
    made = rules(configured)
    shared = EMPTY if made.owners_on_reserved else made.reserved
    memory_bytes = configured.reserved_memory_bytes or word.reserved_memory_bytes
    return Reserved(made.kept | shared, memory_bytes)


def _fingerprint(pods: Iterable[ApiPod]) -> str:
    """Of the pods that a scheduler counts: all that have begun (peers.md §2.3)."""
    return fingerprint.of(
        (pod.namespace, pod.name) for pod in pods if pod.phase is not Phase.PENDING
    )


def _allocs(pods: tuple[Pod, ...], kubelet: KubeletCpus) -> tuple[PodCpuAlloc, ...]:
    """Koordinator lists what the kubelet gave away here, and claims come by the kubelet; our owners
    it knows by annotation."""
    by_uid = {pod.uid: pod for pod in pods}
    return tuple(
        PodCpuAlloc(
            by_uid[uid].namespace if uid in by_uid else "",
            by_uid[uid].name if uid in by_uid else "",
            uid,
            str(cpus),
            managed_by_kubelet=True,
        )
        for uid, cpus in sorted(given_away(pods, kubelet).items())
    )
