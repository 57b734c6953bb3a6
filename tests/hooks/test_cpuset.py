"""The cpuset that the hook decides from a request, the snapshot and the assumed containers."""

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks import cpuset
from agent.hooks.cpuset import MAX_ASSUMED, AssumedContainer, AssumedContainers, Keep, Override
from agent.hooks.requests import UNCHANGED, CreateContainer, UpdateContainer
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC
from agent.model.pod.qos import Pool, Pools, QoS
from agent.model.snapshot import NOTHING, CpuPolicy, Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Wait
from tests.hooks.admission_harness import container as request
from tests.hooks.snapshots import EMPTY
from tests.kept import kept_bytes

OWN = Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)


def pools(ls: str = "0,2-3", be: str = "0,2-3", system: str = "") -> Pools:
    """Pools with these CPUs, on one NUMA node."""
    by_name = {"ls": ls, "be": be, "system": system}
    return {name: (Pool(0, 0, cpus),) if cpus else () for name, cpus in by_name.items()}


BASE = Snapshot(
    generation=1,
    listed_at=100,
    boot_id="b",
    kubelet_static=False,
    pools=pools(),
    owners=(Owner("own", "ns/own", QoS.LSE, "1"),),
    pods={
        "own": PodWanted("ns/own", QoS.LSE, OWN),
        "ls": PodWanted("ns/ls", QoS.LS, Wanted(LinuxResources("0,2-3"))),
    },
    containers={"c1": Wanted(LinuxResources("1")), "kubelets": Wanted()},
)


def snapshot(**changes: object) -> Snapshot:
    return msgspec.structs.replace(BASE, **changes)


def override(*cpus: int, own: bool = False) -> Override:
    quota = NO_QUOTA if own else None
    return Override(Wanted(LinuxResources(str(CpuSet(cpus)), quota=quota), exclusive=own))


def assumed(
    uid: str, *cpus: int, given: Wanted = NOTHING, answered_at: int | None = None
) -> AssumedContainer:
    return AssumedContainer(uid, f"pod ns/{uid}", CpuSet(cpus), given, answered_at)


UNSEEN = assumed("other", 1, 2, answered_at=100)
OWNER = request("own", "LSE", "1")
WITH_LSR = snapshot(pools=pools(be="0-3"), owners=(Owner("own", "ns/own", QoS.LSR, "1"),))


def case(
    title: str,
    creation: CreateContainer,
    answer: object,
    snap: Snapshot | None = BASE,
    *containers: AssumedContainer,
) -> object:
    """`containers`: the assumed ones."""
    return pytest.param(creation, snap, containers, answer, id=title)


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "answer"),
    [
        case("owner", OWNER, override(1, own=True)),
        case("sharer", request("ls", "LS"), override(0, 2, 3)),
        case("unknown sharer", request("new", "LS"), override(0, 2, 3)),
        case(
            "a stale pool is used without owned CPUs",
            request("new", "BE"),
            override(0, 2, 3),
            snapshot(pools=pools(be="0-3")),
        ),
        case("BE shares with LSR", request("new", "BE"), override(0, 1, 2, 3), WITH_LSR),
        case(
            "a Guaranteed pod labelled BE does not",
            request("new", "BE", kube=""),
            override(0, 2, 3),
            WITH_LSR,
        ),
        case("excluded", OWNER, Keep(), snapshot(excluded=("ns/*/main",)), UNSEEN),
        case("no snapshot, no claim", request("new", "LS"), Keep(), None),
        case(
            "owner, other creation before the pass",
            OWNER,
            override(1, own=True),
            BASE,
            assumed("other", 1, 2, answered_at=99),
        ),
        case(
            "owner, other creation on other CPUs",
            OWNER,
            override(1, own=True),
            BASE,
            assumed("other", 0, 2),
        ),
        case(
            "owner's second container",
            OWNER,
            override(1, own=True),
            BASE,
            assumed("own", 1, given=OWN),
        ),
        case(
            "without CPUs assumed as exclusive",
            request("new", "LS"),
            override(2, 3),
            BASE,
            assumed("x", 0, given=OWN),
        ),
        case(
            "the kubelet's pod",
            request("own", kube=""),
            Keep(),
            snapshot(pods={"own": PodWanted("ns/own", QoS.LS, Wanted())}),
        ),
    ],
)
def test_answers_to_a_creation(
    creation: CreateContainer,
    snap: Snapshot | None,
    assumed: tuple[AssumedContainer, ...],
    answer: cpuset.Answer,
) -> None:
    assert cpuset.create(creation, snap, assumed) == answer


