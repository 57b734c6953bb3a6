import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate import reserved_cpus
from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import DedicatedCpus, KubeletCpus, PoolRules
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.pod.annotations import SHARED_CONTAINERS, resource_status
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS, pool_cpus
from tests.builders import machine, pod, running


def decided(
    topology: Topology,
    *pods: Pod,
    kubelet: KubeletCpus | None = None,
    owned_before: tuple[str, ...] = (),
    running_on: dict[str, str] | None = None,
    rules: PoolRules | None = None,
) -> Decision:
    running = {uid: CpuSet.parse(text) for uid, text in (running_on or {}).items()}
    kubelet, rules = kubelet or KubeletCpus(), rules or PoolRules()
    owned = {
        each.uid: claim_of(each) & topology.online for each in pods if each.uid in owned_before
    }
    return decide(topology, pods, kubelet, owned, running, rules)


def system_rules(
    cpus: CpuSet,
    node_reserved: CpuSet = EMPTY,
    kubelet_reserved: CpuSet = EMPTY,
    *,
    exclusive: bool = True,
) -> PoolRules:
    """Rules that give the CPUs to SYSTEM pods."""
    dedicated = {"system": DedicatedCpus(cpus, exclusive)}
    return PoolRules(kubelet_reserved, node_reserved=node_reserved, dedicated=dedicated)


RESERVED = CpuSet.parse("0-1")


def claim_of(pod: Pod) -> CpuSet:
    return resource_status(pod.annotations).cpus()


def wanted(decision: Decision) -> dict[str, str | None]:
    return {uid: each.each.cpuset for uid, each in decision.pods.items()}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (
            [pod("a", "LSR", "1"), pod("b", "LS"), pod("c", "BE")],
            {"a": "1", "b": "0,2-3", "c": "0-3"},
        ),
        (
            [
                pod("a", kube_class="besteffort"),
                pod("b", kube_class="guaranteed"),
                pod("c", "LSR", "0"),
            ],
            {"a": "0-3", "b": "1-3", "c": "0"},
        ),
        ([pod("a", "unknown"), pod("b", "LSE")], {"a": "0-3", "b": "0-3"}),
    ],
    ids=["LSR leaves only the LS pool", "Kubernetes' classes", "unknown, and LSE without CPUs"],
)
def test_pools_and_owners(pods: list[Pod], expected: dict[str, str]) -> None:
    for order in itertools.permutations(pods):
        decision = decided(machine(), *order)
        assert wanted(decision) == expected
        assert [str(pool_cpus(decision.pools[each])) for each in ("ls", "be")] == [
            expected["b"],
            "0-3",
        ]
        assert not decision.refusals


def test_cpus_of_an_unlisted_numa_node_are_shared_too() -> None:
    topology = machine(2, 2)
    listed = msgspec.structs.replace(topology, numa_nodes=topology.numa_nodes[1:])
    assert str(pool_cpus(decided(listed).pools["ls"])) == "0-3"


def test_pod_bound_to_numa_nodes_gets_their_pools() -> None:
    topology = machine(3, 2)
    bound, best = pod("a", "LS", numa_nodes=(0, 2)), pod("b", "BE", numa_nodes=(1,))
    assert wanted(decided(topology, bound, best, pod("c", "LSE", "4"))) == {
        "a": "0-1,5",
        "b": "2-3",
        "c": "4",
    }
    grown = wanted(decided(topology, bound, best))
    assert grown == {"a": "0-1,4-5", "b": "2-3"}, "within their NUMA nodes"


def test_pod_bound_to_a_numa_node_without_shared_cpus_gets_the_whole_pool() -> None:
    decision = decided(machine(2, 2), pod("a", "LS", numa_nodes=(0,)), pod("b", "LSE", "0-1"))
    assert wanted(decision) == {"a": "2-3", "b": "0-1"}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "Expected `object"),
        ('{"cpuset": "2,9"}', "CPUs 9 do not exist"),
        ('{"cpuset": "3"}', "CPUs 3 belong to pod ns/first"),
        ('{"numaNodeResources": [{"node": "x"}]}', "$.numaNodeResources[0].node"),
    ],
)
def test_invalid_claim_is_refused_with_its_reason_and_the_pod_shares(
    status: str, reason: str
) -> None:
    first = pod("first", "LSE", "3")
    decision = decided(machine(), first, pod("bad", "LSE", status=status, created_at=1))
    (refusal,) = decision.refusals
    assert (refusal.title, refusal.key) == ("ns/bad", "scheduling.koordinator.sh/resource-status")
    assert reason in refusal.reason
    assert wanted(decision) == {"first": "3", "bad": "0-2"}


def test_the_older_pod_has_precedence_and_an_owner_keeps_its_cpus() -> None:
    old, young = pod("z", "LSE", "1", created_at=1), pod("a", "LSE", "1", created_at=2)
    assert [o.uid for o in decided(machine(), old, young).owners] == ["z"]
    assert [o.uid for o in decided(machine(), old, young, owned_before=("a",)).owners] == ["a"]


