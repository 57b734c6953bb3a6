"""Owners and pools with a static kubelet: its checkpoint decides."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.annotations import SHARED_CONTAINERS
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QOS_LABEL, QoS, pool_cpus
from tests.builders import machine, pod

RESERVED = PoolRules(kubelet_reserved=CpuSet([0]))


def checkpoint(**pods: dict[str, str]) -> KubeletCpus:
    """The checkpoint of a static kubelet, by pod uid and container."""
    parsed = {
        uid: {name: CpuSet.parse(text) for name, text in of_pod.items()}
        for uid, of_pod in pods.items()
    }
    return KubeletCpus(True, {uid: union(of.values()) for uid, of in parsed.items()}, parsed)


def decided(
    kubelet: KubeletCpus,
    *pods: Pod,
    topology: Topology | None = None,
    before: dict[str, str] | None = None,
    running: dict[str, str] | None = None,
    rules: PoolRules = RESERVED,
) -> Decision:
    owned, runs = (
        {uid: CpuSet.parse(text) for uid, text in (each or {}).items()}
        for each in (before, running)
    )
    return decide(topology or machine(2, 4), pods, kubelet, owned, runs, rules)


def owned(decision: Decision) -> dict[str, str]:
    return {owner.uid: owner.cpuset for owner in decision.owners}


def guaranteed(name: str, qos: str = "", cpuset: str = "") -> Pod:
    return pod(name, qos, cpuset, kube_class="guaranteed")


@pytest.mark.parametrize(("qos", "be"), [("LSE", "0-3,6-7"), ("LSR", "0-7")])
def test_claim_that_differs_from_the_checkpoint_is_refused(qos: str, be: str) -> None:
    decision = decided(checkpoint(a={"main": "4-5"}), guaranteed("a", qos, "2-3"), pod("b", "LS"))
    main = decision.pods["a"].of("main")
    assert (main.cpuset, main.exclusive, main.kubelet, main.blocked) == ("4-5", True, True, "")
    assert owned(decision) == {"a": "4-5"}
    assert decision.pods["b"].each.cpuset == "0-3,6-7"
    assert str(pool_cpus(decision.pools["be"])) == be
    (refusal,) = decision.refusals
    assert (refusal.claimed, refusal.held) == ("2-3", "4-5")
    assert refusal.reason == "the kubelet assigned it CPUs 4-5"


def test_claim_that_agrees_with_the_checkpoint_is_not_refused() -> None:
    kubelet = checkpoint(a={"main": "4", "other": "5"})
    decision = decided(kubelet, guaranteed("a", "LSE", "4-5"))
    assert decision.refusals == ()
    assert [decision.pods["a"].of(name).cpuset for name in ("main", "other")] == ["4", "5"]
    assert owned(decision) == {"a": "4-5"}


@pytest.mark.parametrize("shares", [2048, 1536])
def test_container_keeps_its_cpus_when_the_kubelet_releases_them_while_it_runs(shares: int) -> None:
    main = Container("1", "main", ContainerState.RUNNING, shares=shares)
    claimant = msgspec.structs.replace(guaranteed("a", "LSE", "2-3"), containers=(main,))
    runs = {"a": "4-5", "b": "0-3,6-7"}
    before = owned(decided(checkpoint(a={"main": "4-5"}), claimant, pod("b", "LS"), running=runs))
    after = decided(checkpoint(), claimant, pod("b", "LS"), before=before, running=runs)
    released = shares == 2048
    assert owned(after) == {"a": "4-5" if released else "2-3"}, "the kubelet assigns whole CPUs"
    assert [each.reason for each in after.refusals] == ["the kubelet assigned it CPUs 4-5"][
        :released
    ]
    again = decided(checkpoint(c={"main": "4-5"}), claimant, guaranteed("c"), before=owned(after))
    assert owned(again) == {"a": "2-3", "c": "4-5"}


def test_plain_guaranteed_container_has_the_checkpoints_cpus_and_its_own_limits() -> None:
    decision = decided(checkpoint(a={"main": "4-5"}), guaranteed("a"))
    main = decision.pods["a"].of("main")
    assert (main.resources, main.exclusive) == (LinuxResources("4-5"), True)
    assert decision.pods["a"].group.quota is None
    assert str(pool_cpus(decision.pools["be"])) == "0-3,6-7"


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
def test_quota_of_an_owner_by_class_is_lifted(qos: str) -> None:
    decision = decided(checkpoint(a={"main": "4-5"}), guaranteed("a", qos))
    assert decision.pods["a"].of("main").resources.quota == NO_QUOTA
    assert decision.pods["a"].group.quota == NO_QUOTA


def test_claim_without_a_checkpoint_entry_gets_the_cpus_that_the_kubelet_did_not_assign() -> None:
    whole = decided(checkpoint(), pod("a", "LSE", "2-3"))
    assert (owned(whole), whole.refusals) == ({"a": "2-3"}, ())
    later = checkpoint(b={"main": "3"})
    part = decided(later, pod("a", "LSE", "2-3"), guaranteed("b"), before=owned(whole))
    assert owned(part) == {"a": "2", "b": "3"}
    (refusal,) = part.refusals
    assert (refusal.uid, refusal.claimed, refusal.held) == ("a", "2-3", "2")
    assert refusal.reason == "CPUs 3 are assigned by the kubelet"
    last = checkpoint(b={"main": "3"}, c={"main": "2"})
    none = decided(last, pod("a", "LSE", "2-3"), guaranteed("b"), before=owned(part))
    assert owned(none) == {"b": "3"}
    assert none.pods["a"].each.cpuset == "0-1,4-7"
    assert none.refusals[0].held == ""


@pytest.mark.parametrize("rules", [RESERVED, PoolRules()])
@pytest.mark.parametrize("qos", ["LSE", "LSR"])
def test_owner_loses_its_cpus_when_sharing_pods_have_no_others(qos: str, rules: PoolRules) -> None:
    claimant, ls_pod = pod("a", qos, "0-1", created_at=1), pod("b", "LS", created_at=2)
    before = {"a": "0-1"}
    running = {"a": "0-1", "b": "2-7"}
    kubelet = checkpoint(c={"main": "2-7"})
    decision = decided(
        kubelet, claimant, ls_pod, guaranteed("c"), before=before, running=running, rules=rules
    )
    assert owned(decision) == {"c": "2-7"}
    assert [decision.pods[uid].each.cpuset for uid in ("a", "b")] == ["0-1", "0-1"]
    (refusal,) = decision.refusals
    assert (refusal.uid, refusal.claimed, refusal.held) == ("a", "0-1", "")
    assert refusal.reason == "CPUs 0-1 are all that pod ns/b and others share"


def test_owner_keeps_the_last_cpus_when_no_pod_runs_on_the_pool() -> None:
    kubelet = checkpoint(c={"main": "2-7"})
    pods = (pod("a", "LSE", "0-1"), pod("b", "LS"), guaranteed("c"))
    decision = decided(kubelet, *pods, before={"a": "0-1"}, running={"a": "0-1"})
    assert owned(decision) == {"a": "0-1", "c": "2-7"}
    assert decision.pods["b"].each.blocked


def test_container_without_a_checkpoint_entry_shares_while_another_has_one() -> None:
    kubelet = checkpoint(a={"main": "4-5"})
    decision = decided(kubelet, guaranteed("a", "LSE", "2-4"), pod("b", "LSE", "0-3,6-7"))
    assert decision.pods["a"].of("part").cpuset == "0-3,6-7"
    assert "b" not in owned(decision), "the container that shares keeps its pool"


def test_sidecar_of_the_annotation_has_the_cpus_that_the_kubelet_assigned() -> None:
    claimant = guaranteed("a", "LSE", "2-3")
    claimant.annotations[SHARED_CONTAINERS] = "envoy"
    decision = decided(checkpoint(a={"main": "4", "envoy": "5"}), claimant)
    assert decision.pods["a"].of("envoy").cpuset == "5"


def test_cpu_with_two_checkpoint_entries_belongs_to_the_older_pod() -> None:
    kubelet = checkpoint(a={"main": "2-3"}, b={"main": "3-4"}, deleted={"main": "2"})
    young = pod("a", kube_class="guaranteed", created_at=2)
    old = pod("b", kube_class="guaranteed", created_at=1)
    decision = decided(kubelet, young, old)
    assert owned(decision) == {"a": "2", "b": "3-4"}
    assert decision.pods["a"].of("main").cpuset == "2"


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Topology, list[Pod], KubeletCpus, PoolRules]:
    """Pods that a static kubelet admitted one by one, with claims that it does not know."""
    topology = machine(draw(st.integers(1, 3)), draw(st.integers(2, 4)))
    reserved = CpuSet([0])
    free = sorted(topology.online - reserved)
    claims = st.frozensets(st.integers(0, len(topology.cpus)), max_size=3).map(CpuSet).map(str)
    pods, entries = [], {}
    for number in range(draw(st.integers(0, 7))):
        uid = f"p{number}"
        kube_class = draw(st.sampled_from(["guaranteed", "burstable", "besteffort"]))
        qos = draw(st.sampled_from(["", *QoS]))
        pods.append(
            pod(uid, qos, draw(claims), kube_class=kube_class, created_at=draw(st.integers(0, 2)))
        )
        if kube_class == "guaranteed":
            of_pod = {}
            for name in draw(st.sampled_from([(), ("main",), ("main", "other")])):
                count = draw(st.integers(1, 2))
                taken = [
                    free.pop(draw(st.integers(0, len(free) - 1))) for _ in range(count) if free
                ]
                if taken:
                    of_pod[name] = str(CpuSet(taken))
            entries[uid] = of_pod
    rules = PoolRules(kubelet_reserved=reserved, owners_on_reserved=draw(st.booleans()))
    return topology, pods, checkpoint(**{uid: of for uid, of in entries.items() if of}), rules


@settings(max_examples=300)
@given(nodes(), st.data())
def test_cpus_that_the_kubelet_assigned_belong_to_no_other_pod(
    case: tuple[Topology, list[Pod], KubeletCpus, PoolRules], data: st.DataObject
) -> None:
    topology, pods, kubelet, rules = case
    cpus = st.frozensets(st.integers(0, len(topology.cpus)), max_size=3).map(CpuSet)
    before = {each.uid: data.draw(cpus) for each in pods if data.draw(st.booleans())}
    decision = decide(topology, tuple(pods), kubelet, before, {}, rules)
    assert decide(topology, tuple(reversed(pods)), kubelet, before, {}, rules) == decision
    own = [owner.cpus for owner in decision.owners]
    assert sum(map(len, own)) == len(union(own)), "a CPU has two owners"
    assert not union(own) & pool_cpus(decision.pools["ls"])
    with_be = union(owner.cpus for owner in decision.owners if owner.qos is not QoS.LSE)
    assert not (union(own) - with_be) & pool_cpus(decision.pools["be"])
    labels = {each.uid: each.labels.get(QOS_LABEL) for each in pods}
    claiming = {each.uid for each in pods if each.annotations}
    for uid, of_pod in kubelet.containers.items():
        for name, cpus_of in of_pod.items():
            wanted = decision.pods[uid].of(name)
            if labels[uid] in ("LS", "BE") and uid not in claiming:
                assert not wanted.exclusive
                continue
            assert (wanted.cpuset, wanted.exclusive) == (str(cpus_of), True)
            assert not cpus_of & pool_cpus(decision.pools["ls"])
    for owner in decision.owners:
        assert not owner.cpus <= rules.kubelet_reserved, "all CPUs of an owner are reserved"
    for each in pods:
        of_pod = decision.pods[each.uid]
        held = CpuSet.parse(of_pod.each.cpuset or "")
        assert held or of_pod.each.blocked or kubelet.containers.get(each.uid)
        if of_pod.each.exclusive:
            assert not held & (union(kubelet.by_uid.values()) or EMPTY)
        claim = CpuSet.parse((each.annotations and decision_claim(each)) or "")
        of_owner = CpuSet.parse(owned(decision).get(each.uid, ""))
        if claim and of_owner != claim:
            assert any(refusal.uid == each.uid for refusal in decision.refusals)


def decision_claim(each: Pod) -> str:
    (text,) = each.annotations.values()
    return text.partition('"cpuset": "')[2].partition('"')[0]
