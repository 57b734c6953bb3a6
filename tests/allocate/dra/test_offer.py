"""Which CPUs of a node claims may have."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.dra.offer import OfferedCpus, offered
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.dra.node_claims import NodeClaims
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner
from tests.allocate.dra.node import FOUR_NODES

OWNERS = (
    Owner("u", "ns/p", QoS.LSR, "0-3,10-11", "40"),
    Owner("v", "ns/q", QoS.LSE, "8-9", claims=True),
)
CLAIMS = NodeClaims(CpuSet.parse("8-11"))
"""The first pod has two of these CPUs too."""


@pytest.mark.parametrize(
    ("kubelet", "rules", "strict", "cpus", "pool_left"),
    [
        (KubeletCpus(), PoolRules(), "", "4-31", False),
        (KubeletCpus(), PoolRules(kubelet_reserved=CpuSet((3, 31))), "", "4-30", True),
        (KubeletCpus(), PoolRules(kubelet_reserved=CpuSet((3,))), "", "4-31", False),
        (KubeletCpus(), PoolRules(node_reserved=CpuSet((30, 31))), "", "4-29", False),
        (KubeletCpus(True), PoolRules(node_reserved=CpuSet((2, 7))), "2,7", "7", True),
    ],
)
def test_what_nobody_else_may_give(
    kubelet: KubeletCpus, rules: PoolRules, strict: str, cpus: str, pool_left: bool
) -> None:
    cpus_given = msgspec.structs.replace(kubelet, claims=CLAIMS)
    of_node = offered(FOUR_NODES, OWNERS, cpus_given, rules, CpuSet.parse(strict))
    assert of_node == OfferedCpus(CpuSet.parse(cpus), pool_left)


def test_what_annotations_of_the_node_keep_is_not_offered_beside_a_static_kubelet() -> None:
    strict = PoolRules(node_reserved=CpuSet.parse("20-23"))
    kept = CpuSet.parse("0,20-21")
    of_node = offered(FOUR_NODES, (), KubeletCpus(True), strict, CpuSet.parse("20-23"), kept)
    assert str(of_node.cpus) == "22-23"


@pytest.mark.parametrize(
    ("kubelet", "owned", "reason"),
    [
        (KubeletCpus(of_dra={"u": {"c": CpuSet((1,))}}), "", "another DRA driver gives CPUs"),
        (KubeletCpus(True), "", "the kubelet has the static policy"),
        (KubeletCpus(), "0-31", "other pods own all CPUs"),
    ],
)
def test_a_node_that_offers_nothing_says_why(kubelet: KubeletCpus, owned: str, reason: str) -> None:
    owners = (Owner("u", "ns/p", QoS.LSE, owned),)
    of_node = offered(FOUR_NODES, owners, kubelet, PoolRules(), EMPTY)
    assert not of_node.cpus
    assert reason in of_node.reason
