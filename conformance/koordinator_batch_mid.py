"""koord-manager's batch and mid resources of one node, by its NodeMetric."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from agent.model.nrt.node_annotations import node_reservation
from agent.model.pod.apiobjects import decode_node, from_object
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import pod_requests
from agent.model.quantities import milli, whole
from agent.usage import batch_mid
from agent.usage.batch_mid import Amounts, ColocationStrategy, NodeLoad, PodLoad
from agent.usage.node_metric import priority_class_of_pod, qos_of_pod
from conformance.files import CaseVerdict, Judge


def judge(case: dict[str, Any]) -> CaseVerdict:
    strategy = msgspec.convert(case["strategy"], ColocationStrategy)
    offers = {"batch": batch_mid.batch, "mid": batch_mid.mid}[case["op"]](_node(case), strategy)
    actual = {"cpuMilli": offers["cpu"].amount, "memory": offers["memory"].amount}
    return CaseVerdict(actual == case["expect"], actual)


def _node(case: dict[str, Any]) -> NodeLoad:
    node = decode_node(json.dumps(case["node"]).encode())
    status = case["nodeMetric"]["status"]
    measured = {(each["namespace"], each["name"]): each for each in status["podsMetric"]}
    pods = []
    for body in case["pods"]:
        pod = from_object(body)
        metric = measured.get((pod.namespace, pod.name))
        if pod.terminal:
            continue
        measured.pop((pod.namespace, pod.name), None)
        pods.append(
            PodLoad(
                priority_class_of_pod(pod),
                pod_requests(pod),
                None if metric is None else _amounts(metric["podUsage"]),
                exclusive=qos_of_pod(pod) is QoS.LSE,
            )
        )
    pods += [
        PodLoad(each.get("priority", ""), used=_amounts(each["podUsage"]), active=False)
        for each in measured.values()
    ]
    of_node = status["nodeMetric"]
    return NodeLoad(
        node.capacity,
        batch_mid.reserved(node.capacity, node.allocatable, node_reservation(node.annotations)),
        _amounts(of_node["systemUsage"]),
        _amounts(of_node.get("nodeUsage", {})),
        _amounts(status.get("prodReclaimableMetric", {}).get("resource", {})),
        tuple(pods),
        tuple(
            (each.get("priority", ""), _amounts(each["usage"]))
            for each in status.get("hostApplicationMetric", ())
        ),
    )


def _amounts(usage: dict[str, Any]) -> Amounts:
    written = usage.get("resources", {})
    return {
        name: read(written[name])
        for name, read in (("cpu", milli), ("memory", whole))
        if name in written
    }


JUDGES: Final = {"koordinator-batch-mid": Judge(judge)}
