"""koordlet's suppression of BE pods: the amount of CPU, the order in which CPUs are picked, the
cpuset, and the quota. The BE pool that a cpuset is part of is made of the case as koordlet makes
it; how Topolet makes its own is compared in `koordinator_pools`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice, permutations, product
from typing import Any, Final

import msgspec

from agent.allocate.colocation import be_suppress
from agent.allocate.colocation.be_suppress import BePool, NodeUse
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import Cpu
from agent.model.linux_resources import CpuQuota
from agent.model.node_slo import ResourceThreshold
from agent.model.nrt.node_annotations import node_reservation, system_qos
from agent.model.pod.annotations import resource_status
from agent.model.pod.apiobjects import decode_node, from_object
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.quantities import milli
from agent.usage import batch_mid
from agent.usage.node_metric import qos_of_pod
from conformance.files import CaseVerdict, Difference, Judge

Json = dict[str, Any]

_MAX_ORDERS: Final = 20_000

NO_CPU: Final = Difference(
    "no-cpu-for-be",
    "koordlet divides by zero where every CPU is reserved or an LSE pod's; Topolet leaves BE pods"
    " where they are",
    listed=True,
)
DROPPED: Final = Difference(
    "part-dropped",
    "where fewer CPUs are left than wanted, koordlet picks none of them: BE pods keep the CPUs of"
    " LSR pods alone, or their old cpuset, which may have CPUs of LSE pods; Topolet gives them all"
    " that are left",
    listed=True,
)
COLLIDE: Final = Difference(
    "numa-nodes-collide",
    "koordlet's keys of the NUMA nodes of three or more sockets can be equal, and the CPUs of two"
    " NUMA nodes are then picked as if of one",
    listed=True,
)
UNLIMITED_LEFT: Final = Difference(
    "unlimited-left",
    "koordlet takes the -1 of no quota for a number: a small quota differs from it by less than 1 %"
    " of the node, and BE pods stay without one; Topolet writes it",
)


def judge(case: Json) -> CaseVerdict:
    return _JUDGES[case["op"]](case)


def _amount(case: Json) -> CaseVerdict:
    strategy = ResourceThreshold(
        cpu_suppress_threshold_percent=case["threshold"], cpu_suppress_min_percent=case.get("min")
    )
    actual: Json = {}
    for use in _uses(case):
        actual = {"milli": be_suppress.amount(strategy, use).milli}
        if actual == case["expect"]:
            return CaseVerdict(True, actual)
    return CaseVerdict(False, actual)


def _uses(case: Json) -> Iterator[NodeUse]:
    """The use by each order of Go's maps, on which the last milli of a sum of floats depends."""
    node = decode_node(json.dumps(case["node"]).encode())
    reservation = node_reservation(node.annotations)
    reserved = batch_mid.reserved(node.capacity, node.allocatable, reservation)
    of_be = {pod["metadata"]["uid"] for pod in case["pods"] if _is_be(pod)} | {
        application["name"]
        for application in case["hostApps"]
        if application["qos"] == QoS.BE
        and application.get("cgroupPath", {}).get("base") == "KubepodsBesteffort"
    }
    orders = product(*(permutations(case[name].items()) for name in ("podUsed", "hostUsed")))
    for pods, applications in islice(orders, _MAX_ORDERS):
        yield NodeUse(
            node.capacity["cpu"],
            reserved["cpu"],
            case["nodeUsed"],
            sum(used for _, used in pods),
            sum(used for uid, used in pods if uid not in of_be),
            sum(used for _, used in applications),
            sum(used for name, used in applications if name not in of_be),
        )