HELD_BY_X = msgspec.structs.replace(OWN, blocked="held by ns/x")


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "reason"),
    [
        case("claim, no snapshot", request("new", "LSE", "1"), "no snapshot", None),
        case("claim, undecided", request("new", "LSE", "2"), "has not decided"),
        case(
            "may be the static kubelet's",
            request("new", kube=""),
            "has not decided",
            snapshot(kubelet_static=True),
        ),
        case("in progress", OWNER, "ns/other", BASE, assumed("other", 1, 2)),
        case("after the pass", OWNER, "ns/other", BASE, UNSEEN),
        case(
            "earlier proxy",
            OWNER,
            "earlier proxy",
            BASE,
            AssumedContainer("", "an earlier proxy", None, answered_at=101),
        ),
        case(
            "blocked",
            OWNER,
            "held by ns/x",
            snapshot(pods={"own": PodWanted("ns/own", QoS.LSE, HELD_BY_X)}),
        ),
    ],
)
def test_creation_waits(
    creation: CreateContainer,
    snap: Snapshot | None,
    assumed: tuple[AssumedContainer, ...],
    reason: str,
) -> None:
    answer = cpuset.create(creation, snap, assumed)
    assert isinstance(answer, Wait)
    assert reason in answer.reason


def whole_cpus(requested: str, cpus: int = 2, qos: str = "", claim: str = "") -> CreateContainer:
    """A request for whole CPUs, as a kubelet sends it."""
    return request("p", qos, claim, requested, shares=1024 * cpus, kube="")


def static(wanted: Wanted | None, **changes: object) -> Snapshot:
    """A snapshot with a static kubelet and the decision about container `main` of pod `p`."""
    pods = (
        {"p": PodWanted("ns/p", QoS.LSE, Wanted(LinuxResources("0")), {"main": wanted})}
        if wanted
        else {}
    )
    return snapshot(kubelet_static=True, pods=pods, **changes)


BY_KUBELET = Wanted(LinuxResources("2-3", quota=NO_QUOTA), exclusive=True, kubelet=True)


@pytest.mark.parametrize(("decided", "waits"), [("0-1", True), ("0-3", False)])
def test_a_claim_waits_until_the_agent_has_read_the_cpus_of_a_static_kubelet(
    decided: str, waits: bool
) -> None:
    """It has those of its claim, 0-1, beside them."""
    wanted = Wanted(LinuxResources(decided, quota=NO_QUOTA), exclusive=True)
    snap = static(wanted, gives_claims=True)
    answer = cpuset.create(whole_cpus("2-3"), snap, [], has_cpu_claim=True)
    if waits:
        assert isinstance(answer, Wait)
        assert "the kubelet assigned CPUs 2-3" in answer.reason
    else:
        assert isinstance(answer, Override)
        assert answer.wanted.cpuset == "0-3"


@pytest.mark.parametrize(
    ("requested", "changed"), [(512, 2048), (2048, None), (3072, None), (None, None)]
)
def test_a_request_gets_the_weight_of_its_claim_unless_it_has_more(
    requested: int | None, changed: int | None
) -> None:
    """At creation and with every update. An update without shares leaves them."""
    wanted = Wanted(LinuxResources("0-1", quota=NO_QUOTA), exclusive=True, least_shares=2048)
    snap = static(wanted, containers={"c": wanted})
    creation = request("p", shares=requested)
    answer = cpuset.create(creation, snap, [])
    assert isinstance(answer, Override)
    assert cpuset.changes(creation, answer).resources.shares == changed
    update = UpdateContainer("c", LinuxResources(shares=requested))
    answer = cpuset.update(update, snap, None)
    assert isinstance(answer, Override)
    assert cpuset.changes(update, answer).resources.shares == changed


CLAIMS = whole_cpus("2-3", qos="LSE", claim="4-5")