def test_after_a_restart_a_pod_that_runs_on_its_cpus_keeps_them() -> None:
    old, young = pod("z", "LSE", "1", created_at=1), pod("a", "LSE", "1", created_at=2)
    decision = decided(machine(), old, young, running_on={"a": "1", "z": "0,2-3"})
    assert [owner.uid for owner in decision.owners] == ["a"]


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (
            '[{"node": 0, "resources": {"cpu": "2"}}, {"node": 7, "resources": {"cpu": "2"}}]',
            "NUMA nodes 7 do not exist",
        ),
        (
            '[{"node": 0, "resources": {"cpu": "two"}}]',
            "numaNodeResources of node 0, 'cpu': 'two' is not a quantity",
        ),
    ],
)
def test_invalid_numa_nodes_are_refused_with_a_reason_and_the_pod_shares(
    resources: str, reason: str
) -> None:
    status = f'{{"numaNodeResources": {resources}}}'
    decision = decided(machine(2, 2), pod("lost", "LS", status=status))
    (refusal,) = decision.refusals
    assert (refusal.title, refusal.reason) == ("ns/lost", reason)
    assert decision.pods["lost"].refused == reason
    assert decision.pods["lost"].each.cpuset


@pytest.mark.parametrize(("qos", "refused"), [("LS", True), ("BE", True), (None, False)])
def test_claim_that_empties_a_pool_in_use_is_refused(qos: str | None, refused: bool) -> None:
    sharing = [pod("s", qos)] if qos else []
    decision = decided(machine(), pod("a", "LSE", "0-3"), *sharing)
    assert bool(decision.refusals) == refused
    if refused:
        assert "all that pod ns/s and others share" in decision.refusals[0].reason


def test_lsr_may_own_the_last_cpu_of_a_be_pod_because_they_share_it() -> None:
    decision = decided(machine(), pod("a", "LSR", "0-3"), pod("b", "BE"))
    assert wanted(decision) == {"a": "0-3", "b": "0-3"}


def test_a_later_sharing_pod_without_a_cpu_is_blocked_and_the_owner_keeps_its_cpus() -> None:
    decision = decided(machine(), pod("a", "LSE", "0-3"), pod("b", "LS"), owned_before=("a",))
    assert wanted(decision) == {"a": "0-3", "b": None}
    assert decision.pods["b"].each.blocked == "no CPU is left for it: 0-3 belong to pod ns/a"


def test_owner_that_claims_all_cpus_leaves_some_to_a_refused_pod() -> None:
    owner, other = pod("a", "LSE", "0-3"), pod("b", "LSE", "0", created_at=1)
    running = {"a": CpuSet([0]), "b": CpuSet.parse("1-3")}
    decision = decide(machine(), (owner, other), KubeletCpus(), {"a": CpuSet([0])}, running)
    assert wanted(decision) == {"a": "0", "b": "1-3"}
    assert [(each.uid, each.reason) for each in decision.refusals] == [
        ("a", "CPUs 0-3 are all that pod ns/b and others share"),
        ("b", "CPUs 0 belong to pod ns/a"),
    ]


def test_a_refusal_names_the_same_owner_in_any_order_of_claims() -> None:
    pods = pod("a", "LSE", "0"), pod("b", "LSE", "2"), pod("c", "LSE", "0-3")
    for owned_before in ((), ("a",), ("b",), ("a", "b")):
        decision = decided(machine(), *pods, owned_before=owned_before)
        assert [(each.uid, each.reason) for each in decision.refusals] == [
            ("c", "CPUs 0 belong to pod ns/a")
        ]


def reserved_with(*others: Pod) -> tuple[Topology, list[Pod], PoolRules, str]:
    pods = [pod("a", "LSR", "0-2" if others else "0-3"), *others]
    return machine(), pods, PoolRules(RESERVED), "CPUs 0-1 are reserved by the kubelet"


