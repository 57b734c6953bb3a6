"""Koordinator's report of a node: pools, CPUs that the kubelet assigned, reserved CPUs. Topolet's
code runs from the Node object and the kubelet's configuration to the applied objects. The pods of a
case already run, so they keep the CPUs that they name. Pods in the kubelet's checkpoint are
Guaranteed, because other pods get no CPUs; a text there that is not a CPU list counts as empty. An
empty pool and a missing pool are the same, because neither has a CPU.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.kubelet.configuration import ConfigurationError, of_object
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.cpu.policies import reported_numa_policy
from agent.model.cpu.topology import Topology
from agent.model.nrt.node_annotations import (
    CPU_MANAGER_POLICY,
    POD_CPU_ALLOCS,
    POOL_ANNOTATIONS,
    RESERVATION,
    SYSTEM_QOS,
    NodeConfiguration,
    NodeReservation,
    SystemQos,
    node_reservation,
    shared_pools,
    system_qos,
)
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod.annotations import RESOURCE_STATUS, resource_status
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.node import node_resource_topology as report
from agent.node.node_configuration import from_annotations, rules, with_kubelet
from agent.node.report import ReportInput, report_values
from conformance import machines
from conformance.files import CaseVerdict, Difference

CLAIMED_TWICE: Final = Difference(
    "claimed-twice",
    "two pods' annotations name the same CPU: both keep all their CPUs from the pools; with"
    " Topolet one of them owns its CPUs, the other is refused and shares",
)


KUBELET_DECIDES: Final = Difference(
    "kubelet-decides",
    "under a static kubelet the annotation counts: CPUs that the checkpoint assigns to a pod whose"
    " annotation names others stay in the pools, and so do CPUs that the checkpoint assigns to one"
    " pod and an annotation to another; a pod may own CPUs that the kubelet reserves; BE pods do"
    " not run on the CPUs that the kubelet assigned to an LSR pod without an annotation",
    listed=True,
)


def judge(case: dict[str, Any]) -> CaseVerdict:
    verdict = _judged(case)
    if verdict.agrees or verdict.declared or case["kubelet"].get("policy") != "static":
        return verdict
    koordinator = _judged(_annotations_first(case), reserved=False)
    if koordinator.agrees or koordinator.declared:
        return CaseVerdict(False, verdict.actual, KUBELET_DECIDES.name)
    return verdict


def _annotations_first(case: dict[str, Any]) -> dict[str, Any]:
    """The case without the entries of the kubelet's checkpoint that Koordinator ignores."""
    checkpoint = case.get("checkpoint", {})
    managed = {
        pod["uid"]
        for pod in case["pods"]
        if pod.get("qos") in ("LS", "BE") or _claimed_cpus(_pod(pod, checkpoint))
    }
    theirs = {uid: of for uid, of in checkpoint.items() if uid not in managed}
    # Koordinator treats an LSR pod without a claim like other classes.
    pods = [
        {**pod, "qos": ""} if pod.get("qos") == "LSR" and pod["uid"] in theirs else pod
        for pod in case["pods"]
    ]
    return {**case, "checkpoint": theirs, "pods": pods}


def _judged(case: dict[str, Any], *, reserved: bool = True) -> CaseVerdict:
    topology = machines.topology(case["shape"], case["numbering"])
    pods = tuple(_pod(each, case.get("checkpoint", {})) for each in case["pods"])
    configured = _configured(case, topology)
    kubelet = _kubelet(case, static=configured.kubelet_policy == "static")
    owned_before = {pod.uid: _claimed_cpus(pod) for pod in pods}
    pool_rules = rules(configured)
    if not reserved:
        pool_rules = msgspec.structs.replace(pool_rules, kubelet_reserved=EMPTY)
    decision = decide(topology, pods, kubelet, owned_before, {}, pool_rules)
    values = report_values("node", ReportInput(topology, decision, pods, kubelet, configured))
    actual = _reported(report.build(values).topology)
    expect = case["expect"]
    differing = {key for key in expect if _value(key, actual[key]) != _value(key, expect[key])}
    if not differing:
        return CaseVerdict(True, actual)
    twice = differing <= {"ls", "be"} and _claimed_twice(pods, decision, actual, expect)
    return CaseVerdict(False, actual, CLAIMED_TWICE.name if twice else None)


def _pod(pod: dict[str, Any], checkpoint: dict[str, Any]) -> Pod:
    status = pod.get("resourceStatus")
    return Pod(
        uid=pod["uid"],
        namespace="default",
        name=f"pod-{pod['uid']}",
        labels={QOS_LABEL: pod["qos"]} if "qos" in pod else {},
        annotations={} if status is None else {RESOURCE_STATUS: _text(status)},
        kube_class="guaranteed" if pod["uid"] in checkpoint else "burstable",
        created_at=0,
    )


