"""Limits in the agent's passes: batch pods, lifted quotas, and their restore."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from agent.allocate.pools import Decision
from agent.allocate.reserved_cpus import KubeletCpus
from agent.cgroup.hierarchy import Controllers, Handles, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.limits import MIGRATE
from agent.cri.client import Cri, Sandbox
from agent.discover import cpus
from agent.kube.events import Regarding
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.dra.node_claims import ContainerClaim, NodeClaims
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import Created, PodAnnounced
from agent.model.pod.annotations import (
    EXTENDED_RESOURCE_SPEC,
    MIXED_CONTAINERS,
    RESOURCE_STATUS,
    SHARED_CONTAINERS,
)
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.snapshot import PodWanted, Wanted
from agent.node.change_log import LIMIT_REFUSED, PodEvents
from agent.node.enforcement import Enforcement, Freed, with_weight
from agent.node.reconcile import ClaimMoment, ReconcileError
from agent.node.runtime_updater import RuntimeUpdater
from agent.node.runtime_view import RuntimeState
from tests.node.world import Recorded, World, claim
from tests.waiting import eventually

QUOTA, SHARES, MEMORY = "cpu.cfs_quota_us", "cpu.shares", "memory.limit_in_bytes"
USAGE = "memory.usage_in_bytes"
OWN = "kubepods/burstable/podown"


def annotate(world: World, sandbox: Sandbox, **annotations: str) -> None:
    listed = world.runtime.listed_sandboxes
    listed[listed.index(sandbox)] = msgspec.structs.replace(sandbox, annotations=annotations)


def test_quota_is_lifted_with_exclusive_cpus_and_restored_without_them(world: World) -> None:
    owner = world.sandbox("own", "LSR", "1")
    for name in ("app", "envoy"):
        world.container(owner, name)
        world.limits(f"{OWN}/c-own-{name}", QUOTA, "50000")
    world.limits(OWN, QUOTA, "100000")
    annotate(world, owner, **owner.annotations, **{SHARED_CONTAINERS: "envoy"})
    agent = world.agent()
    agent.reconcile()
    assert world.limit(f"{OWN}/c-own-app", QUOTA) == "-1"
    assert world.limit(OWN, QUOTA) == "-1"
    assert world.limit(f"{OWN}/c-own-envoy", QUOTA) == "50000"
    assert world.cpus(f"{OWN}/c-own-app") == "1"
    assert world.cpus(f"{OWN}/c-own-envoy") == "0,2-3"

    annotate(world, world.runtime.listed_sandboxes[0], **{RESOURCE_STATUS: ""})
    agent.reconcile()
    assert world.limit(f"{OWN}/c-own-app", QUOTA) == "50000"
    assert world.limit(OWN, QUOTA) == "100000"


def test_a_mixed_container_keeps_its_cpus_while_it_is_warned(world: World) -> None:
    owner = world.sandbox("own", "LSR", "1")
    container = world.container(owner)
    annotate(world, owner, **owner.annotations, **{MIXED_CONTAINERS: "main"})
    world.limits(f"{OWN}/{container.id}", QUOTA, "100000")
    parent = "kubepods/burstable/podnew"
    during: list[tuple[str, tuple[str, ...], bool, str]] = []

    def wait(seconds: float) -> None:
        assert seconds == 0.1
        held, seen = world.cpus(f"{OWN}/{container.id}"), world.snapshot()
        during.append((held, seen.announced, "new" in seen.pods, world.cpus(parent)))

    agent = world.agent(wait=wait)
    agent.reconcile()
    assert world.cpus(f"{OWN}/{container.id}") == "0-3"
    assert world.limit(f"{OWN}/{container.id}", QUOTA) == world.limit(OWN, QUOTA) == "-1"
    assert during == []
    world.group(parent)
    announced = PodAnnounced("new", "ns", "new", {QOS_LABEL: "LSE"}, claim("2"), f"/{parent}")
    agent.notified([announced])
    agent.reconcile()
    assert during == [("0-3", ("new",), False, "0,2-3")], "the sandbox may begin, and no owner"
    assert world.cpus(f"{OWN}/{container.id}") == "0-1,3"
    after = world.snapshot()
    assert (after.pods["new"].each.cpuset, after.pods["new"].each.blocked) == ("2", "")
    agent.reconcile()
    assert len(during) == 1


def test_a_quota_that_the_proxy_lifted_at_creation_is_restored(world: World) -> None:
    owner = world.sandbox("own", "LSR", "1")
    container = world.container(owner)
    agent = world.agent()
    agent.notified([Created(container.id, LinuxResources("0-3", quota=CpuQuota(70_000)))])
    agent.reconcile()
    annotate(world, owner)
    agent.reconcile()
    assert world.limit(f"{OWN}/{container.id}", QUOTA) == "70000"


def test_values_that_the_proxy_did_not_change_stay_as_the_runtime_set_them(world: World) -> None:
    """A runtime may convert shares to another weight than the agent would, and rounds requested
    values."""
    pod = world.sandbox("p", "LS")
    container = world.container(pod)
    group = f"kubepods/burstable/podp/{container.id}"
    initial = {SHARES: "500", QUOTA: "70001", MEMORY: "4096"}
    for file, text in initial.items():
        world.limits(group, file, text)
    agent = world.agent()
    requested = LinuxResources("0-3", shares=512, quota=CpuQuota(70_000), memory_limit_bytes=5000)
    kept = ("mems", "shares", "quota", "memory_limit_bytes")
    agent.notified([Created(container.id, requested, kept)])
    for _ in range(2):
        agent.reconcile()
        assert {file: world.limit(group, file) for file in initial} == initial


def test_quota_of_a_resized_owner_is_lifted_and_restored_later(
    world: World,
) -> None:
    owner = world.sandbox("own", "LSR", "1")
    world.container(owner)
    world.limits(OWN, QUOTA, "100000")
    agent = world.agent()
    agent.reconcile()
    world.limits(OWN, QUOTA, "200000")
    agent.reconcile()
    assert world.limit(OWN, QUOTA) == "-1"
    annotate(world, owner)
    agent.reconcile()
    assert world.limit(OWN, QUOTA) == "200000"


def test_batch_pod_is_limited_to_its_amounts(world: World) -> None:
    parent = "kubepods/besteffort/podb"
    pod = world.sandbox("b", "BE", parent=f"/{parent}")
    for name in ("main", "side"):
        world.container(pod, name)
    amounts = {
        "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Mi"},
        "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "2Mi"},
    }
    spec = {"containers": {"main": amounts, "side": amounts}}
    annotate(world, pod, **{EXTENDED_RESOURCE_SPEC: json.dumps(spec)})
    agent = world.agent()
    agent.reconcile()
    expected = {QUOTA: "100000", SHARES: "512", MEMORY: str(2 << 20)}
    assert {file: world.limit(f"{parent}/c-b-main", file) for file in expected} == expected
    of_the_pod = {QUOTA: "200000", SHARES: "1024", MEMORY: str(4 << 20)}
    assert {file: world.limit(parent, file) for file in of_the_pod} == of_the_pod
    assert world.limit("kubepods/besteffort", SHARES) == "1024", "the kubelet sets it"
    resources = world.snapshot().containers["c-b-main"].resources
    assert (resources.quota, resources.shares) == (CpuQuota(100_000), 512)


class Prepared:
    """The claims of a DRA driver that has prepared these."""

    def __init__(self, claims: NodeClaims) -> None:
        self.claims = claims

    def with_claims(self, kubelet: KubeletCpus, pods: Collection[ApiPod]) -> KubeletCpus:
        return msgspec.structs.replace(kubelet, claims=self.claims)

    def follow(self, moment: ClaimMoment) -> None: ...


def test_the_weight_of_a_container_is_that_of_its_claim_until_that_ends(world: World) -> None:
    pod = world.sandbox("own", "LS")
    for name, requested in (("app", 1), ("busy", 3), ("other", 1)):
        container = world.container(pod, name, cpus=requested)
        world.limits(f"{OWN}/{container.id}", SHARES, str(1024 * requested))
    world.limits(OWN, SHARES, "5120")
    claim = ContainerClaim(CpuSet.parse("1-2"), shared=True)
    prepared = Prepared(NodeClaims(claim.cpus, {"own": {"app": claim, "busy": claim}}))
    agent = world.agent(claims=prepared)

    def weights() -> list[str]:
        containers = [world.limit(f"{OWN}/c-own-{name}", SHARES) for name in names]
        return [world.limit(OWN, SHARES), *containers]

    names = ("app", "busy", "other")
    for _ in range(2):
        agent.reconcile()
        assert weights() == ["6144", "2048", "3072", "1024"]
    world.limits(OWN, SHARES, "4096")
    world.limits(f"{OWN}/c-own-app", SHARES, "4096")
    agent.reconcile()
    assert weights() == ["6144", "4096", "3072", "1024"], "a kubelet resized the pod"
    prepared.claims = NodeClaims()
    agent.reconcile()
    assert weights() == ["4096", "4096", "3072", "1024"]


@pytest.mark.parametrize(("of_group", "of_runtime"), [(2048, 2048), (4096, None)])
def test_the_runtime_is_told_the_weight_of_a_claim_unless_the_request_has_more(
    of_group: int, of_runtime: int | None
) -> None:
    wanted = Wanted(LinuxResources("1-2"), exclusive=True, least_shares=2048)
    told = with_weight("g", wanted, {"g": LinuxResources(shares=of_group)})
    assert told.resources == LinuxResources("1-2", shares=of_runtime)


def test_a_limit_below_the_memory_in_use_is_a_fault_of_its_pod_only(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The pass succeeds, so that the node stays ready and the next pass is not early."""
    parent = "kubepods/besteffort/podb"
    pod = world.sandbox("b", "BE", parent=f"/{parent}")
    world.container(pod)
    world.limits(f"{parent}/c-b-main", USAGE, "8192")
    limits = {"kubernetes.io/batch-cpu": 1000, "kubernetes.io/batch-memory": 1}
    spec = {"containers": {"main": {"limits": limits}}}
    annotations = {EXTENDED_RESOURCE_SPEC: json.dumps(spec)}
    api_pod = ApiPod("b", "ns", "b", "n", Phase.RUNNING, pod.labels, annotations, "besteffort", 1)
    containers = (ApiContainer("main", {}, limits),)
    world.cluster_objects.pods["b"] = msgspec.structs.replace(api_pod, containers=containers)
    events = Recorded()
    agent = world.agent(pod_events=PodEvents(events))
    for _ in range(2):
        agent.reconcile()
    assert world.limit(f"{parent}/c-b-main", QUOTA) == "100000"
    assert world.limit(f"{parent}/c-b-main", MEMORY) == "9223372036854771712"
    text = (
        f"annotation {EXTENDED_RESOURCE_SPEC}: container main: {MEMORY} is not set: "
        f"'/{parent}/c-b-main' uses more than 1 bytes"
    )
    assert caplog.messages.count(f"pod ns/b: {text}") == 1
    assert events.events == [(Regarding("ns", "b", "b"), LIMIT_REFUSED, text)]
    series = f'topolet_refused_limits{{container="main",file="{MEMORY}",namespace="ns",pod="b"}}'
    assert world.metric(series) == 1

    world.limits(f"{parent}/c-b-main", USAGE, "0")
    agent.reconcile()
    assert world.limit(f"{parent}/c-b-main", MEMORY) == "1"
    assert "topolet_refused_limits{" not in world.metrics.render()