@pytest.mark.parametrize(
    ("topology", "pods", "rules", "reason"),
    [
        (
            machine(1, 2),
            [pod("a", "LSE", "0"), pod("b", "LSE", "1", created_at=1), pod("c", "LS")],
            PoolRules(),
            "CPUs 1 are all that pod ns/c and others share",
        ),
        (machine(), [pod("p", "LSE", "0-4")], PoolRules(), "CPUs 4 do not exist"),
        (machine(1, 1), [pod("p", "LSE", "0-1")], PoolRules(), "CPUs 1 do not exist"),
        reserved_with(),
        reserved_with(pod("b", "BE"), pod("c", "LSE", "3")),
        (
            machine(),
            [pod("s", "SYSTEM", "0-1")],
            system_rules(RESERVED),
            "CPUs 0-1 belong to SYSTEM pods",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_refused_pod_is_still_refused_after_a_restart(
    topology: Topology, pods: list[Pod], rules: PoolRules, reason: str
) -> None:
    """It runs on its pool, which may be equal to its claim."""
    first = decided(topology, *pods, rules=rules)
    assert [each.reason for each in first.refusals] == [reason]
    running = {uid: cpuset for uid, cpuset in wanted(first).items() if cpuset}
    for owned_before in ((), tuple(owner.uid for owner in first.owners)):
        again = decided(topology, *pods, owned_before=owned_before, running_on=running, rules=rules)
        assert again == first


def test_isolated_cpus_are_never_shared_and_owned_on_request() -> None:
    decision = decided(machine(isolated="2-3"), pod("a", "LS"), pod("b", "LSE", "2"))
    assert wanted(decision) == {"a": "0-1", "b": "2"}


def test_claim_gets_its_online_cpus_regardless_of_the_age_of_pods() -> None:
    topology = machine(1, 4, offline="2-3")
    partly, wholly = pod("a", "LSE", "1-2"), pod("b", "LSE", "3")
    decision = decided(topology, partly, wholly)
    assert wanted(decision) == {"a": "1", "b": "0"}
    assert [each.reason for each in decision.refusals] == ["CPUs 3 are offline"]


def test_owner_of_an_offline_cpu_keeps_the_others_after_a_restart_too() -> None:
    topology = msgspec.structs.replace(machine(), offline=CpuSet([4]))
    decision = decided(topology, pod("a", "LSE", "3-4"), running_on={"a": "3"})
    assert wanted(decision) == {"a": "3"}


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Topology, list[Pod], KubeletCpus]:
    topology = machine(
        draw(st.integers(1, 3)), draw(st.integers(1, 4)), offline=draw(st.sampled_from(["", "1"]))
    )
    count = len(topology.cpus)
    cpus = st.frozensets(st.integers(0, count), max_size=3).map(lambda ids: str(CpuSet(ids)))
    pods = [
        pod(
            f"p{i}",
            draw(st.sampled_from(["", *QoS])),
            draw(cpus),
            kube_class=draw(st.sampled_from(["guaranteed", "burstable", "besteffort", None])),
            created_at=draw(st.integers(0, 3)),
        )
        for i in range(draw(st.integers(0, 7)))
    ]
    assignments = draw(
        st.dictionaries(st.sampled_from([f"p{i}" for i in range(8)]), cpus, max_size=2)
    )
    by_uid = {uid: CpuSet.parse(text) & topology.online for uid, text in assignments.items()}
    return topology, pods, KubeletCpus(draw(st.booleans()), by_uid)


def check_invariants(topology: Topology, decision: Decision, pods: list[Pod]) -> None:
    """Invariants 1, 2 and 7 of the design, as far as a decision shows them."""
    owned = [owner.cpus for owner in decision.owners]
    assert sum(map(len, owned)) == len(union(owned)), "a CPU has two owners"
    assert not union(owned) & pool_cpus(decision.pools["ls"])
    lse = union(owner.cpus for owner in decision.owners if owner.qos is QoS.LSE)
    assert not lse & pool_cpus(decision.pools["be"])
    assert all(pool.cpus for pool in (*decision.pools["ls"], *decision.pools["be"]))
    for of_pod in decision.pods.values():
        each = of_pod.each
        assert each.cpuset != ""
        assert each.cpuset is None or CpuSet.parse(each.cpuset) <= topology.online
    assert decision.pods.keys() == {each.uid for each in pods}


@given(nodes())
def test_invariants_hold_and_order_does_not_matter(
    case: tuple[Topology, list[Pod], KubeletCpus],
) -> None:
    topology, pods, kubelet = case
    decision = decided(topology, *pods, kubelet=kubelet)
    check_invariants(topology, decision, pods)
    assert decided(topology, *reversed(pods), kubelet=kubelet) == decision


@settings(max_examples=300)
@given(nodes(), st.data())
def test_a_restart_does_not_change_the_decision(
    case: tuple[Topology, list[Pod], KubeletCpus], data: st.DataObject
) -> None:
    """Pods start one by one, each on its decided CPUs. Then the agent loses its state."""
    topology, pods, _ = case
    present: list[Pod] = []
    owned: tuple[str, ...] = ()
    running: dict[str, str] = {}
    for moment, each in enumerate(pods):
        present.append(each)
        decision = decided(topology, *present, owned_before=owned, running_on=running)
        check_invariants(topology, decision, present)
        owned = tuple(owner.uid for owner in decision.owners)
        running = {uid: cpuset for uid, cpuset in wanted(decision).items() if cpuset}
        if moment and data.draw(st.booleans()):
            deleted = data.draw(st.sampled_from(present))
            present.remove(deleted)
            running.pop(deleted.uid, None)
            owned = tuple(uid for uid in owned if uid != deleted.uid)
    steady = decided(topology, *present, owned_before=owned, running_on=running)
    running = {uid: cpuset for uid, cpuset in wanted(steady).items() if cpuset}
    if any(each.each.blocked or each.refused for each in steady.pods.values()):
        return  # the winner of a conflict is in the last snapshot, not in the cgroups
    assert decided(topology, *present, running_on=running) == steady


@given(nodes(), st.data())
def test_no_present_owner_loses_all_its_cpus(
    case: tuple[Topology, list[Pod], KubeletCpus], data: st.DataObject
) -> None:
    """For any claims of that pod and of other pods."""
    topology, pods, kubelet = case
    claiming = [each for each in pods if claim_of(each)]
    by_kubelet = reserved_cpus.kubelet_assignments(topology, tuple(pods), kubelet)
    cpus = data.draw(st.permutations(sorted(topology.online - by_kubelet.named)))
    owned = {each.uid: CpuSet([cpu]) for each, cpu in zip(claiming, cpus, strict=False)}
    decision = decide(topology, tuple(pods), kubelet, owned, {})
    check_invariants(topology, decision, pods)
    assert owned.keys() <= {owner.uid for owner in decision.owners}
    kept = {each.uid for each in decision.owners if each.cpus == owned.get(each.uid)}
    moved = [each for each in claiming if each.uid in kept and claim_of(each) != owned[each.uid]]
    refused = {each.uid for each in decision.refusals}
    assert all(each.uid in refused or claim_of(each) & topology.offline for each in moved)


def test_owner_that_cannot_move_keeps_its_cpu_despite_an_older_claim() -> None:
    older, owner = pod("a", "LSR", "1", created_at=1), pod("b", "LSR", "0", created_at=2)
    rules = PoolRules(kubelet_reserved=CpuSet([0]))
    decision = decide(
        machine(), (older, owner), KubeletCpus(), {"b": CpuSet([1])}, {"b": CpuSet([1])}, rules
    )
    assert [(each.uid, each.cpuset) for each in decision.owners] == [("b", "1")]
    assert [(each.uid, each.reason) for each in decision.refusals] == [
        ("a", "CPUs 1 belong to pod ns/b"),
        ("b", "CPUs 0 are reserved by the kubelet"),
    ]


def test_pods_own_reserved_cpus_if_that_is_configured() -> None:
    rules = PoolRules(RESERVED, owners_on_reserved=True)
    assert wanted(decided(machine(), pod("a", "LSE", "1-2"), rules=rules)) == {"a": "1-2"}


def test_suppressed_be_pods_share_a_part_of_their_pool() -> None:
    topology = machine(2, 4)
    be_cpus = CpuSet.parse("0-1")
    decision = decide(
        topology, (pod("a", "BE"),), KubeletCpus(), {}, {}, PoolRules(be_cpus=be_cpus)
    )
    assert [str(pool.cpus) for pool in decision.pools["be"]] == ["0-1"]
    assert [str(pool.cpus) for pool in decision.pools["ls"]] == ["0-3", "4-7"]
    assert decision.pods["a"].each.cpuset == "0-1"
    assert decision.be_pool == CpuSet.parse("0-7")


def test_a_suppressed_be_pod_that_is_bound_to_a_numa_node_keeps_a_cpu_there() -> None:
    bound = pod("a", "BE", numa_nodes=(1,))
    rules = PoolRules(be_cpus=CpuSet.parse("0-1"))
    decision = decide(machine(2, 4), (bound,), KubeletCpus(), {}, {}, rules)
    assert decision.pods["a"].each.cpuset == "4"
    assert [str(pool.cpus) for pool in decision.pools["be"]] == ["0-1", "4"]


def test_cpus_that_are_not_in_the_be_pool_suppress_nothing() -> None:
    rules = PoolRules(be_cpus=CpuSet.parse("0"))
    owner = pod("a", "LSE", "0")
    decision = decide(machine(1, 4), (owner,), KubeletCpus(), {}, {}, rules)
    assert [str(pool.cpus) for pool in decision.pools["be"]] == ["1-3"]


@pytest.mark.parametrize(
    ("pods", "be"),
    [
        ([pod("b", "BE", cpu_milli=2000)], "0-1"),
        ([pod("b", "BE", cpu_milli=2001)], "0-3"),
        ([pod("b", "BE"), pod("l", "LS", cpu_milli=9000)], "0-1"),
        ([pod("b", "BE", cpu_milli=1500), pod("a", "LSE", "0")], "1-3"),
        ([pod("b", "BE"), pod("a", "LSE", "0-1")], "2-3"),
    ],
    ids=["fits", "does not fit", "LS does not matter", "one CPU less", "all of them are owned"],
)
def test_be_pods_run_on_the_reserved_cpus_first(pods: list[Pod], be: str) -> None:
    rules = PoolRules(RESERVED, owners_on_reserved=True, be_on_reserved=True)
    decision = decided(machine(), *pods, rules=rules)
    assert decision.pods["b"].each.cpuset == be
    assert str(pool_cpus(decision.pools["be"])) == be


@pytest.mark.parametrize(("node", "pool"), [(0, "0-1"), (1, "0-7")])
def test_a_be_pod_of_a_numa_node_without_reserved_cpus_keeps_its_node(node: int, pool: str) -> None:
    bound = pod("bound", "BE", numa_nodes=(node,))
    rules = PoolRules(RESERVED, be_on_reserved=True)
    decision = decided(machine(2, 4), bound, pod("b", "BE"), rules=rules)
    assert decision.pods["bound"].each.cpuset == ("0-1", "4-7")[node]
    assert decision.pods["b"].each.cpuset == pool


def test_reserved_cpus_stay_in_the_ls_pool() -> None:
    rules = PoolRules(RESERVED, be_on_reserved=True)
    assert decided(machine(), pod("l", "LS"), rules=rules).pods["l"].each.cpuset == "0-3"


def names(decision: Decision) -> tuple[str, str, str]:
    return (
        str(pool_cpus(decision.pools["ls"])),
        str(pool_cpus(decision.pools["be"])),
        str(pool_cpus(decision.pools["system"])),
    )


KEPT = {"node_reserved": CpuSet([0]), "kubelet_reserved": CpuSet([0, 3])}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (system_rules(CpuSet([1]), **KEPT), ("2-3", "2-3", "1")),
        (PoolRules(**KEPT, be_on_reserved=True), ("1-3", "3", "")),
        (system_rules(CpuSet([3, 9])), ("0-2", "0-2", "3")),
    ],
    ids=["all kinds of reservation", "BE on what only the kubelet reserves", "not all exist"],
)
def test_cpus_that_the_node_reserves_are_in_no_pool(
    rules: PoolRules, expected: tuple[str, str, str]
) -> None:
    assert names(decided(machine(), rules=rules)) == expected