def _configured(case: dict[str, Any], topology: Topology) -> NodeConfiguration:
    notes = {SYSTEM_QOS: case.get("systemQOS"), RESERVATION: case.get("nodeReservation")}
    written = {key: _text(value) for key, value in notes.items() if value is not None}
    configured, _ = from_annotations(NodeConfiguration(), written, topology)
    kubelet = case["kubelet"]
    if not kubelet["query"]:
        return configured
    content = {
        "cpuManagerPolicy": kubelet["policy"],
        "cpuManagerPolicyOptions": kubelet.get("options"),
        "topologyManagerPolicy": kubelet["topologyManagerPolicy"],
        "topologyManagerScope": kubelet["topologyManagerScope"],
        "reservedSystemCPUs": kubelet.get("reservedSystemCPUs"),
    }
    amounts = {
        field: {"cpu": kubelet[field]}
        for field in ("kubeReserved", "systemReserved")
        if field in kubelet
    }
    try:
        return with_kubelet(configured, of_object({**content, **amounts}, "kubelet"), topology)
    except ConfigurationError:
        return with_kubelet(configured, of_object(content, "kubelet"), topology)


def _kubelet(case: dict[str, Any], *, static: bool) -> KubeletCpus:
    if not static:
        return KubeletCpus()
    checkpoint = case.get("checkpoint", {})
    return KubeletCpus(
        static=True,
        by_uid={uid: union(map(_cpus, of.values())) for uid, of in sorted(checkpoint.items())},
    )


def _cpus(text: str) -> CpuSet:
    try:
        return CpuSet.parse(text)
    except CpuSetError:
        return EMPTY


def _reported(topology: NodeTopology) -> dict[str, Any]:
    """The report in the form of a case's `expect`. Koordinator lists only the CPUs that the kubelet
    assigned."""
    notes = topology.annotations
    read = msgspec.json.decode
    return {
        **{name: read(notes[key]) for key, name in POOL_ANNOTATIONS.items()},
        "podAllocs": [
            {key: value for key, value in each.items() if value != ""}
            for each in read(notes[POD_CPU_ALLOCS])
            if each.get("managedByKubelet")
        ],
        "kubeletReserved": read(notes[CPU_MANAGER_POLICY]).get("reservedCPUs", ""),
        "nodeReservation": read(notes.get(RESERVATION, "{}")),
        "systemQOS": read(notes.get(SYSTEM_QOS, "{}")),
        "topologyPolicy": reported_numa_policy(topology.policy, topology.scope),
    }


def _value(key: str, reported: Any) -> object:
    """A reported value in a form that can be compared."""
    if key in ("ls", "be"):
        pools = shared_pools({key: _text(reported)}, key)
        return {(pool.socket, pool.node): pool.cpus for pool in pools if pool.cpus}
    if key == "systemQOS":
        return _system(reported)
    if key == "nodeReservation":
        return _reservation(reported)
    return reported or None


def _system(reported: Any) -> SystemQos:
    return system_qos({SYSTEM_QOS: _text(reported)})


def _reservation(reported: Any) -> NodeReservation:
    return node_reservation({RESERVATION: _text(reported)})


def _claimed_twice(
    pods: tuple[Pod, ...], decision: Decision, actual: dict[str, Any], expect: dict[str, Any]
) -> bool:
    """Whether Koordinator's pools are Topolet's pools without the CPUs of the claims that Topolet
    refuses because they overlap."""
    owned = union(owner.cpus for owner in decision.owners)
    refused = {refusal.uid for refusal in decision.refusals}
    claimed: dict[QoS, CpuSet] = {}
    for pod in pods:
        if pod.uid in refused and (cpus := _claimed_cpus(pod)) & owned:
            claimed[pod.qos] = claimed.get(pod.qos, EMPTY) | cpus
    lost = {"ls": union(claimed.values()), "be": claimed.get(QoS.LSE, EMPTY)}
    return bool(claimed) and all(_all(expect[key]) == _all(actual[key]) - lost[key] for key in lost)


def _claimed_cpus(pod: Pod) -> CpuSet:
    try:
        return resource_status(pod.annotations).cpus()
    except ValueError:
        return EMPTY


def _all(pools: Any) -> CpuSet:
    return union(CpuSet.parse(pool.get("cpuset", "")) for pool in pools or ())


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
