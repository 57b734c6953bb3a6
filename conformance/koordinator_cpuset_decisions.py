"""Koordinator's node agent: the pools that it reports, and the cpuset of a container or a host
application. The value of `op` is the kind of decision: `pools` (in `koordinator_pools`), `hook` (a
container) or `hostapp` (a host application).

The node that the case reports is converted into the snapshot that the proxy reads, with the
decisions that only the agent makes (CPUs that the pod names, Guaranteed pods of a static kubelet).
The cases contain no CPUs that the kubelet assigned.

If Koordinator's answer has no cpuset, another component sets it: for containers in a BestEffort
cgroup Koordinator's CPU suppressor, for others under a static kubelet the kubelet. Topolet sets the
cpuset itself, so that no container starts on an owner's CPUs. Such a case agrees if Topolet sets no
cpuset either, or the pool from which the other component has to choose: the pool of the container's
class on the NUMA nodes that it is bound to.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.shares import kubelet_may_own, pool_of, shared_cpus
from agent.hooks import cpuset
from agent.hooks.cpuset import Answer, Override
from agent.hooks.requests import CreateContainer, announced
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Cpu, Topology
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import PodAnnounced
from agent.model.nrt.node_annotations import (
    BE_CPU_SHARED_POOLS,
    CPU_SHARED_POOLS,
    POOL_ANNOTATIONS,
    SYSTEM_QOS,
    shared_pools,
    system_qos,
)
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QOS_LABEL, Pool, Pools, QoS, pool_cpus, pool_of_class, usable_pools
from agent.model.snapshot import NOTHING, PodWanted, Snapshot, Wanted
from agent.model.verdict import Wait
from conformance import koordinator_pools
from conformance.files import CaseVerdict, Difference, Judge
from conformance.koordinator_pools import CLAIMED_TWICE, KUBELET_DECIDES

_STRAY_COMMA: Final = Difference(
    "stray-comma",
    "empty pools are joined with the others: a cpuset such as `,4-7` is not a CPU list",
    listed=True,
)

_EMPTY_POOL: Final = Difference(
    "empty-pool",
    "no CPU is left in the pool of the pod's class or NUMA nodes: the container gets no cpuset and"
    " runs anywhere; Topolet gives it all pools of its class, or refuses it if they are empty",
    listed=True,
)

_BE_BY_LABEL: Final = Difference(
    "be-by-label",
    "a pod labelled BE whose cgroup is not BestEffort gets the BE pools of its NUMA nodes, or"
    " without BECPUManager every LS pool; Topolet gives it the LS pools of its NUMA nodes, because"
    " it would take time from LSR pods",
)

DIFFERENCES: Final[tuple[Difference, ...]] = (
    CLAIMED_TWICE,
    KUBELET_DECIDES,
    _BE_BY_LABEL,
    _STRAY_COMMA,
    _EMPTY_POOL,
)

_CONTAINER: Final = "main"

_QUOTA_MICROSECONDS: Final = 100_000


def judge(case: dict[str, Any]) -> CaseVerdict:
    return _JUDGES[case["op"]](case)


class _Reported(msgspec.Struct, frozen=True):
    """The node as its NodeResourceTopology reports it."""

    pools: Pools = {}
    static: bool = False

    def of(self, qos: QoS) -> tuple[Pool, ...]:
        """The pool of the pods of a class."""
        return self.pools.get(pool_of_class(qos).name, ())


def _judge_container(case: dict[str, Any]) -> CaseVerdict:
    expect = case["expect"]
    pod_announced = _announcement(case)
    pod = announced(pod_announced, 0)
    try:
        reported = _reported(case.get("nrt"))
    except AnnotationError as error:
        return CaseVerdict("ruleError" in expect, {"ruleError": str(error)})
    try:
        status = resource_status(pod.annotations)
        claimed, nodes = status.cpus(), status.shared_numa_nodes()
    except AnnotationError as error:
        return CaseVerdict("error" in expect, {"error": str(error)})
    if reported is None and claimed:
        reported = _Reported()
    snapshot = None if reported is None else _snapshot(pod, claimed, reported)
    requested = LinuxResources(quota=CpuQuota(_QUOTA_MICROSECONDS))
    request = CreateContainer(pod_announced, _CONTAINER, requested)
    answer = cpuset.create(request, snapshot, ())
    wanted = snapshot.pods.get(pod.uid) if snapshot else None
    actual = _written(answer, lifts_pod=wanted is not None and wanted.exclusive)
    quotas = ("cfsQuota", "podCFSQuota")
    if "cpuset" not in expect or any(actual[key] != expect[key] for key in quotas):
        return CaseVerdict(False, actual)
    return _compared(case, pod, nodes, reported or _Reported(), actual)


def _judge_host_application(case: dict[str, Any]) -> CaseVerdict:
    """A host application, which is a process outside of pods, runs on the LS pools; the other
    classes exist only in pods."""
    expect, qos = case["expect"], case["qos"]
    actual: dict[str, Any] = {"cpuset": None}
    try:
        reported = _reported(case.get("nrt"))
    except AnnotationError as error:
        return CaseVerdict("ruleError" in expect, {"ruleError": str(error)})
    if reported is not None:
        if qos != QoS.LS:
            text = f"host applications of class {qos!r} have no CPUs"
            return CaseVerdict("error" in expect, {"error": text})
        actual["cpuset"] = str(pool_cpus(reported.of(QoS.LS))) or None
    if "cpuset" not in expect:
        return CaseVerdict(False, actual)
    return _joined(actual, expect["cpuset"] or "") or CaseVerdict(False, actual)


def _announcement(case: dict[str, Any]) -> PodAnnounced:
    status = case.get("resourceStatus")
    return PodAnnounced(
        uid="uid",
        namespace="default",
        name="pod",
        labels={QOS_LABEL: case["qos"]} if "qos" in case else {},
        annotations={} if status is None else {RESOURCE_STATUS: _json(status)},
        cgroup_parent=case["cgroupParent"],
    )


def _reported(nrt: dict[str, Any] | None) -> _Reported | None:
    """Raises AnnotationError."""
    if nrt is None:
        return None
    keys = {"ls": CPU_SHARED_POOLS, "be": BE_CPU_SHARED_POOLS, "systemQOS": SYSTEM_QOS}
    notes = {key: _json(nrt[name]) for name, key in keys.items() if name in nrt}
    pools = {name: shared_pools(notes, key) for key, name in POOL_ANNOTATIONS.items()}
    system = Pool(0, 0, str(system_qos(notes).cpus()))
    return _Reported(
        {**pools, pool_of_class(QoS.SYSTEM).name: (system,)},
        nrt.get("kubelet", {}).get("policy") == "static",
    )


def _snapshot(pod: Pod, claimed: CpuSet, reported: _Reported) -> Snapshot:
    """The snapshot contains the pod only if the agent's decision is needed: the proxy reads the
    pools itself."""
    decision = decide(_machine(claimed), (pod,), KubeletCpus(), {pod.uid: claimed}, {})
    if decision.owners:
        pods = decision.pods
    elif reported.static and kubelet_may_own(pod):
        cpus = shared_cpus(pod, reported.pools)
        blocked = "" if cpus else "no CPU is left for it"
        wanted = Wanted(LinuxResources(str(cpus) or None), blocked=blocked)
        pods = {pod.uid: PodWanted(pod.title, pod.qos, wanted)}
    else:
        pods = {}
    return Snapshot(
        generation=1,
        listed_at=1,
        boot_id="",
        kubelet_static=reported.static,
        pools=reported.pools,
        owners=decision.owners,
        pods=pods,
        containers={},
    )


def _machine(cpus: CpuSet) -> Topology:
    """A machine with these CPUs, and one more so that the shared pool is not empty."""
    ids = range(max(cpus, default=0) + 2)
    made = tuple(Cpu(id=cpu, core=cpu, l3=None, die=None, socket=0, node=0) for cpu in ids)
    return Topology(made, (), EMPTY, EMPTY, smt=False)


def _written(answer: Answer, *, lifts_pod: bool) -> dict[str, Any]:
    """The answer in the form of a case's `expect`, in which `wait` says why no container is
    created."""
    given = answer.wanted if isinstance(answer, Override) else NOTHING
    return {
        "cpuset": given.cpuset or None,
        "cfsQuota": -1 if given.resources.quota == NO_QUOTA else None,
        "podCFSQuota": -1 if lifts_pod else None,
        **({"wait": answer.reason} if isinstance(answer, Wait) else {}),
    }


def _compared(
    case: dict[str, Any],
    pod: Pod,
    nodes: tuple[int, ...],
    reported: _Reported,
    actual: dict[str, Any],
) -> CaseVerdict:
    theirs = case["expect"]["cpuset"] or ""
    place = CpuSet.parse(actual["cpuset"] or "")
    usable = [reported.pools.get(kind.name, ()) for kind in usable_pools(pool_of(pod))]
    pools = usable[-1]
    other_sets_it = not _hook_sets(case, pod, nodes, reported)
    if not theirs and not place and "wait" not in actual:
        return CaseVerdict(True, actual)
    if other_sets_it and not theirs and place and place == _pool(pools, nodes):
        return CaseVerdict(True, actual)
    if _cpus(theirs) and (same := _joined(actual, theirs)):
        return same
    everywhere = next((cpus for each in usable if (cpus := pool_cpus(each))), EMPTY)
    if not _cpus(theirs) and not pool_cpus(_narrow(pools, nodes)) and place == everywhere:
        return CaseVerdict(False, actual, _EMPTY_POOL.name)
    by_label = case.get("qos") == QoS.BE and pod.kube_class != "besteffort"
    of_ls = reported.of(QoS.LS)
    pools_of_be = _narrow(reported.of(QoS.BE), nodes) if case.get("beCPUManager") else of_ls
    on_theirs = bool(nodes) and _cpus(theirs) == pool_cpus(pools_of_be)
    on_ls = place == _pool(of_ls, nodes)
    return CaseVerdict(
        False, actual, _BE_BY_LABEL.name if by_label and on_theirs and on_ls else None
    )


def _hook_sets(case: dict[str, Any], pod: Pod, nodes: tuple[int, ...], reported: _Reported) -> bool:
    """Whether Koordinator's hook, not another component, sets the cpuset of this container."""
    bound = bool(nodes) and (case.get("qos") != QoS.BE or case["beCPUManager"])
    of_system = case.get("qos") == QoS.SYSTEM and pool_cpus(reported.of(QoS.SYSTEM))
    by_class = case.get("qos") == QoS.LS or of_system
    to_others = pod.kube_class == "besteffort" or reported.static
    return bool(bound or by_class or not to_others)


def _joined(actual: dict[str, Any], theirs: str) -> CaseVerdict | None:
    """The verdict if the CPUs are the same, else None."""
    if _cpus(theirs) != _cpus(actual["cpuset"] or ""):
        return None
    stray = "" in theirs.split(",") and theirs != ""
    return CaseVerdict(not stray, actual, _STRAY_COMMA.name if stray else None)


def _pool(pools: tuple[Pool, ...], nodes: tuple[int, ...]) -> CpuSet:
    return pool_cpus(_narrow(pools, nodes)) or pool_cpus(pools)


def _narrow(pools: tuple[Pool, ...], nodes: tuple[int, ...]) -> tuple[Pool, ...]:
    return tuple(pool for pool in pools if not nodes or pool.node in nodes)


def _cpus(joined: str) -> CpuSet:
    return CpuSet.parse(",".join(filter(None, joined.split(","))))


def _json(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_JUDGES: Final = {
    "pools": koordinator_pools.judge,
    "hook": _judge_container,
    "hostapp": _judge_host_application,
}

JUDGES: Final = {
    "koordinator-cpuset-decisions": Judge(judge, DIFFERENCES),
}
