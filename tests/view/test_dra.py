"""What people read about the DRA driver."""

from __future__ import annotations

from agent.model.dra.claim_devices import ClaimDevice, ClaimStatus
from agent.view.dra import (
    ShownClaim,
    ShownClaimRequest,
    ShownCpuDevice,
    ShownDra,
    as_json,
    as_text,
    of_pod,
    of_status,
)

DRA = ShownDra(
    "",
    "",
    (ShownCpuDevice("numa-node-0", 0, "0-7", "4-7"), ShownCpuDevice("numa-node-1", 1, "8-9", "")),
    (
        ShownClaim(
            "ns/a",
            ("ns/p", "ns/q"),
            (
                ShownClaimRequest("cpus", "numa-node-0", "0-3"),
                ShownClaimRequest("more", "numa-node-1", "8-9", True),
                ShownClaimRequest("look", "numa-node-1", ""),
            ),
        ),
        ShownClaim("ns/b", refused="the claim needs 9 CPUs"),
    ),
    {"ns/p": "it requests 1 CPUs"},
)


def test_devices_claims_and_what_is_missing_as_text() -> None:
    assert as_text(DRA).splitlines() == [
        "Devices for ResourceClaims, in the order in which a scheduler takes them:",
        "  numa-node-0: CPUs 0-7 of NUMA node 0, of which 4-7 are free",
        "  numa-node-1: CPUs 8-9 of NUMA node 1, of which none are free",
        "Claims:",
        "  claim ns/a (pod ns/p, ns/q), request cpus: device numa-node-0, CPUs 0-3, which the node "
        "chose",
        "  claim ns/a (pod ns/p, ns/q), request more: device numa-node-1, CPUs 8-9, which an "
        "allocator outside of the node chose",
        "  claim ns/a (pod ns/p, ns/q), request look: device numa-node-1, which it only looks at",
        "  claim ns/b (no pod is known) gets no CPUs: the claim needs 9 CPUs",
        "  pod ns/p: it requests 1 CPUs",
    ]


def test_a_node_without_devices_says_why() -> None:
    dra = ShownDra("the kubelet has not registered it", "the kubelet has the static policy")
    assert as_text(dra).splitlines()[1:] == [
        "  no claim is prepared: the kubelet has not registered it",
        "  nothing is offered: the kubelet has the static policy",
        "No claim has CPUs.",
    ]


def test_sentences_of_a_pod() -> None:
    assert len(of_pod(DRA, "ns/p")) == 4
    assert len(of_pod(DRA, "ns/q")) == 3
    assert of_pod(DRA, "ns/other") == ()


def test_sentences_of_a_claim_of_the_api_server() -> None:
    node = ("n1", "numa-node-0")
    claim = ClaimStatus(
        "ns/a",
        True,
        (
            ClaimDevice(*node, cpus="0-3", since="2026-11-30T17:00:00Z"),
            ClaimDevice(*node, cpus="4-5", trouble="CPUs 4 are offline"),
            ClaimDevice(*node, admin=True),
            ClaimDevice(*node),
        ),
    )
    where = "claim ns/a: device numa-node-0 of node n1"
    assert [*of_status(claim)] == [
        f"{where}, CPUs 0-3, ready since 2026-11-30T17:00:00Z",
        f"{where}, CPUs 4-5; CPUs 4 are offline",
        f"{where}, which it only looks at",
        f"{where}, which the node has not prepared yet",
    ]
    assert [*of_status(ClaimStatus("ns/b", False))] == ["claim ns/b is not allocated yet"]
    assert [*of_status(ClaimStatus("ns/gpu", True))] == []


def test_names_of_the_cluster_change_no_terminal() -> None:
    dra = ShownDra(claims=(ShownClaim("ns/\x1b[2J", refused="x"),))
    assert "\x1b" not in as_text(dra) + as_json(dra)
