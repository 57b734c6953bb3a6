from __future__ import annotations

from agent.model.nodetopology import (
    FINGERPRINT_ANNOTATION,
    Amounts,
    NodeTopology,
    OwnerReference,
    Version,
    Zone,
    encode,
)

EXAMPLE = NodeTopology(
    "n",
    (
        Zone(1, {"cpu": Amounts(4000, 4000, 1500)}, {0: 21, 1: 10}, {"l3_cpus": "0;1"}),
        Zone(0, {"memory": Amounts(8, 6, 4), "cpu": Amounts(2000, 2000, 0)}, {0: 10, 1: 21}),
    ),
    "single-numa-node",
    "pod",
    8,
    "pfp0v001ef46db3751d8e999",
    {"cpu_atom": "0-1"},
    {"app.kubernetes.io/managed-by": "topolet"},
    {"a/b": "c"},
    OwnerReference("n", "u"),
)


def test_the_newer_shape() -> None:
    assert encode(EXAMPLE, Version.V1ALPHA2) == {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": "n",
            "labels": {"app.kubernetes.io/managed-by": "topolet"},
            "annotations": {"a/b": "c"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
        },
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [
            {"name": "cpu_atom", "value": "0-1"},
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"},
            {"name": "topologyManagerMaxNUMANodes", "value": "8"},
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "pod"},
        ],
        "zones": [
            {
                "name": "node-0",
                "type": "Node",
                "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}],
                "resources": [
                    {"name": "cpu", "capacity": "2", "allocatable": "2", "available": "0"},
                    {"name": "memory", "capacity": "8", "allocatable": "6", "available": "4"},
                ],
            },
            {
                "name": "node-1",
                "type": "Node",
                "costs": [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}],
                "attributes": [{"name": "l3_cpus", "value": "0;1"}],
                "resources": [
                    {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "1500m"}
                ],
            },
        ],
    }


def test_the_older_shape_has_no_attributes_at_the_top() -> None:
    body = encode(EXAMPLE, Version.V1ALPHA1)
    assert body["apiVersion"] == "topology.node.k8s.io/v1alpha1"
    assert "attributes" not in body
    assert body["topologyPolicies"] == ["SingleNUMANodePodLevel"]
    assert body["metadata"]["annotations"][FINGERPRINT_ANNOTATION] == EXAMPLE.fingerprint
    assert body["zones"] == encode(EXAMPLE, Version.V1ALPHA2)["zones"]