@pytest.mark.parametrize(
    ("rules", "cpuset"),
    [
        pytest.param(system_rules(RESERVED), "0-1", id="known"),
        pytest.param(system_rules(RESERVED, exclusive=False), "0-1", id="shared"),
        pytest.param(PoolRules(), "0-3", id="unknown"),
        pytest.param(system_rules(CpuSet([9])), "0-3", id="not on this machine"),
    ],
)
def test_system_pod_runs_on_the_cpus_of_its_class(rules: PoolRules, cpuset: str) -> None:
    decision = decided(machine(), pod("s", "SYSTEM"), rules=rules)
    assert wanted(decision) == {"s": cpuset}


def test_system_pod_that_is_bound_to_numa_nodes_gets_their_pools() -> None:
    bound = pod("s", "SYSTEM", numa_nodes=(1,))
    assert wanted(decided(machine(2, 2), bound, rules=system_rules(RESERVED))) == {"s": "2-3"}


def test_system_pods_do_not_run_on_owned_cpus() -> None:
    rules = system_rules(RESERVED, exclusive=False)
    pods = pod("s", "SYSTEM"), pod("a", "LSE", "0")
    assert wanted(decided(machine(), *pods, rules=rules)) == {"s": "1", "a": "0"}
    kubelet = KubeletCpus(True, {"deleted": CpuSet([1])})
    assert wanted(decided(machine(), pods[0], kubelet=kubelet, rules=rules)) == {"s": "0"}


