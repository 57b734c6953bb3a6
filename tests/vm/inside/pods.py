"""Seven pods that meet every rule of the pools, and where each must run."""

from __future__ import annotations

import json

from agent.model.annotations import RESOURCE_STATUS
from demo.pods import PodSpec
from tests.integration.harness import TestNode

RUNS_ON = {
    "ls": "0-3,10-15",
    "unlabelled-ls": "0-3,10-15",
    "be": "0-3,8-15",
    "unlabelled-be": "0-3,8-15",
    "on-node-2": "10-11",
    "lse": "4-7",
    "lsr": "8-9",
}
"""LSE owns a whole NUMA node, LSR half of one; only BE pods may run on LSR's CPUs."""

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


def sharers(node: TestNode, *, slices: bool = False) -> list[PodSpec]:
    """Those without CPUs of their own; two have no label, so that their place tells their class."""
    bound = {"numaNodeResources": [{"node": 2, "resources": {"cpu": "2"}}]}
    return [
        node.spec("ls", "LS", slices=slices),
        node.spec("unlabelled-ls", slices=slices),
        node.spec("be", "BE", slices=slices),
        node.spec("unlabelled-be", kube_class="besteffort", slices=slices),
        node.spec(
            "on-node-2", "LS", annotations={RESOURCE_STATUS: json.dumps(bound)}, slices=slices
        ),
    ]


def owners(node: TestNode, *, slices: bool = False) -> list[PodSpec]:
    """Those with CPUs of their own."""
    return [
        node.spec("lse", "LSE", RUNS_ON["lse"], kube_class="guaranteed", slices=slices),
        node.spec("lsr", "LSR", RUNS_ON["lsr"], kube_class="guaranteed", slices=slices),
    ]