@pytest.mark.parametrize(
    ("creation", "decided", "waits"),
    [
        pytest.param(CLAIMS, BY_KUBELET, False, id="decided, with a claim"),
        pytest.param(whole_cpus("2-3"), BY_KUBELET, False, id="decided"),
        pytest.param(
            CLAIMS,
            Wanted(LinuxResources("4-5", quota=NO_QUOTA), exclusive=True),
            True,
            id="still decided by the claim",
        ),
        pytest.param(
            whole_cpus("2-3"), Wanted(LinuxResources("0,2-3")), True, id="still on the pool"
        ),
        pytest.param(CLAIMS, Wanted(LinuxResources("0")), True, id="on the CPUs of the pod"),
        pytest.param(whole_cpus("2-3"), None, True, id="undecided"),
        pytest.param(
            whole_cpus("4-5"), BY_KUBELET, True, id="the checkpoint of an earlier pod of that uid"
        ),
        pytest.param(whole_cpus("2-5", 4), BY_KUBELET, False, id="resized"),
        pytest.param(whole_cpus("2-3"), Wanted(), False, id="CPUs unknown: not changed"),
    ],
)
def test_cpus_of_a_static_kubelet_pass_after_the_agent_has_read_them(
    creation: CreateContainer, decided: Wanted | None, waits: bool
) -> None:
    snap = static(decided)
    answer = cpuset.create(creation, snap, [])
    assert isinstance(answer, Wait) is waits
    if not isinstance(answer, Wait):
        assert cpuset.changes(creation, answer).resources.cpuset is None
    else:
        assert cpuset.fallback(creation, snap, []) == Keep()


@pytest.mark.parametrize("kubelets", [False, True])
def test_a_container_with_devices_gets_their_numa_nodes_as_a_variable(kubelets: bool) -> None:
    wanted = Wanted(LinuxResources("2-3"), kubelet=kubelets, numa_nodes="1")
    snap = snapshot(pods={"card": PodWanted("ns/card", QoS.LS, Wanted(), {"main": wanted})})
    creation = request("card", cpus="2-3" if kubelets else "0-3")
    answer = cpuset.create(creation, snap, [])
    assert not isinstance(answer, Wait)
    changes = cpuset.changes(creation, answer)
    assert changes.environment == (("TOPOLET_NUMA_NODES", "1"),)
    assert changes.resources.cpuset == (None if kubelets else "2-3")


MIXED = Wanted(LinuxResources("0-3", quota=NO_QUOTA), exclusive=True, shared="0,2-3")


def mixing(wanted: Wanted = MIXED, **changes: object) -> Snapshot:
    """Container `main` of pod `own` is mixed: it owns CPU 1."""
    owner = PodWanted("ns/own", QoS.LSE, OWN, {"main": wanted})
    return snapshot(pods={**BASE.pods, "own": owner}, containers={"c": wanted}, **changes)


def test_a_mixed_container_knows_its_own_cpus_and_its_share() -> None:
    creation = request("own", cpus="0-7")
    answer = cpuset.create(creation, mixing(), [])
    assert isinstance(answer, Override)
    changes = cpuset.changes(creation, answer)
    assert changes.resources.cpuset == "0-3"
    assert dict(changes.environment) == {
        "TOPOLET_OWN_CPUS": "1",
        "TOPOLET_SHARED_CPUS": "0,2-3",
    }
    assert cpuset.reads_cpus(creation, mixing(), MIXED)


@pytest.mark.parametrize("kubelets", [False, True])
def test_a_container_is_told_which_of_its_cpus_keep_interrupts(kubelets: bool) -> None:
    kept = Wanted(LinuxResources("1"), exclusive=True, kubelet=kubelets, housekeeping="1")
    creation = request("own", cpus="1")
    answer = cpuset.create(creation, mixing(kept), [])
    assert isinstance(answer, Override)
    assert cpuset.changes(creation, answer).environment == (("HOUSEKEEPING_CPUS", "1"),)


def test_only_the_own_cpus_of_a_mixed_container_are_waited_for() -> None:
    creation = request("own")
    on_pool = assumed("ls", 0, 2, 3)
    assert cpuset.create(creation, mixing(), [on_pool]) == Override(MIXED)
    waiting = cpuset.create(creation, mixing(), [assumed("ls", 1, 2)])
    assert isinstance(waiting, Wait)
    assert waiting.reason.endswith("may hold one of CPUs 1")
    new = assumed("own", 0, 1, 2, 3, given=MIXED)
    shared = cpuset.create(request("new", "LS"), mixing(), [new])
    assert shared == override(0, 2, 3), "its share stays everybody's"