def test_claim_of_all_cpus_of_system_pods_is_refused_while_a_system_pod_runs() -> None:
    rules = system_rules(RESERVED, exclusive=False)
    claimant = pod("a", "LSR", "0-1")
    assert not decided(machine(), claimant, rules=rules).refusals
    (refusal,) = decided(machine(), claimant, pod("s", "SYSTEM"), rules=rules).refusals
    assert refusal.reason == "CPUs 0-1 are all that pod ns/s and others share"


def test_system_pods_whose_cpus_are_owned_count_among_those_on_the_ls_pool() -> None:
    rules = system_rules(CpuSet([0]), exclusive=False)
    pods = pod("s", "SYSTEM"), pod("a", "LSE", "0"), pod("b", "LSE", "1-3")
    decision = decided(machine(), *pods, owned_before=("a",), rules=rules)
    assert wanted(decision) == {"s": "1-3", "a": "0", "b": "1-3"}
    assert decision.pods["b"].refused == "CPUs 1-3 are all that pod ns/s and others share"


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (PoolRules(RESERVED), "CPUs 1 are reserved by the kubelet"),
        (PoolRules(node_reserved=RESERVED), "CPUs 1 are reserved by the node"),
        (system_rules(RESERVED), "CPUs 1 belong to SYSTEM pods"),
    ],
)
def test_no_pod_owns_reserved_cpus_unless_it_already_does(
    qos: str, rules: PoolRules, reason: str
) -> None:
    owner = pod("a", qos, "1-2")
    refused = decided(machine(), owner, rules=rules)
    assert [each.reason for each in refused.refusals] == [reason]
    assert not refused.owners
    keeps = decided(machine(), owner, owned_before=("a",), rules=rules)
    runs = decided(machine(), owner, running_on={"a": "1-2"}, rules=rules)
    assert wanted(keeps) == wanted(runs) == {"a": "1-2"}


