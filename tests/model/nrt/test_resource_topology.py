from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.nrt import resource_topology as fingerprint
from agent.model.nrt.resource_topology import (
    FINGERPRINT_ANNOTATION,
    Amounts,
    NodeTopology,
    OwnerReference,
    Version,
    Zone,
    decode,
    encode,
)
from agent.model.objects import ObjectError

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


def test_the_newer_version() -> None:
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


def test_the_older_version_has_no_top_level_attributes() -> None:
    body = encode(EXAMPLE, Version.V1ALPHA1)
    assert body["apiVersion"] == "topology.node.k8s.io/v1alpha1"
    assert "attributes" not in body
    assert body["topologyPolicies"] == ["SingleNUMANodePodLevel"]
    assert body["metadata"]["annotations"][FINGERPRINT_ANNOTATION] == EXAMPLE.fingerprint
    assert body["zones"] == encode(EXAMPLE, Version.V1ALPHA2)["zones"]


names = st.text("abc", min_size=1, max_size=3)
texts = st.dictionaries(names, names, max_size=2)
amounts = st.builds(Amounts, *(st.integers(0, 1 << 50) for _ in range(3)))
zones = st.builds(
    Zone,
    st.integers(0, 99),
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), amounts),
    st.dictionaries(st.integers(0, 99), st.integers(0, 255), max_size=3),
    texts,
)
values = st.builds(
    NodeTopology,
    names,
    st.lists(zones, max_size=4, unique_by=lambda each: each.node).map(
        lambda found: tuple(sorted(found, key=lambda each: each.node))
    ),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    st.sampled_from(["container", "pod"]),
    st.none() | st.integers(2, 1024),
    st.none() | names,
    texts,
    texts,
    texts,
    st.none() | st.builds(OwnerReference, names, names),
)


@given(values)
def test_encoded_objects_read_back(value: NodeTopology) -> None:
    assert decode(encode(value, Version.V1ALPHA2)) == value
    older = decode(encode(value, Version.V1ALPHA1))
    if value.policy == "none":
        value = msgspec.structs.replace(value, scope="container")
    assert older == msgspec.structs.replace(value, attributes={}, max_numa_nodes=None)


@pytest.mark.parametrize(
    ("policies", "attributes", "policy", "scope", "max_nodes"),
    [
        ([], {}, "none", "container", None),
        (["None"], {}, "none", "container", None),
        (["BestEffort"], {}, "best-effort", "container", None),
        (["Restricted"], {}, "restricted", "container", None),
        (["RestrictedPodLevel", "None"], {}, "restricted", "pod", None),
        (["SingleNUMANodeContainerLevel"], {}, "single-numa-node", "container", None),
        (["SingleNUMANode"], {}, "single-numa-node", "container", None),
        (["singlenumanodepodlevel"], {}, "single-numa-node", "pod", None),
        (["single-numa-node"], {}, "single-numa-node", "container", None),
        (["single_numa_node"], {}, "single-numa-node", "container", None),
        (["best-effort"], {}, "best-effort", "container", None),
        (["restricted"], {"topologyManagerScope": "pod"}, "restricted", "pod", None),
        (["none"], {}, "none", "container", None),
        ([], {"topologyManagerPolicy": "SingleNUMANodePodLevel"}, "single-numa-node", "pod", None),
        (["Restricted"], {"topologyManagerPolicy": "None"}, "none", "container", None),
        (["Bogus"], {"topologyManagerScope": "pod"}, "none", "pod", None),
        (["Restricted"], {"topologyManagerPolicy": "bogus"}, "restricted", "container", None),
        (
            ["RestrictedPodLevel"],
            {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "x"},
            "best-effort",
            "pod",
            None,
        ),
        ([], {"topologyManagerMaxNUMANodes": "1"}, "none", "container", None),
        ([], {"topologyManagerMaxNUMANodes": "-3"}, "none", "container", None),
        ([], {"topologyManagerMaxNUMANodes": "16"}, "none", "container", 16),
        ([], {"topologyManagerMaxNUMANodes": "9999"}, "none", "container", 1024),
    ],
)
def test_each_attribute_overrides_the_older_policy_value(
    policies: list[str], attributes: dict[str, str], policy: str, scope: str, max_nodes: int | None
) -> None:
    body = {
        "metadata": {"name": "n"},
        "topologyPolicies": policies,
        "attributes": [{"name": key, "value": value} for key, value in attributes.items()],
        "zones": [],
    }
    found = decode(body)
    assert (found.policy, found.scope, found.max_numa_nodes) == (policy, scope, max_nodes)