def _is_be(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(QOS_LABEL) == QoS.BE or kube_class_of(from_object(pod)) == "besteffort"


def _pick(case: Json) -> CaseVerdict:
    cpus, need, expect = _cpus(case), case["need"], case["expect"]
    actual = {"cpus": be_suppress.picked(cpus, need)}
    if actual == expect:
        return CaseVerdict(True, actual)
    theirs = {"cpus": _picked_by_koordlet(cpus, need)}
    declared = DROPPED if need > len(cpus) else COLLIDE
    return CaseVerdict(False, actual, declared.name if theirs == expect else None)


def _picked_by_koordlet(cpus: Iterable[Cpu], need: int) -> list[int]:
    """As koordlet picks: nothing where there are fewer, and by a key of the NUMA node."""
    cpus = tuple(cpus)
    if need > len(cpus):
        return []
    keyed = (
        msgspec.structs.replace(cpu, node=(cpu.node + len(cpus)) * (cpu.socket + 1), socket=0)
        for cpu in cpus
    )
    return be_suppress.picked(keyed, need)


def _cpuset(case: Json) -> CaseVerdict:
    machine, expect, cpuset = _cpus(case), case["expect"], CpuSet.parse(case["old"])
    pool = _be_pool(case, machine)
    count = be_suppress.cpu_count(case["milli"], len(cpuset), len(machine))
    actual = _written(cpuset, be_suppress.chosen(pool, count))
    if actual == expect:
        return CaseVerdict(True, actual)
    if not pool.cpus:
        return CaseVerdict(False, actual, NO_CPU.name if expect.keys() == {"panic"} else None)
    of_owned = count * len(pool.owned) // len(pool.cpus)
    parts = ((pool.owned, of_owned), (pool.cpus - pool.owned, count - of_owned))
    theirs = CpuSet(
        cpu
        for part, need in parts
        for cpu in _picked_by_koordlet(
            (candidate for candidate in machine if candidate.id in part), need
        )
    )
    declared = DROPPED if count > len(pool.cpus) else COLLIDE
    return CaseVerdict(False, actual, declared.name if _written(cpuset, theirs) == expect else None)


def _written(cpuset: CpuSet, cpus: CpuSet) -> Json:
    """The groups grow before they shrink, as in `agent.cgroup.order`."""
    return {"cpuset": str(cpus), "merged": str(cpuset | cpus)} if cpus else {"cpuset": None}


def _be_pool(case: Json, machine: tuple[Cpu, ...]) -> BePool:
    owned: dict[QoS, list[CpuSet]] = {QoS.LSE: [], QoS.LSR: []}
    for written in case["pods"]:
        pod = from_object(written)
        if (qos := qos_of_pod(pod)) in owned:
            owned[qos].append(resource_status(pod.annotations).cpus())
    system = system_qos(case["nrt"])
    reserved = node_reservation(case["nrt"]).cpus()
    unavailable = union((reserved, *owned[QoS.LSE]))
    if system.cpuset_exclusive:
        unavailable |= system.cpus()
    cpus = CpuSet(cpu.id for cpu in machine) - unavailable
    return BePool(machine, cpus, cpus & union(owned[QoS.LSR]))


def _cpus(case: Json) -> tuple[Cpu, ...]:
    return tuple(
        Cpu(id=cpu, core=core, l3=None, die=None, socket=socket, node=node)
        for cpu, core, node, socket in case["cpus"]
    )


def _quota(case: Json) -> CaseVerdict:
    quota_before, expect = case["oldQuota"], case["expect"]
    present = None if quota_before < 0 else CpuQuota(quota_before)
    capacity = milli(case["node"]["status"]["capacity"]["cpu"])
    quota = be_suppress.quota(case["milli"], capacity, present)
    actual = {"quota": None if quota == present else quota.microseconds}
    # koordlet writes its least quota also where it is the present one.
    if actual == expect or (quota == present and expect == {"quota": quota_before}):
        return CaseVerdict(True, actual)
    small = quota.microseconds + 1 < capacity
    unlimited = present is None and small and expect == {"quota": None}
    return CaseVerdict(False, actual, UNLIMITED_LEFT.name if unlimited else None)


_JUDGES: Final = {"amount": _amount, "pick": _pick, "cpuset": _cpuset, "quota": _quota}
JUDGES: Final = {
    "koordinator-be-suppress": Judge(judge, (NO_CPU, DROPPED, COLLIDE, UNLIMITED_LEFT))
}