def test_when_the_node_reserves_every_cpu_all_pods_are_blocked() -> None:
    rules = PoolRules(node_reserved=CpuSet(range(4)))
    decision = decided(machine(), pod("a", "LS"), pod("b", "BE"), rules=rules)
    assert names(decision) == ("", "", "")
    assert wanted(decision) == {"a": None, "b": None}
    assert {each.each.blocked for each in decision.pods.values()} == {
        "no CPU is left for it: 0-3 are reserved for the node"
    }


def test_isolated_cpus_are_used_for_system_pods_only_if_configured() -> None:
    rules = system_rules(CpuSet([3]), exclusive=False)
    assert names(decided(machine(isolated="2-3"), rules=rules)) == ("0-1", "0-1", "3")


def test_quota_is_lifted_only_for_pods_that_own_cpus() -> None:
    kubelet = KubeletCpus(True, {"g": CpuSet([3])})
    pods = (
        pod("a", "LSE", "0"),
        pod("b", "LS", "1"),
        pod("c", "LS"),
        pod("d", "LSR", "0"),
        pod("g", kube_class="guaranteed"),
    )
    decision = decided(machine(), *pods, owned_before=("a",), kubelet=kubelet)
    assert [uid for uid, each in decision.pods.items() if each.exclusive] == ["a", "b"]


@pytest.mark.parametrize("qos", ["", "LSE", "LSR", "SYSTEM", "LS", "BE"])
def test_static_kubelet_places_guaranteed_pods_except_those_labelled_ls_or_be(qos: str) -> None:
    kubelet = KubeletCpus(True, {"g": CpuSet([2])})
    decision = decided(machine(), pod("g", qos, kube_class="guaranteed"), kubelet=kubelet)
    shares = qos in ("LS", "BE")
    assert wanted(decision) == {"g": "0-3" if shares else None}
    assert str(pool_cpus(decision.pools["be"])) == ("0-3" if shares or qos == "LSR" else "0-1,3")


some_cpus = st.frozensets(st.integers(0, 8), max_size=3).map(CpuSet)
some_rules = st.builds(
    PoolRules,
    some_cpus,
    st.booleans(),
    st.booleans(),
    some_cpus,
    st.builds(DedicatedCpus, some_cpus, st.booleans()).map(lambda system: {"system": system}),
)


@given(nodes(), some_rules)
def test_invariants_hold_with_any_reservation(
    case: tuple[Topology, list[Pod], KubeletCpus], rules: PoolRules
) -> None:
    topology, pods, kubelet = case
    decision = decided(topology, *pods, kubelet=kubelet, rules=rules)
    check_invariants(topology, decision, pods)
    assert not rules.kept & pool_cpus((*decision.pools["ls"], *decision.pools["be"]))
    system = pool_cpus(decision.pools["system"])
    assert system <= rules.dedicated["system"].cpus
    assert not system & union(owner.cpus for owner in decision.owners)
    by_agent = [owner for owner in decision.owners if not owner.kubelet]
    assert not rules.kept & union(owner.cpus for owner in by_agent)
    assert decided(topology, *reversed(pods), kubelet=kubelet, rules=rules) == decision
    again = decided(
        topology,
        *pods,
        kubelet=kubelet,
        rules=rules,
        owned_before=tuple(owner.uid for owner in decision.owners),
    )
    assert again.owners == decision.owners


@pytest.mark.parametrize(("qos", "cpuset"), [("", "3"), ("BE", "2-3")])
def test_best_effort_pod_bound_to_numa_nodes_is_be_only_by_its_label(qos: str, cpuset: str) -> None:
    bound = pod("a", qos, kube_class="besteffort", numa_nodes=(1,))
    owner = pod("b", "LSR", "2")
    assert wanted(decided(machine(2, 2), bound, owner)) == {"a": cpuset, "b": "2"}


def test_the_ls_pool_is_not_emptied_while_a_best_effort_pod_runs_on_it() -> None:
    bound = pod("a", kube_class="besteffort", numa_nodes=(0,))
    (refusal,) = decided(machine(), bound, pod("b", "LSR", "0-3")).refusals
    assert refusal.reason == "CPUs 0-3 are all that pod ns/a and others share"


def test_sidecars_stay_on_the_pool_while_their_pod_owns_cpus() -> None:
    owner = pod("a", "LSR", "1")
    owner.annotations[SHARED_CONTAINERS] = "envoy, logs"
    of_pod = decided(machine(), owner).pods["a"]
    app, envoy = of_pod.of("app"), of_pod.of("envoy")
    assert (app.cpuset, app.exclusive) == ("1", True)
    assert (envoy.cpuset, envoy.exclusive) == ("0,2-3", False)
    assert of_pod.of("logs") == envoy


def test_claim_that_leaves_no_cpu_to_the_pods_sidecar_is_refused() -> None:
    owner = pod("a", "LSR", "0-3")
    owner.annotations[SHARED_CONTAINERS] = "envoy"
    (refusal,) = decided(machine(), owner).refusals
    assert refusal.reason == "CPUs 0-3 are all that pod ns/a and others share"