@pytest.mark.parametrize(
    ("policies", "attribute", "fault"),
    [
        (
            "strict",
            (),
            "topologyPolicies[0]: 'strict' is not one of none, best-effort, restricted, ",
        ),
        ("PodLevel", (), "topologyPolicies[0]: 'PodLevel' is not one of none, best-effort, "),
        ("x" * 999, (), f"topologyPolicies[0]: '{'x' * 60}' is not one of "),
        ("", ("topologyManagerPolicy", "Single"), "attribute topologyManagerPolicy: 'Single' is "),
        (
            "",
            ("topologyManagerScope", "node"),
            "attribute topologyManagerScope: 'node' is not one of",
        ),
        ("", ("topologyManagerMaxNUMANodes", "1"), "attribute topologyManagerMaxNUMANodes: '1' is"),
        (
            "",
            ("nodeTopologyPodsFingerprintMethod", "some"),
            "attribute nodeTopologyPodsFingerprintMethod: 'some' is not one of all, with-",
        ),
    ],
)
def test_unknown_values_are_faults_without_effect(
    policies: str, attribute: tuple[str, ...], fault: str
) -> None:
    body = {
        "metadata": {"name": "n"},
        "topologyPolicies": [policies],
        "attributes": [{"name": attribute[0], "value": attribute[1]}] if attribute else [],
        "zones": [],
    }
    found = decode(body)
    (problem,) = found.faults
    assert problem.startswith(fault)
    assert msgspec.structs.replace(found, attributes={}, faults=()) == NodeTopology("n")


def test_zones_of_other_writers_are_ignored() -> None:
    others = [
        {"name": "Node-1", "type": "Node"},
        {"name": "numa-node-0", "type": "Node"},
        {"name": "node-x", "type": "Node"},
        {"name": "node-3", "type": "balloon"},
        {"name": "node-4", "type": "Node", "costs": [{"name": "socket-0", "value": 1}]},
    ]
    assert decode({"metadata": {"name": "n"}, "zones": others}).zones == (Zone(4),)


def object_with(*zones: dict[str, object]) -> dict[str, object]:
    return {"metadata": {"name": "n"}, "zones": zones}


def zone_with(**cpu: object) -> dict[str, object]:
    return {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", **cpu}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "NodeResourceTopology without a name: Expected `object`"),
        ({"metadata": {"name": "n"}}, "NodeResourceTopology n: .*missing required field `zones`"),
        (object_with({"name": 1}), r"n: zones\[0\]\.name: Expected"),
        (
            object_with(zone_with(capacity=1, allocatable="1", available="x")),
            r"n: zones\[0\]\.resources\['cpu'\]\.available: 'x' is not a quantity",
        ),
        (
            object_with(zone_with(capacity=1, allocatable=1)),
            "n: .*missing required field `available`",
        ),
    ],
)
def test_invalid_fields_are_named(body: object, message: str) -> None:
    with pytest.raises(ObjectError, match=message):
        decode(body)


# Values of the reference implementation's own tests.
KNOWN = [
    ([], "pfp0v001ef46db3751d8e999"),
    (
        [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")],
        "pfp0v001b92008c14168b3a6",
    ),
]


@pytest.mark.parametrize(("pods", "expected"), KNOWN)
def test_values_of_the_reference_implementation_in_any_order(
    pods: list[tuple[str, str]], expected: str
) -> None:
    assert fingerprint.fingerprint_of(pods) == expected
    assert fingerprint.fingerprint_of(iter(pods[::-1])) == expected


def test_namespace_and_name_are_not_interchangeable() -> None:
    assert fingerprint.fingerprint_of([("a", "b")]) != fingerprint.fingerprint_of([("b", "a")])