@pytest.mark.parametrize(
    ("number", "only_the_pod"), [(errno.EBUSY, True), (errno.EINVAL, True), (errno.EROFS, False)]
)
def test_a_pass_fails_with_the_machine_and_not_if_the_kernel_refuses_a_value(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, only_the_pod: bool
) -> None:
    """Examples: the weight of a group with `cpu.idle`, a quota above that of the parent group."""
    write_file = Handles.write

    def write(self: Handles, path: str, data: bytes) -> None:
        if path.endswith(f"/podb/c-b-main/{SHARES}"):
            raise OSError(number, os.strerror(number))
        write_file(self, path, data)

    monkeypatch.setattr(Handles, "write", write)
    pod = world.sandbox("b", "BE", parent="/kubepods/besteffort/podb")
    world.container(pod)
    amounts = {"requests": {"kubernetes.io/batch-cpu": "500"}}
    annotate(world, pod, **{EXTENDED_RESOURCE_SPEC: json.dumps({"containers": {"main": amounts}})})
    agent = world.agent()
    if only_the_pod:
        agent.reconcile()
        series = (
            f'topolet_refused_limits{{container="main",file="{SHARES}",namespace="ns",pod="b"}}'
        )
        assert world.metric(series) == 1
    else:
        with pytest.raises(ReconcileError, match=os.strerror(number)):
            agent.reconcile()