@pytest.mark.parametrize(
    ("each", "mems"),
    [
        pytest.param(pod("a", "LSE", "1"), "0", id="own CPUs on one NUMA node"),
        pytest.param(pod("a", "LSE", "1-2"), "0-1", id="own CPUs on two NUMA nodes"),
        pytest.param(pod("a", "LS", numa_nodes=(1,)), "1", id="bound to a NUMA node"),
        pytest.param(pod("a", "LS"), "", id="on the pools of all NUMA nodes"),
        pytest.param(pod("a", "LSE", "4"), "", id="on a NUMA node without memory"),
    ],
)
def test_memory_nodes_follow_the_cpus(each: Pod, mems: str) -> None:
    plain = machine(3, 2)
    bare = msgspec.structs.replace(plain.numa_nodes[2], memory_bytes=0)
    topology = msgspec.structs.replace(plain, numa_nodes=(*plain.numa_nodes[:2], bare))
    bound = decided(topology, each, rules=PoolRules(bind_memory=True))
    assert (bound.pods["a"].each.resources.mems or "") == mems
    assert decided(topology, each).pods["a"].each.resources.mems is None


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        ('{"cpuset": "x"}', "cpuset"),
        ('{"cpuset": 3}', "cpuset"),
        ('{"cpuset": "1,99"}', "CPUs 99 do not exist"),
        ('{"cpuset": "1-2"}', "CPUs 2 belong to pod ns/b"),
    ],
)
def test_owner_with_an_invalid_new_claim_keeps_its_cpus(status: str, refused: str) -> None:
    before = {"a": CpuSet([1]), "b": CpuSet([2])}
    pods = (pod("a", "LSE", status=status), pod("b", "LSE", "2"), pod("c", "LSE", "1"))
    decision = decide(machine(), pods, KubeletCpus(), before, {})
    assert {each.uid: each.cpuset for each in decision.owners} == {"a": "1", "b": "2"}
    assert refused in decision.pods["a"].refused
    assert decision.pods["c"].refused == "CPUs 1 belong to pod ns/a"


def test_owners_may_swap_cpus_in_one_decision() -> None:
    before = {"a": CpuSet([1]), "b": CpuSet([2])}
    pods = (pod("a", "LSE", "2"), pod("b", "LSE", "1"))
    decision = decide(machine(), pods, KubeletCpus(), before, {})
    assert {each.uid: each.cpuset for each in decision.owners} == {"a": "2", "b": "1"}


def test_owner_that_claims_more_gets_no_cpu_that_the_kubelet_assigned() -> None:
    kubelet = KubeletCpus(True, {"g": CpuSet([2])})
    pods = (pod("a", "LSE", "1-2"), pod("g", kube_class="guaranteed"))
    decision = decide(machine(), pods, kubelet, {"a": CpuSet([1])}, {})
    assert {each.uid: each.cpuset for each in decision.owners} == {"a": "1", "g": "2"}
    assert decision.pods["a"].refused == "CPUs 2 are assigned by the kubelet"


def test_container_on_the_kubelets_pool_is_on_topolets_pool() -> None:
    """A Guaranteed pod may have a container of whole CPUs and one of a fraction. The kubelet's pool
    includes the CPUs of Topolet's owners."""
    kubelet = KubeletCpus(True, {"g": CpuSet([3])}, {"g": {"whole": CpuSet([3])}})
    guaranteed = pod("g", kube_class="guaranteed", containers=(running("c"),))
    decision = decided(machine(), guaranteed, pod("a", "LSE", "1"), kubelet=kubelet)
    assert decision.pods["g"].of("whole").cpuset == "3"
    assert decision.pods["g"].of("fraction").cpuset == "0,2"
    (refusal,) = decided(machine(), guaranteed, pod("a", "LSE", "0-2"), kubelet=kubelet).refusals
    assert refusal.reason == "CPUs 0-2 are all that pod ns/g and others share"


def passes(steps: list[Topology], *pods: Pod) -> list[dict[str, tuple[str, str]]]:
    """For each pass, the online and offline CPUs of each owner; `a` owns its CPUs at the
    beginning."""
    owned = {each.uid: claim_of(each) for each in pods if each.uid == "a"}
    found = []
    for topology in steps:
        decision = decide(topology, pods, KubeletCpus(), owned, {})
        check_invariants(topology, decision, list(pods))
        owned = {each.uid: each.claimed for each in decision.owners}
        found.append({each.uid: (each.cpuset, each.offline) for each in decision.owners})
    return found


RIVALS = ["3,5", "4-7", "5", "5-6"]


@pytest.mark.parametrize("rival", RIVALS)
def test_cpu_that_was_offline_returns_to_its_owner_despite_other_claims(rival: str) -> None:
    pods = pod("a", "LSE", "4-7", created_at=5), pod("b", "LSE", rival, created_at=1), pod("c")
    steps = [machine(2, 4, offline=each) for each in ("", "5", "5-6", "")]
    assert passes(steps, *pods) == [
        {"a": ("4-7", "")},
        {"a": ("4,6-7", "5")},
        {"a": ("4,7", "5-6")},
        {"a": ("4-7", "")},
    ]


