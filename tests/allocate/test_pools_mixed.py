"""Containers that run on their pool beside CPUs of their own."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_local.claim import LocalInput, LocalPolicy, LocalRequest, LocalRules
from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.model import bounds
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.layout import of_topology
from agent.model.linux_resources import NO_QUOTA
from agent.model.pod.annotations import CRIO_INTERRUPTS, MIXED_CONTAINERS, SHARED_CONTAINERS
from agent.model.pod.pods import Pod
from agent.model.pod.qos import pool_cpus
from agent.model.snapshot import Wanted
from tests.builders import machine, pod

MACHINE = machine(2, 4)


def mixing(of: Pod, names: str = "dpdk", **others: str) -> Pod:
    annotations = {**of.annotations, MIXED_CONTAINERS: names, **others}
    return msgspec.structs.replace(of, annotations=annotations)


def decided(
    *pods: Pod, kubelet: KubeletCpus | None = None, local: LocalInput | None = None
) -> Decision:
    return decide(MACHINE, pods, kubelet or KubeletCpus(), {}, {}, PoolRules(), local)


def parts(wanted: Wanted) -> tuple[str, str | None]:
    """Own and shared CPUs; the container has both, and no quota."""
    assert wanted.exclusive
    assert wanted.resources.quota == NO_QUOTA
    assert CpuSet.parse(wanted.cpuset or "") == wanted.own | CpuSet.parse(wanted.shared or "")
    return str(wanted.own), wanted.shared


def test_the_share_follows_the_pool() -> None:
    owner, other = mixing(pod("a", "LSR", "0-1")), pod("b", "LS")
    for new, share in (((), "2-7"), ((pod("c", "LSE", "4-7"),), "2-3"), ((), "2-7")):
        decision = decided(owner, other, *new)
        of_owner = decision.pods["a"]
        assert parts(of_owner.of("dpdk")) == ("0-1", share)
        assert decision.pods["b"].each.cpuset == share
        assert (of_owner.of("main").cpuset, of_owner.of("main").shared) == ("0-1", None)
        assert of_owner.group.quota == NO_QUOTA


def test_a_static_kubelets_container_and_a_local_policys_are_mixed_too() -> None:
    own = {"a": {"dpdk": CpuSet.parse("2-3"), "main": CpuSet.parse("1")}}
    kubelet = KubeletCpus(True, {"a": CpuSet.parse("1-3")}, own)
    guaranteed = mixing(pod("a", kube_class="guaranteed"))
    of_pod = decided(guaranteed, pod("b", "LS"), kubelet=kubelet).pods["a"]
    assert parts(of_pod.of("dpdk")) == ("2-3", "0,4-7")
    assert of_pod.of("dpdk").kubelet
    assert (of_pod.of("main").cpuset, of_pod.of("main").resources.quota) == ("1", None)
    assert of_pod.group.quota == NO_QUOTA, "the quota of the pod would throttle it too"

    request = LocalRequest("a", "dpdk", 1, 2, owned=CpuSet.parse("4-5"))
    local = LocalInput(LocalRules(LocalPolicy.STATIC, of_topology(MACHINE)), (request,))
    decision = decided(guaranteed, pod("b", "LS"), local=local)
    assert parts(decision.pods["a"].of("dpdk")) == ("4-5", "0-3,6-7")


def test_only_containers_that_own_cpus_are_mixed() -> None:
    sidecar = mixing(pod("a", "LSR", "0-1"), "dpdk,envoy", **{SHARED_CONTAINERS: "envoy"})
    decision = decided(sidecar, mixing(pod("b", "LS")))
    envoy, other = decision.pods["a"].of("envoy"), decision.pods["b"].of("dpdk")
    assert envoy == other == Wanted(envoy.resources)
    assert envoy.cpuset == "2-7"


def test_the_share_of_a_pod_that_is_bound_to_numa_nodes_lies_there() -> None:
    bound = mixing(pod("a", "LSR", "4-5", numa_nodes=(1,)))
    assert parts(decided(bound).pods["a"].of("dpdk")) == ("4-5", "6-7")


def test_an_empty_pool_leaves_its_own_cpus() -> None:
    decision = decided(mixing(pod("a", "LSE", "0-3")), pod("b", "LSE", "4-7"))
    assert parts(decision.pods["a"].of("dpdk")) == ("0-3", "")


def test_containers_are_told_which_of_their_cpus_keep_interrupts() -> None:
    threads = [msgspec.structs.replace(cpu, core=cpu.id // 2 * 2) for cpu in MACHINE.cpus]
    smt = msgspec.structs.replace(MACHINE, cpus=tuple(threads), smt=True)
    owner = mixing(pod("a", "LSR", "3-6"), **{CRIO_INTERRUPTS: "housekeeping"})
    sharing = mixing(pod("b", "LS"), **{CRIO_INTERRUPTS: "housekeeping"})
    decision = decide(smt, (owner, sharing), KubeletCpus(), {}, {})
    of_owner = decision.pods["a"]
    assert (of_owner.of("main").housekeeping, of_owner.of("dpdk").housekeeping) == ("3", "3")
    assert decision.pods["b"].each.housekeeping == ""
    other = mixing(pod("a", "LSR", "2-6"), **{CRIO_INTERRUPTS: "housekeeping"})
    decision = decide(smt, (other,), KubeletCpus(), {}, {})
    assert decision.pods["a"].of("main").housekeeping == "2-3"


@pytest.mark.parametrize(
    "names",
    [
        "x" * (bounds.POD_VALUE_BYTES + 1),
        ",".join(map(str, range(257))),
        "dpdk,../dpdk",
        "x" * 64,
    ],
)
def test_an_annotation_that_cannot_be_read_mixes_nothing_and_is_reported(names: str) -> None:
    decision = decided(mixing(pod("a", "LSR", "0-1"), names))
    assert decision.pods["a"].containers == {}
    (refusal,) = decision.refusals
    assert (refusal.key, refusal.held) == (MIXED_CONTAINERS, "0-1")


owners = st.lists(
    st.tuples(
        st.sampled_from(["LSE", "LSR"]),
        st.sets(st.integers(0, 7), min_size=1, max_size=3),
        st.booleans(),
    ),
    max_size=4,
)


@given(owners, owners)
def test_own_cpus_are_nobody_elses_while_owners_come_and_go(
    before: list[tuple[str, set[int], bool]], after: list[tuple[str, set[int], bool]]
) -> None:
    sharing = (pod("ls", "LS"), pod("be", "BE"))
    for owning in (before, after):
        pods = [pod(f"o{n}", qos, str(CpuSet(cpus))) for n, (qos, cpus, _) in enumerate(owning)]
        mixed = [
            mixing(each) if mixes else each
            for each, (_, _, mixes) in zip(pods, owning, strict=True)
        ]
        decision = decided(*mixed, *sharing)
        ls = pool_cpus(decision.pools["ls"])
        owned = {owner.uid: owner.cpus for owner in decision.owners}
        for uid, of_pod in decision.pods.items():
            for wanted in (of_pod.each, *of_pod.containers.values()):
                cpus = CpuSet.parse(wanted.cpuset or "")
                others = union(of for other, of in owned.items() if other != uid)
                assert uid == "be" or not cpus & others
                assert wanted.own == (owned.get(uid, EMPTY) if wanted.exclusive else EMPTY)
                if wanted.shared is not None:
                    assert cpus == owned[uid] | ls