class RecordedUpdates(Cri):
    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.requested: list[LinuxResources] = []

    def update(self, container_id: str, resources: LinuxResources) -> None:
        self.requested.append(resources)


def enforcement(
    root: Path, runtime: Cri, updater: RuntimeUpdater | None = None, *, migrate: bool = False
) -> Enforcement:
    """An enforcement on the cgroups below `root`, with its journal beside them."""
    return Enforcement(
        Hierarchy(str(root)),
        Controllers(str(root)),
        Journal(root.parent / "journal"),
        runtime,
        updater,
        migrate_memory=migrate,
    )


def running_pod(container_id: str, group: str) -> Pod:
    container = Container(container_id, "main", ContainerState.RUNNING, group)
    return Pod("own", "ns", "own", {}, {}, "burstable", 0, (container,))


def decided(pod: Pod, wanted: Wanted) -> Decision:
    return Decision((), {}, (), {pod.uid: PodWanted(pod.title, pod.qos, wanted)})


@pytest.mark.parametrize("migrate", [False, True])
def test_the_runtime_gets_no_memory_nodes_if_pages_would_migrate(
    tmp_path: Path, migrate: bool
) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpuset cpu memory\n")
    updates, pod = RecordedUpdates(), running_pod("c", "/c")
    updater = RuntimeUpdater(updates, lambda _: True)
    decision = decided(pod, Wanted(LinuxResources("1", "0")))
    enforcement(root, updates, updater, migrate=migrate).apply(
        RuntimeState((pod,), {}), decision, Freed((), {})
    )
    eventually("the runtime is updated", updater.idle)
    updater.close()
    assert updates.requested == [LinuxResources("1", "0") if migrate else LinuxResources("1")]


