"""The cpuset that the hook decides from a request, the snapshot and the assumed containers."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks import cpuset
from agent.hooks.cpuset import AssumedContainer, Keep, Override
from agent.hooks.requests import CreateContainer, UpdateContainer
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC
from agent.model.pod.qos import Pool, Pools, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Wait
from tests.hooks.admission_harness import container as request

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


UNSEEN = AssumedContainer("other", "pod ns/other", CpuSet([1, 2]), answered_at=100)
IN_FLIGHT = AssumedContainer("other", "pod ns/other", CpuSet([1, 2]))


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "answer"),
    [
        pytest.param(request("own", "LSE", "1"), snapshot(), [], override(1, own=True), id="owner"),
        pytest.param(request("ls", "LS"), snapshot(), [], override(0, 2, 3), id="sharer"),
        pytest.param(request("new", "LS"), snapshot(), [], override(0, 2, 3), id="unknown sharer"),
        pytest.param(
            request("new", "BE"),
            snapshot(pools=pools(be="0-3")),
            [],
            override(0, 2, 3),
            id="a stale pool is used without owned CPUs",
        ),
        pytest.param(
            request("new", "BE"),
            snapshot(pools=pools(be="0-3"), owners=(Owner("own", "ns/own", QoS.LSR, "1"),)),
            [],
            override(0, 1, 2, 3),
            id="BE shares with LSR",
        ),
        pytest.param(
            request("new", "BE", kube=""),
            snapshot(pools=pools(be="0-3"), owners=(Owner("own", "ns/own", QoS.LSR, "1"),)),
            [],
            override(0, 2, 3),
            id="a Guaranteed pod labelled BE does not",
        ),
        pytest.param(
            request("own", "LSE", "1"),
            snapshot(excluded=("ns/*/main",)),
            [UNSEEN],
            Keep(),
            id="excluded",
        ),
        pytest.param(request("new", "LS"), None, [], Keep(), id="no snapshot, no claim"),
        pytest.param(
            request("own", "LSE", "1"),
            snapshot(),
            [AssumedContainer("other", "pod ns/other", CpuSet([1, 2]), answered_at=99)],
            override(1, own=True),
            id="owner, other creation before the pass",
        ),
        pytest.param(
            request("own", "LSE", "1"),
            snapshot(),
            [AssumedContainer("other", "pod ns/other", CpuSet([0, 2]))],
            override(1, own=True),
            id="owner, other creation on other CPUs",
        ),
        pytest.param(
            request("own", "LSE", "1"),
            snapshot(),
            [AssumedContainer("own", "pod ns/own", CpuSet([1]), given=OWN)],
            override(1, own=True),
            id="owner's second container",
        ),
        pytest.param(
            request("new", "LS"),
            snapshot(),
            [AssumedContainer("x", "pod ns/x", CpuSet([0]), given=OWN)],
            override(2, 3),
            id="without CPUs assumed as exclusive",
        ),
        pytest.param(
            request("own", kube=""),
            snapshot(pods={"own": PodWanted("ns/own", QoS.LS, Wanted())}),
            [],
            Keep(),
            id="the kubelet's pod",
        ),
    ],
)
def test_answers_to_a_creation(
    creation: CreateContainer,
    snap: Snapshot | None,
    assumed: list[AssumedContainer],
    answer: cpuset.Answer,
) -> None:
    assert cpuset.create(creation, snap, assumed) == answer


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "reason"),
    [
        pytest.param(request("new", "LSE", "1"), None, [], "no snapshot", id="claim, no snapshot"),
        pytest.param(
            request("new", "LSE", "2"), snapshot(), [], "has not decided", id="claim, undecided"
        ),
        pytest.param(
            request("new", kube=""),
            snapshot(kubelet_static=True),
            [],
            "has not decided",
            id="may be the static kubelet's",
        ),
        pytest.param(
            request("own", "LSE", "1"), snapshot(), [IN_FLIGHT], "ns/other", id="in progress"
        ),
        pytest.param(
            request("own", "LSE", "1"), snapshot(), [UNSEEN], "ns/other", id="after the pass"
        ),
        pytest.param(
            request("own", "LSE", "1"),
            snapshot(),
            [AssumedContainer("", "an earlier proxy", None, answered_at=101)],
            "earlier proxy",
            id="earlier proxy",
        ),
        pytest.param(
            request("own", "LSE", "1"),
            snapshot(
                pods={
                    "own": PodWanted(
                        "ns/own",
                        QoS.LSE,
                        Wanted(
                            LinuxResources("1", quota=NO_QUOTA),
                            exclusive=True,
                            blocked="held by ns/x",
                        ),
                    )
                }
            ),
            [],
            "held by ns/x",
            id="blocked",
        ),
    ],
)
def test_creation_waits(
    creation: CreateContainer, snap: Snapshot | None, assumed: list[AssumedContainer], reason: str
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


@pytest.mark.parametrize(
    ("creation", "snap", "waits"),
    [
        pytest.param(
            whole_cpus("2-3", qos="LSE", claim="4-5"),
            static(BY_KUBELET),
            False,
            id="decided, with a claim",
        ),
        pytest.param(whole_cpus("2-3"), static(BY_KUBELET), False, id="decided"),
        pytest.param(
            whole_cpus("2-3", qos="LSE", claim="4-5"),
            static(Wanted(LinuxResources("4-5", quota=NO_QUOTA), exclusive=True)),
            True,
            id="still decided by the claim",
        ),
        pytest.param(
            whole_cpus("2-3"), static(Wanted(LinuxResources("0,2-3"))), True, id="still on the pool"
        ),
        pytest.param(
            whole_cpus("2-3", qos="LSE", claim="4-5"),
            static(Wanted(LinuxResources("0"))),
            True,
            id="on the CPUs of the pod",
        ),
        pytest.param(whole_cpus("2-3"), static(None), True, id="undecided"),
        pytest.param(
            whole_cpus("4-5"),
            static(BY_KUBELET),
            True,
            id="the checkpoint of an earlier pod of that uid",
        ),
        pytest.param(whole_cpus("2-5", 4), static(BY_KUBELET), False, id="resized"),
        pytest.param(whole_cpus("2-3"), static(Wanted()), False, id="CPUs unknown: not changed"),
    ],
)
def test_cpus_of_a_static_kubelet_pass_after_the_agent_has_read_them(
    creation: CreateContainer, snap: Snapshot, waits: bool
) -> None:
    answer = cpuset.create(creation, snap, [])
    assert isinstance(answer, Wait) is waits
    if not isinstance(answer, Wait):
        assert cpuset.changes(creation, answer).resources.cpuset is None
    else:
        assert cpuset.fallback(creation, snap, []) == Keep()


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


@pytest.mark.parametrize(
    ("creation", "snap", "assumed", "answer"),
    [
        pytest.param(request("x", "LSE", "2"), snapshot(), [], override(0, 2, 3), id="LSE shares"),
        pytest.param(request("x", "LSR", "2"), None, [], Keep(), id="LSR, no snapshot"),
        pytest.param(request("x", "LS", "2"), snapshot(), [], override(0, 2, 3), id="LS shares"),
        pytest.param(
            request("x", "LS", "2"),
            snapshot(),
            [AssumedContainer("y", "y", CpuSet([3]), given=OWN)],
            override(0, 2),
            id="without CPUs that the proxy assumes",
        ),
        pytest.param(request("x", "LS", "2"), None, [], Keep(), id="no snapshot"),
        pytest.param(
            request("x", kube="", cpus="0-1"),
            snapshot(kubelet_static=True),
            [],
            override(0),
            id="the static kubelet's choice, without owned CPUs",
        ),
        pytest.param(
            request("x", kube="", cpus="1"),
            snapshot(kubelet_static=True),
            [],
            Wait("other pods own all the CPUs that it requests"),
            id="the static kubelet chose owned CPUs alone: no cpuset would mean every CPU",
        ),
        pytest.param(
            request("x", kube=""),
            snapshot(kubelet_static=True),
            [],
            override(0, 2, 3),
            id="the static kubelet chose nothing: not every CPU, but the pool",
        ),
        pytest.param(
            request("x", "LS"),
            snapshot(pools=pools(ls="")),
            [],
            Wait("its pool has no CPU"),
            id="empty",
        ),
    ],
)
def test_a_creation_without_a_decision_gets_no_cpu_of_an_owner(
    creation: CreateContainer,
    snap: Snapshot | None,
    assumed: list[AssumedContainer],
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