KUBELETS_MIXED = Wanted(
    LinuxResources("0,2-5", quota=NO_QUOTA), exclusive=True, kubelet=True, shared="0,4-5"
)


@pytest.mark.parametrize(
    ("requested", "cpus", "own"),
    [
        ("2-3", "0,2-5", "2-3"),
        ("3-4", "0,3-5", "3-4"),
        ("0,2-3,6", "0,2-5", "2-3"),
    ],
    ids=["the kubelet's", "resized", "the agent's, of an earlier decision"],
)
def test_a_static_kubelets_cpus_are_those_of_a_mixed_container_beside_its_share(
    requested: str, cpus: str, own: str
) -> None:
    update = UpdateContainer("c", LinuxResources(requested))
    answer = cpuset.update(update, mixing(KUBELETS_MIXED), None)
    assert isinstance(answer, Override)
    assert (answer.wanted.cpuset, str(answer.wanted.own)) == (cpus, own)


def test_a_static_kubelets_mixed_container_waits_for_its_checkpoint() -> None:
    answer = cpuset.create(whole_cpus("2-3"), static(KUBELETS_MIXED), [])
    assert isinstance(answer, Override)
    assert answer.wanted.cpuset == "0,2-5"
    assert isinstance(cpuset.create(whole_cpus("4-5"), static(KUBELETS_MIXED), []), Wait)


def test_an_update_changes_no_variable() -> None:
    snap = snapshot(containers={"c": Wanted(LinuxResources("2-3"), numa_nodes="1")})
    update = UpdateContainer("c", LinuxResources("2-3"))
    answer = cpuset.update(update, snap, None)
    assert not isinstance(answer, Wait)
    assert cpuset.changes(update, answer) == UNCHANGED


def test_a_container_with_its_own_cpus_does_not_wait_for_a_place() -> None:
    snap = snapshot(unplaced=("own",), places_devices=True, listed_at=time.monotonic_ns())
    assert cpuset.create(request("own"), snap, [], lambda: True) == override(1, own=True)


some_cpus = st.frozensets(st.integers(0, 7), min_size=1, max_size=3).map(CpuSet)
some_wanted = st.builds(
    Wanted,
    st.builds(LinuxResources, st.none() | some_cpus.map(str)),
    st.booleans(),
    st.booleans(),
    blocked=st.just(""),
)


@given(
    some_cpus,
    st.sampled_from(["", "LSE", "LSR"]),
    st.just("") | some_cpus.map(str),
    st.none() | some_wanted,
    st.lists(some_cpus, max_size=2),
    some_cpus,
)
def test_no_snapshot_replaces_the_cpus_of_a_static_kubelet(
    assigned: CpuSet,
    qos: str,
    claim: str,
    decided: Wanted | None,
    in_progress: list[CpuSet],
    owned: CpuSet,
) -> None:
    """The creation waits, or continues with the CPUs that the kubelet requested."""
    creation = whole_cpus(str(assigned), len(assigned), qos, claim)
    snap = static(decided, owners=(Owner("own", "ns/own", QoS.LSE, str(owned)),))
    assumed = [AssumedContainer("other", "pod ns/other", cpus) for cpus in in_progress]
    answer = cpuset.create(creation, snap, assumed)
    if isinstance(answer, Wait):
        answer = cpuset.fallback(creation, snap, assumed)
    assert not isinstance(answer, Wait)
    assert cpuset.changes(creation, answer).resources.cpuset is None


def test_pods_that_share_a_claim_do_not_wait_for_each_other() -> None:
    """Unless the other one shares CPUs of the pool alone."""
    own = PodWanted("ns/own", QoS.LS, OWN)
    owner = Owner("other", "ns/other", QoS.LSE, "1", claims=True, sharers=("own",))
    shared = snapshot(owners=(owner,), pods={"own": own, "other": own})
    for of_other, expected in ((OWN, override(1, own=True)), (NOTHING, Wait)):
        starting = assumed("other", 1, given=of_other)
        answer = cpuset.create(request("own"), shared, [starting])
        assert answer == expected or type(answer) is expected


def test_container_with_cpus_of_the_kubelet_waits_while_another_container_may_hold_them() -> None:
    assert isinstance(cpuset.create(whole_cpus("2-3"), static(BY_KUBELET), [UNSEEN]), Wait)
    blocked = Wanted(
        LinuxResources("2-3", quota=NO_QUOTA), exclusive=True, kubelet=True, blocked="held by ns/x"
    )
    assert cpuset.create(whole_cpus("2-3"), static(blocked), []) == Wait("held by ns/x")