def test_the_runtime_gets_the_restored_quota(world: World) -> None:
    """The runtime stores the lifted quota, and writes it with the next cpuset."""
    container = world.container(world.sandbox("own", "LSR", "1"))
    group = f"{OWN}/{container.id}"
    world.limits(group, QUOTA, "50000")
    updates, pod = RecordedUpdates(), running_pod(container.id, f"/{group}")
    updater = RuntimeUpdater(updates, lambda _: True)
    of_world = enforcement(world.cpuset.parent, updates, updater)
    observed = RuntimeState((pod,), {})
    quotas = []
    for wanted in (
        Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True),
        Wanted(LinuxResources("0,2")),
        Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True),
    ):
        decision = decided(pod, wanted)
        freed = of_world.make_room(
            observed, (), decision, cpus.read(world.root), {}, pending=False, dynamic=False
        )
        assert not freed.failures
        assert not of_world.apply(observed, decision, freed).failures
        eventually("the runtime is updated", updater.idle)
        quotas.append(world.limit(group, QUOTA))
    updater.close()
    assert quotas == ["-1", "50000", "-1"]
    lifted = LinuxResources("1", quota=NO_QUOTA)
    assert updates.requested == [lifted, LinuxResources("0,2", quota=CpuQuota(50_000)), lifted]


def test_pages_move_with_memory_nodes_until_no_decision_sets_these(world: World) -> None:
    """On cgroup v1 the kernel moves them while `cpuset.memory_migrate` is 1."""
    container = world.container(world.sandbox("own", "LSR", "1"))
    group = f"{OWN}/{container.id}"
    (world.cpuset / group / MIGRATE).write_text("0\n")
    of_world = enforcement(world.cpuset.parent, world.runtime, migrate=True)
    pod = running_pod(container.id, f"/{group}")
    contents = []
    for resources in (LinuxResources("1", "0"), LinuxResources("1", "0"), LinuxResources("1")):
        decision = decided(pod, Wanted(resources))
        applied = of_world.apply(RuntimeState((pod,), {}), decision, Freed((), {}))
        assert not applied.failures
        contents.append(world.limit(group, MIGRATE))
    assert contents == ["1", "1", "0"]


def test_pause_containers_leave_the_cpus_of_owners_and_come_back(world: World) -> None:
    """Also one on a static kubelet's node, which no other decision moves."""
    cpusets = {"s-own": "1", "s-shared": "0-3"}
    for name, cpus_before in cpusets.items():
        world.group(f"kubepods/pod/{name}", cpus_before)
    pauses_of = {
        name: Container(name, "", ContainerState.RUNNING, f"/kubepods/pod/{name}")
        for name in cpusets
    }
    pods = tuple(
        Pod(name, "ns", name, {}, {}, "burstable", 0, sandboxes=(pause,))
        for name, pause in pauses_of.items()
    )
    wanted = {"s-own": Wanted(LinuxResources("1")), "s-shared": Wanted()}
    of_pods = {uid: PodWanted(uid, QoS.LS, each) for uid, each in wanted.items()}
    of_world = enforcement(world.cpuset.parent, world.runtime)
    contents = []
    for pauses in (CpuSet([0]), CpuSet([2, 3]), EMPTY):
        decision = Decision((), {}, (), of_pods, pauses=pauses)
        applied = of_world.apply(RuntimeState(pods, {}), decision, Freed((), {}))
        assert all(outcome.ok for outcome in applied.cpusets)
        contents.append([world.cpus(f"kubepods/pod/{name}") for name in cpusets])
    assert contents == [["0", "0"], ["2-3", "2-3"], ["1", "0-3"]]
