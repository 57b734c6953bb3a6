"""Decisions about pods with CPUs of ResourceClaims that this agent prepared."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.dra.node_claims import ContainerClaim, NodeClaims
from agent.model.linux_resources import NO_QUOTA
from agent.model.pod.annotations import CRIO_INTERRUPTS, HOUSEKEEPING
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS, pool_cpus
from tests.builders import machine, pod

TWO_NODES = machine(2, 4)
"""CPUs 0-3 and 4-7."""


def claims(cpus: str, **containers: ContainerClaim) -> NodeClaims:
    """Of the pod `p`."""
    return NodeClaims(CpuSet.parse(cpus), {"p": containers} if containers else {})


def claim(cpus: str, *, shared: bool = False, bind_memory: bool = False) -> ContainerClaim:
    return ContainerClaim(CpuSet.parse(cpus), shared, bind_memory)


def decided(of_node: NodeClaims, *pods: Pod, topology: Topology = TWO_NODES) -> Decision:
    return decide(topology, pods, KubeletCpus(claims=of_node), {}, {})


def cpus_of(decision: Decision, uid: str, name: str) -> str | None:
    return decision.pods[uid].of(name).cpuset


def test_a_container_owns_the_cpus_of_its_claim() -> None:
    """The other containers of its pod share the pool."""
    decision = decided(claims("0-1", x=claim("0-1")), pod("p", "LS"), pod("q", "LS"))
    (owner,) = decision.owners
    assert (owner.uid, owner.qos, owner.cpuset, owner.claims) == ("p", QoS.LSE, "0-1", True)
    own = decision.pods["p"].of("x")
    assert (own.cpuset, own.exclusive, own.resources.quota) == ("0-1", True, NO_QUOTA)
    assert decision.pods["p"].group.quota == NO_QUOTA
    assert cpus_of(decision, "p", "sidecar") == cpus_of(decision, "q", "x") == "2-7"


def test_cpus_of_a_claim_whose_pod_is_not_known_are_kept_for_it() -> None:
    decision = decided(claims("0-1"), pod("q", "LS"), pod("a", "LSR", "1-2"))
    assert decision.owners == ()
    assert cpus_of(decision, "q", "x") == "2-7"
    (refusal,) = decision.refusals
    assert refusal.reason == "CPUs 1 are allocated by a ResourceClaim"


def test_a_mixed_container_runs_on_the_pool_too() -> None:
    decision = decided(claims("0-1", x=claim("0-1", shared=True)), pod("p", "LS"), pod("q", "LS"))
    mixed = decision.pods["p"].of("x")
    assert (mixed.cpuset, mixed.shared, str(mixed.own)) == ("0-7", "2-7", "0-1")
    assert mixed.exclusive
    assert mixed.resources.quota == decision.pods["p"].group.quota == NO_QUOTA
    assert cpus_of(decision, "q", "x") == "2-7"


def test_only_the_container_that_owns_the_first_core_is_told_that_it_keeps_interrupts() -> None:
    of_node = claims("0-3", x=claim("0-1"), y=claim("2-3"))
    asking = msgspec.structs.replace(pod("p", "LS"), annotations={CRIO_INTERRUPTS: HOUSEKEEPING})
    of_pod = decided(of_node, asking).pods["p"]
    assert [of_pod.of(name).housekeeping for name in ("x", "y", "sidecar")] == ["0", "", ""]


@pytest.mark.parametrize(
    ("of_container", "least"),
    [
        (claim("0-1"), 2048),
        (claim("0-1", shared=True), 2048),
        (claim("0-2", bind_memory=True), 3072),
    ],
)
def test_the_weight_of_a_container_is_at_least_that_of_its_claim(
    of_container: ContainerClaim, least: int
) -> None:
    """The decision does not know its request, which may have more."""
    of_pod = decided(claims(str(of_container.cpus), x=of_container), pod("p", "LS")).pods["p"]
    assert of_pod.of("x").least_shares == least
    assert of_pod.of("x").resources.shares is None
    assert of_pod.of("sidecar").least_shares == 0


def test_memory_comes_from_the_nodes_of_the_cpus_if_the_claim_says_so() -> None:
    for bind_memory, mems in ((True, "1"), (False, None)):
        of_node = claims("4-5", x=claim("4-5", bind_memory=bind_memory))
        assert decided(of_node, pod("p", "LS")).pods["p"].of("x").resources.mems == mems


def test_pods_that_use_one_claim_share_its_cpus() -> None:
    """The oldest owns them."""
    both = {"p": {"x": claim("0-1")}, "q": {"x": claim("0-1")}}
    of_node = NodeClaims(CpuSet.parse("0-1"), both)
    decision = decided(of_node, pod("p", "LS", created_at=2), pod("q", "LS", created_at=1))
    (owner,) = decision.owners
    assert (owner.uid, owner.sharers) == ("q", ("p",))
    assert cpus_of(decision, "p", "x") == cpus_of(decision, "q", "x") == "0-1"


def test_an_owner_by_annotation_that_came_first_keeps_its_cpus() -> None:
    """The claim was prepared at the same moment."""
    pods = pod("p", "LS"), pod("a", "LSR", "1-2")
    of_node = claims("0-1", x=claim("0-1"))
    owned = {"a": CpuSet.parse("1-2")}
    decision = decide(TWO_NODES, pods, KubeletCpus(claims=of_node), owned, owned)
    assert {owner.uid: owner.cpuset for owner in decision.owners} == {"a": "1-2", "p": "0"}
    assert cpus_of(decision, "p", "x") == "0"


def test_a_container_without_the_claim_has_the_cpus_of_its_pods_annotation_alone() -> None:
    """Also while these are refused, as the pod keeps what it owned before."""
    of_node = claims("0-1", x=claim("0-1"))
    for annotation in ("2-3", "2-9"):
        pods = (pod("p", "LSR", annotation),)
        owned = {"p": CpuSet.parse("0-3")}
        decision = decide(TWO_NODES, pods, KubeletCpus(claims=of_node), owned, owned)
        (owner,) = decision.owners
        assert (owner.cpuset, cpus_of(decision, "p", "x")) == ("0-3", "0-1")
        assert cpus_of(decision, "p", "sidecar") == "2-3"


def test_a_container_has_the_cpus_of_its_claim_beside_those_of_a_static_kubelet() -> None:
    """Of a Guaranteed pod that requests as much as its claim has, as it should."""
    kubelet = KubeletCpus(
        static=True,
        by_uid={"p": CpuSet.parse("4-5")},
        containers={"p": {"x": CpuSet.parse("4-5")}},
        claims=claims("0-1", x=claim("0-1")),
    )
    pods = pod("p", kube_class="guaranteed"), pod("q", "LS")
    decision = decide(TWO_NODES, pods, kubelet, {}, {})
    own = decision.pods["p"].of("x")
    assert (own.cpuset, own.exclusive, own.kubelet) == ("0-1,4-5", True, False)
    assert cpus_of(decision, "q", "x") == "2-3,6-7"


def test_offline_cpus_of_a_claim_stay_reserved() -> None:
    topology = machine(2, 4, offline="1")
    offline = topology.offline
    of_node = NodeClaims(
        CpuSet((0,)) | offline, {"p": {"x": ContainerClaim(CpuSet((0,)) | offline)}}
    )
    decision = decided(of_node, pod("p", "LS"), topology=topology)
    (owner,) = decision.owners
    assert owner.claimed == of_node.cpus
    assert cpus_of(decision, "p", "x") == "0"


@given(st.data())
def test_no_cpu_has_two_users(data: st.DataObject) -> None:
    """Claims of any pods beside owners by annotation."""
    cpus = st.frozensets(st.integers(0, 7), max_size=3).map(CpuSet)
    names = [f"p{index}" for index in range(data.draw(st.integers(1, 5)))]
    taken = EMPTY
    containers: dict[str, dict[str, ContainerClaim]] = {}
    for name in names:
        if own := data.draw(cpus) - taken:
            containers[name] = {"x": ContainerClaim(own, data.draw(st.booleans()))}
            taken |= own
    pods = [
        pod(
            name,
            data.draw(st.sampled_from([QoS.LS, QoS.BE, QoS.LSR, QoS.LSE])),
            str(data.draw(cpus)) if data.draw(st.booleans()) else "",
            created_at=data.draw(st.integers(0, 2)),
        )
        for name in names
    ]
    decision = decided(NodeClaims(taken, containers), *pods)
    owned = [owner.cpus for owner in decision.owners]
    assert sum(map(len, owned)) == len(union(owned)), "a CPU has two owners"
    assert not taken & pool_cpus(decision.pools["ls"])
    assert not taken & pool_cpus(decision.pools["be"])
    for name, of_pod in containers.items():
        held = CpuSet.parse(decision.pods[name].of("x").cpuset or "")
        others = union(owner.cpus for owner in decision.owners if owner.uid != name)
        assert of_pod["x"].cpus - others <= held
        assert not held & others or of_pod["x"].shared