def test_fraction_or_another_number_of_cpus_is_not_assigned_by_the_kubelet() -> None:
    shares = CreateContainer(whole_cpus("").pod, "main", LinuxResources("0,2-3", shares=512))
    on_pool = Wanted(LinuxResources("0,2"))
    for creation in (shares, whole_cpus("2-4")):
        assert cpuset.create(creation, static(on_pool), []) == Override(on_pool)


def test_be_pod_that_the_agent_does_not_know_has_the_limits_of_its_batch_resources() -> None:
    creation = request("new", "BE")
    limits = {"kubernetes.io/batch-cpu": "1", "kubernetes.io/batch-memory": "1Gi"}
    spec = json.dumps({"containers": {"main": {"requests": limits, "limits": limits}}})
    creation.pod.annotations[EXTENDED_RESOURCE_SPEC] = spec
    batch = LinuxResources("0,2-3", None, 2, CpuQuota(1_000), 1 << 30)
    assert cpuset.create(creation, snapshot(), []) == Override(Wanted(batch))


@pytest.mark.parametrize(
    ("quota", "shares"),
    [
        (None, False),
        (NO_QUOTA, False),
        (CpuQuota(200_000), False),
        (CpuQuota(20_000, 10_000), False),
        (CpuQuota(400_000), True),
    ],
)
def test_container_of_a_pod_with_pod_level_resources_has_no_cpus_of_the_kubelet(
    quota: CpuQuota | None, shares: bool
) -> None:
    """It requests the kubelet's shared CPUs, here as many as it needs, and the quota of the pod."""
    requested = LinuxResources("2-3", shares=2048, quota=quota)
    creation = CreateContainer(whole_cpus("").pod, "main", requested)
    on_pool = Override(Wanted(LinuxResources("0,2")))
    assert (cpuset.create(creation, static(Wanted(LinuxResources("0,2"))), []) == on_pool) is shares
    owners = (Owner("own", "ns/own", QoS.LSE, "3"),)
    without = override(2) if shares else Keep()
    assert cpuset.fallback(creation, static(None, owners=owners), []) == without


@pytest.mark.parametrize(("cpuset_", "cpus"), [("2-5", None), ("", "2-3")])
def test_update_with_cpus_of_the_kubelet_passes(cpuset_: str, cpus: str | None) -> None:
    update = UpdateContainer("c", LinuxResources(cpuset_))
    answer = cpuset.update(update, snapshot(containers={"c": BY_KUBELET}), None)
    assert isinstance(answer, Override)
    assert cpuset.changes(update, answer).resources.cpuset == cpus


def test_update_of_an_unknown_container_keeps_the_cpus_of_the_kubelet() -> None:
    owner = Owner("p", "ns/p", QoS.LSE, "2-3", kubelet=True)
    update = UpdateContainer("new", LinuxResources("2-3"))
    assert cpuset.without_owners(update, snapshot(owners=(owner,))) == Keep()


STATIC = snapshot(kubelet_static=True)


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "answer"),
    [
        case("LSE shares", request("x", "LSE", "2"), override(0, 2, 3)),
        case("LSR, no snapshot", request("x", "LSR", "2"), Keep(), None),
        case("LS shares", request("x", "LS", "2"), override(0, 2, 3)),
        case(
            "without CPUs that the proxy assumes",
            request("x", "LS", "2"),
            override(0, 2),
            BASE,
            assumed("y", 3, given=OWN),
        ),
        case("no snapshot", request("x", "LS", "2"), Keep(), None),
        case(
            "the static kubelet's choice, without owned CPUs",
            request("x", kube="", cpus="0-1"),
            override(0),
            STATIC,
        ),
        case(
            "the static kubelet chose owned CPUs alone: no cpuset would mean every CPU",
            request("x", kube="", cpus="1"),
            Wait("other pods own all the CPUs that it requests"),
            STATIC,
        ),
        case(
            "the static kubelet chose nothing: not every CPU, but the pool",
            request("x", kube=""),
            override(0, 2, 3),
            STATIC,
        ),
        case(
            "empty",
            request("x", "LS"),
            Wait("its pool has no CPU"),
            snapshot(pools=pools(ls="")),
        ),
    ],
)
def test_a_creation_without_a_decision_gets_no_cpu_of_an_owner(
    creation: CreateContainer,
    snap: Snapshot | None,
    assumed: tuple[AssumedContainer, ...],
    answer: cpuset.Answer,
) -> None:
    assert cpuset.fallback(creation, snap, assumed) == answer


