"""Five pods that cover every rule of the pools, and the CPUs of each."""

from __future__ import annotations

import json

from agent.model.pod.annotations import RESOURCE_STATUS
from tests.fixtures.pods import PodSpec
from tests.integration.harness import TestNode

RUNS_ON = {
    "ls": "0-3,10-15",
    "lse": "4-7",
    "lsr": "8-9",
    "be": "0-3,8-15",
    "on-node-2": "10-11",
}
"""LSE owns a whole NUMA node, LSR half of one. BE pods may run on LSR's CPUs, others not."""

LS_POOLS = [
    {"socket": 0, "node": 0, "cpuset": "0-3"},
    {"socket": 1, "node": 2, "cpuset": "10-11"},
    {"socket": 1, "node": 3, "cpuset": "12-15"},
]
BE_POOLS = [
    {"socket": 0, "node": 0, "cpuset": "0-3"},
    {"socket": 1, "node": 2, "cpuset": "8-11"},
    {"socket": 1, "node": 3, "cpuset": "12-15"},
]


def specs(node: TestNode) -> dict[str, PodSpec]:
    """The pods. Two have no class label; their cgroup path determines the class."""
    bound = json.dumps({"numaNodeResources": [{"node": 2, "resources": {"cpu": "2"}}]})
    pods = [
        node.spec("ls", "LS"),
        node.spec("lse", "LSE", RUNS_ON["lse"], kube_class="guaranteed"),
        node.spec("lsr", "LSR", RUNS_ON["lsr"], kube_class="guaranteed"),
        node.spec("be", kube_class="besteffort"),
        node.spec("on-node-2", annotations={RESOURCE_STATUS: bound}),
    ]
    return {each.name: each for each in pods}