@pytest.mark.parametrize("rival", RIVALS)
def test_owner_without_online_cpus_shares_and_regains_them_one_by_one(rival: str) -> None:
    owner, other = pod("a", "LSE", "4-7", created_at=5), pod("b", "LSE", rival, created_at=1)
    steps = [machine(2, 4, offline=each) for each in ("4-7", "4-7", "4-6", "")]
    assert passes(steps, owner, other, pod("c")) == [
        {"a": ("", "4-7")},
        {"a": ("", "4-7")},
        {"a": ("7", "4-6")},
        {"a": ("4-7", "")},
    ]
    decision = decided(steps[0], owner, pod("c"), owned_before=("a",))
    assert wanted(decision) == {"a": "0-3", "c": "0-3"}
    assert [each.reason for each in decision.refusals] == ["CPUs 4-7 are offline"]
    assert not decision.pods["a"].exclusive


def test_claim_of_offline_cpus_reserves_nothing_for_a_pod_that_never_owned_them() -> None:
    steps = [machine(2, 4, offline=each) for each in ("4-7", "")]
    late = pod("late", "LSE", "4-7", created_at=5)
    assert passes(steps, late, pod("x", "LSE", "4", created_at=1)) == [{}, {"x": ("4", "")}]


def test_claim_of_an_offline_reserved_cpu_is_refused() -> None:
    rules = PoolRules(node_reserved=CpuSet([3]))
    decision = decided(machine(offline="3"), pod("b", "LSE", "1,3"), rules=rules)
    assert [each.reason for each in decision.refusals] == ["CPUs 3 are reserved by the node"]


def test_owner_of_an_unplugged_cpu_keeps_the_others() -> None:
    unplugged = msgspec.structs.replace(machine(2, 4, offline="5"), offline=CpuSet())
    assert passes([unplugged, machine(2, 4)], pod("a", "LSE", "4-7"), pod("c")) == [
        {"a": ("4,6-7", "")},
        {"a": ("4-7", "")},
    ]
    decision = decide(
        unplugged, (pod("a", "LSE", "4-7"),), KubeletCpus(), {"a": CpuSet([4, 5, 6, 7])}, {}
    )
    assert [each.reason for each in decision.refusals] == ["CPUs 5 do not exist"]


CLAIM = KubeletCpus(of_dra={"c": {"main": CpuSet([1, 2])}})


@pytest.mark.parametrize("qos", ["", "LS", "BE", "LSE"])
def test_cpus_of_a_resource_claim_are_in_no_pool_and_cannot_be_owned(qos: str) -> None:
    claimed, owner = pod("c", qos), pod("o", "LSE", "2-3")
    decision = decided(machine(), claimed, owner, pod("l", "LS"), pod("b", "BE"), kubelet=CLAIM)
    assert names(decision)[:2] == ("0,3", "0,3")
    assert decision.refusals[-1].reason == "CPUs 2 are allocated by a ResourceClaim"
    wanted = decision.pods["c"]
    assert (wanted.of("main").cpuset, wanted.of("other").cpuset) == ("1-2", "0,3")
    assert decision.pods["l"].of("main").cpuset == "0,3"


def test_offline_cpus_of_a_resource_claim_are_not_wanted() -> None:
    decision = decided(machine(offline="1"), pod("c"), kubelet=CLAIM)
    assert decision.pods["c"].of("main").cpuset == "2"


UNEQUAL = "container main: requests.cpu is 2, limits.cpu is 4"


@pytest.mark.parametrize(
    ("qos", "owned_before", "running_on", "owns"),
    [
        ("LSR", (), {}, False),
        ("LSE", (), {}, False),
        # It runs on the pool.
        ("LSR", (), {"a": "0-3"}, False),
        # The agent decided by the annotation before it knew the limit.
        ("LSR", ("a",), {}, False),
        # No pod loses CPUs on which it runs, also after a restart without the last snapshot.
        ("LSR", ("a",), {"a": "1-2"}, True),
        ("LSR", (), {"a": "1-2"}, True),
        # The rule is that of the classes that own CPUs.
        ("LS", (), {}, True),
    ],
)
def test_a_pod_whose_cpu_limit_differs_shares_the_pool(
    qos: str, owned_before: tuple[str, ...], running_on: dict[str, str], owns: bool
) -> None:
    unequal = msgspec.structs.replace(pod("a", qos, "1-2"), unequal=UNEQUAL)
    decision = decided(machine(), unequal, owned_before=owned_before, running_on=running_on)
    assert [(each.uid, each.cpuset) for each in decision.owners] == [("a", "1-2")] * owns
    assert wanted(decision)["a"] == ("1-2" if owns else "0-3")
    if not owns:
        (refusal,) = decision.refusals
        assert refusal.reason == f"{UNEQUAL}: {qos} pods need equal amounts"
        assert refusal.claimed == "1-2"