@pytest.mark.parametrize(
    ("container", "cpuset_", "snap", "assumed", "answer"),
    [
        ("c1", "0-3", snapshot(), None, override(1)),
        ("c1", "", snapshot(), None, override(1)),
        ("kubelets", "0", snapshot(), None, Keep()),
        (
            "new",
            "0-3",
            snapshot(),
            AssumedContainer("p", "p", CpuSet([2]), Wanted(LinuxResources("2"))),
            override(2),
        ),
        ("new", "0-3", None, AssumedContainer("p", "p", None), Keep()),
        ("new", "", snapshot(), None, Keep()),
        ("new", "0-3", None, None, Keep()),
    ],
)
def test_update(
    container: str,
    cpuset_: str,
    snap: Snapshot | None,
    assumed: AssumedContainer | None,
    answer: cpuset.Answer,
) -> None:
    assert (
        cpuset.update(UpdateContainer(container, LinuxResources(cpuset_)), snap, assumed) == answer
    )


def test_update_of_an_unknown_container_waits_and_then_loses_owned_cpus_only() -> None:
    unknown = UpdateContainer("new", LinuxResources("0-1"))
    assert isinstance(cpuset.update(unknown, snapshot(), None), Wait)
    assert cpuset.without_owners(unknown, snapshot()) == override(0)
    assert cpuset.without_owners(UpdateContainer("new", LinuxResources("2")), snapshot()) == Keep()
    owner = Owner("own", "ns/own", QoS.LSE, "", offline="1")
    assert cpuset.without_owners(unknown, snapshot(owners=(owner,))) == override(0), (
        "the CPU may come online again"
    )
    assert (
        cpuset.without_owners(UpdateContainer("new", LinuxResources("invalid")), snapshot())
        == Keep()
    )


def test_update_that_requests_only_owned_cpus_changes_no_cpuset() -> None:
    assert (
        cpuset.without_owners(UpdateContainer("new", LinuxResources("1")), snapshot()) == override()
    )


@pytest.mark.parametrize(
    ("system", "cpus"),
    [
        pytest.param("4-5", [4, 5], id="the CPUs of its class"),
        pytest.param("1,4", [4], id="without owned CPUs"),
        pytest.param("", [0, 2, 3], id="none: the LS pool"),
    ],
)
def test_unknown_system_pod(system: str, cpus: list[int]) -> None:
    answer = cpuset.create(request("new", "SYSTEM"), snapshot(pools=pools(system=system)), [])
    assert answer == override(*cpus)


@pytest.mark.parametrize(
    ("qos", "claim", "waits"),
    [("LSR", "", True), ("SYSTEM", "", True), ("LS", "", False), ("BE", "", False)],
)
def test_guaranteed_pod_waits_for_the_static_kubelet_unless_its_label_selects_a_pool(
    qos: str, claim: str, waits: bool
) -> None:
    creation = request("new", qos, claim, kube="")
    answer = cpuset.create(creation, snapshot(kubelet_static=True), [])
    assert isinstance(answer, Wait) == waits


ASSUMED = AssumedContainer("p", "pod ns/p", CpuSet([1]))


def finish_pass(assumed: AssumedContainers) -> None:
    """The agent publishes a snapshot of a pass that begins now."""
    assumed.seen(msgspec.structs.replace(EMPTY, listed_at=time.monotonic_ns()))


def test_unknown_number_is_ignored() -> None:
    assumed = AssumedContainers()
    assumed.answered(99, "c")
    assumed.failed(99)
    assert assumed.of("c") is None


def test_absent_agent_costs_bounded_memory_and_no_assumed_container_is_lost() -> None:
    assumed = AssumedContainers()
    in_progress = assumed.assume(ASSUMED)
    for each in range(10 * MAX_ASSUMED):
        assumed.answered(assumed.assume(ASSUMED), f"c{each}")
    kept = assumed.all(EMPTY)
    assert len(kept) <= MAX_ASSUMED + 2
    assert kept[0].may_hold(CpuSet([7])), "the merged containers may hold any CPU"
    assert assumed.of("c0") is None
    assert assumed.of(f"c{10 * MAX_ASSUMED - 1}") is not None
    finish_pass(assumed)
    assert assumed.all(EMPTY) == (ASSUMED,)
    assumed.answered(in_progress, "late")
    assert assumed.of("late") is not None


def test_a_slow_creation_that_was_folded_counts_until_a_pass_begins_after_its_answer() -> None:
    """Creations that began after it, and were answered before it, are folded after it."""
    assumed = AssumedContainers()
    slow = assumed.assume(ASSUMED)
    for _ in range(MAX_ASSUMED - 1):
        assumed.answered(assumed.assume(ASSUMED), "fast")
    before_its_answer = msgspec.structs.replace(EMPTY, listed_at=time.monotonic_ns())
    assumed.assume(ASSUMED)
    assumed.answered(slow, "slow")
    assert assumed.of("slow") is None, "it is folded"
    for _ in range(MAX_ASSUMED // 2):
        assumed.answered(assumed.assume(ASSUMED), "later")
    assumed.seen(before_its_answer)
    assert assumed.all(EMPTY)[0].may_hold(CpuSet([7])), "the folded containers may hold any CPU"


def test_starts_without_an_agent_cost_bounded_memory() -> None:
    assumed = AssumedContainers()
    before = msgspec.structs.replace(EMPTY, listed_at=1)
    starting = assumed.start(before)

    def starts(count: int) -> None:
        for _ in range(count):
            assumed.started(assumed.start(EMPTY), EMPTY)

    starts(2 * MAX_ASSUMED)
    assert kept_bytes(lambda: starts(10 * MAX_ASSUMED)) < 400 * MAX_ASSUMED
    assert assumed.started(starting, EMPTY)


TWO = Wanted(LinuxResources("1-2", quota=NO_QUOTA), exclusive=True)
POOL = Wanted(LinuxResources("0,3"))
UNDECIDED = Wait("the agent has not decided about this container")


def container_of(
    shares: int,
    name: str = "main",
    *,
    uid: str = "g",
    qos: str = "",
    claim: str = "",
    kube: str = "",
) -> CreateContainer:
    creation = request(uid, qos, claim, shares=shares, kube=kube)
    return msgspec.structs.replace(creation, container_name=name)


def node_local(policy: CpuPolicy = "static", **containers: Wanted) -> Snapshot:
    """A snapshot under a node-local policy, with the decisions about containers of pod `g`."""
    return snapshot(
        pools=pools("0,3", "0,3"),
        owners=(Owner("g", "ns/g", QoS.LSE, "1-2"),),
        pods={"g": PodWanted("ns/g", QoS.LS, POOL, containers)},
        cpu_policy=policy,
    )


REFUSED = Wanted(LinuxResources("0,3"), blocked="why")


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "answer"),
    [
        case("decided", container_of(2048), Override(TWO), node_local(main=TWO)),
        case("not decided", container_of(2048), UNDECIDED, node_local()),
        case("another container", container_of(2048, "b"), UNDECIDED, node_local(main=TWO)),
        case("unknown pod", container_of(2048, uid="new"), UNDECIDED, node_local()),
        case("resized since it ran", container_of(3072), UNDECIDED, node_local(main=TWO)),
        case("decided to share", container_of(2048), Override(POOL), node_local(main=POOL)),
        case("refused", container_of(2048), Wait("why"), node_local(main=REFUSED)),
        case("no policy", container_of(2048), Override(POOL), node_local("none")),
        case("a fraction of a CPU", container_of(1536), Override(POOL), node_local()),
        case("no request of its own", container_of(2), Override(POOL), node_local()),
        case("QoS label of a pool", container_of(2048, qos="LS"), Override(POOL), node_local()),
        case("burstable", container_of(2048, kube="/burstable"), Override(POOL), node_local()),
        case("no snapshot", container_of(2048), Keep(), None),
        case(
            "a scheduler chose its CPUs",
            container_of(2048, claim="1-2"),
            Override(POOL),
            node_local(),
        ),
    ],
)
def test_cpus_of_a_creation_under_a_node_local_policy(
    creation: CreateContainer,
    snap: Snapshot | None,
    assumed: tuple[AssumedContainer, ...],
    answer: cpuset.Answer,
) -> None:
    assert cpuset.create(creation, snap, assumed) == answer
