"""Passes with faults that a test can't cause on real containers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pytest
import yaml

from agent.allocate import pools
from agent.allocate.device_holders.reported_devices import Carriers
from agent.cgroup import writer
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.kube.errors import StoreError
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.notifications import (
    Created,
    PodAnnounced,
    PodFailed,
    SessionEnded,
    SnapshotRequest,
)
from agent.model.pod import apiobjects
from agent.model.pod import pods as podvalues
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.pod_resources import (
    ClaimedDevice,
    ContainerResources,
    PodResources,
    ResourceClaim,
)
from agent.model.pod.pods import ContainerState
from agent.model.pod.qos import QOS_LABEL
from agent.node import report as reports
from agent.node.change_log import CLAIM_NOT_HONORED, NO_CPUS_ALLOCATED, PodEvents
from agent.node.kubelet_view import PodResourcesAnswer
from agent.node.reconcile import ReconcileError
from tests.node.world import Recorded, World, claim


def test_one_pass(world: World) -> None:
    owner, sharer = world.sandbox("own", "LSE", "1"), world.sandbox("ls", "LS")
    world.container(owner)
    world.container(sharer)
    created = world.container(world.sandbox("w", "LS"), state=ContainerState.CREATED)
    world.agent().reconcile()
    assert world.cpus("kubepods/burstable/podown/c-own-main") == "1"
    assert world.cpus("kubepods/burstable/podls/c-ls-main") == "0,2-3"
    assert world.runtime.updates == {created.id: "0,2-3"}
    snapshot = world.snapshot()
    assert {each: of.cpuset for each, of in snapshot.containers.items()} == {
        "c-own-main": "1",
        "c-ls-main": "0,2-3",
        created.id: "0,2-3",
    }


def test_partitions_can_end_before_a_pass_writes(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    group = "kubepods/burstable/podown/c-own-main"
    seen = []

    def before(_pods: tuple[podvalues.Pod, ...], _: Topology, decision: pools.Decision) -> None:
        seen.append((world.cpus(group), [owner.cpuset for owner in decision.owners]))

    with mock.patch("agent.node.enforcement._nothing", before):
        agent = world.agent()
    agent.reconcile()
    assert seen == [("0-3", ["1"])]
    assert world.cpus(group) == "1"


@pytest.mark.parametrize("state", [ContainerState.RUNNING, ContainerState.CREATED])
def test_containers_of_virtual_machines_are_not_written(
    world: World, state: ContainerState, caplog: pytest.LogCaptureFixture
) -> None:
    in_vm = world.container(world.sandbox("vm", "LS", handler="kata-qemu"), state=state)
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    for _ in range(2):
        agent.reconcile()
    if state is ContainerState.RUNNING:
        assert world.cpus(f"kubepods/burstable/podvm/{in_vm.id}") == "0-3"
    assert world.runtime.updates == {}
    assert world.cpus("kubepods/burstable/podown/c-own-main") == "1"
    assert not [each for each in caplog.records if "vm" in each.getMessage()]


def test_failed_write_of_the_journal_does_not_delay_the_snapshot(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    (world.state / "journal").mkdir()
    (world.state / "journal" / "full").touch()
    agent = world.agent()
    (world.state / "journal.broken").rename(world.state / "journal")
    agent.notified([Created("c-own-main", LinuxResources("0-2"))])
    with pytest.raises(ReconcileError):
        agent.reconcile()
    assert world.snapshot().pods["own"].each.cpuset == "1"
    (world.state / "journal" / "full").unlink()
    (world.state / "journal").rmdir()
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podown/c-own-main") == "1"
    assert '"cpus": "0-2"' in (world.state / "journal").read_text(), "the request is stored"


def test_notification_of_an_ended_container_is_dropped(world: World) -> None:
    agent = world.agent()
    agent.notified([Created("c-p-main", LinuxResources("0"))])
    agent.reconcile()
    world.container(world.sandbox("p", "LS"))
    world.container(world.sandbox("own", "LSE", "1"))
    agent.reconcile()
    journal = (world.state / "journal").read_text()
    assert "c-p-main" in journal
    assert '"cpus": "0"' not in journal


def test_repeatedly_restarting_container_leaves_nothing_in_the_journal(world: World) -> None:
    pod = world.sandbox("p", "LSR", "1")
    parent = "kubepods/burstable/podp"
    agent = world.agent()
    for number in range(5):
        container = world.container(pod, f"try{number}")
        agent.notified([Created(container.id, LinuxResources("0-2", quota=CpuQuota(5)))])
        agent.reconcile()
        world.end_container(container)
        for controller in ("cpuset", "cpu", "memory"):
            shutil.rmtree(world.cpuset.parent / controller / parent / container.id)
    journal = Journal(world.state / "journal")
    last = f"/{parent}/{container.id}"
    assert list(journal.originals) == [last]
    assert list(journal.values) == [(last, "cpu.cfs_quota_us")]


def test_snapshot_answers_every_notification(world: World) -> None:
    agent = world.agent()
    agent.reconcile()
    first = world.snapshot()
    agent.reconcile()
    assert world.snapshot() == first
    agent.notified([SnapshotRequest()])
    agent.reconcile()
    assert world.snapshot().generation == first.generation + 1
    assert world.snapshot().listed_at > first.listed_at


SESSION = (7, 1 << 40)


@pytest.mark.parametrize("end", ["session-ended", "sandbox-removed", "deleted", "terminal"])
def test_an_announced_pod_that_ended_keeps_no_cpus_from_others(world: World, end: str) -> None:
    status = claim("3")
    announced = PodAnnounced("dead", "ns", "dead", {}, status, "/kubepods/poddead", SESSION)
    api_pod = apiobjects.from_object(
        {
            "metadata": {"uid": "dead", "namespace": "ns", "name": "dead", "annotations": status},
            "spec": {"nodeName": "n"},
            "status": {"phase": "Pending"},
        }
    )
    in_api = end in ("deleted", "terminal")
    world.cluster_objects.pods = {"dead": api_pod} if in_api else {}
    agent = world.agent()
    agent.notified([announced])
    agent.reconcile()
    assert [owner.title for owner in world.snapshot().owners] == ["ns/dead"]
    world.container(world.sandbox("own", "LSE", "3"))
    if end == "session-ended":
        agent.notified([SessionEnded(SESSION)])
    elif end == "sandbox-removed":
        agent.notified([SnapshotRequest(waits=False, sandbox_uid="dead")])
    elif end == "deleted":
        world.cluster_objects.pods = {}
    else:
        world.cluster_objects.pods = {"dead": msgspec.structs.replace(api_pod, phase=Phase.FAILED)}
    agent.reconcile()
    assert [owner.title for owner in world.snapshot().owners] == ["ns/own"]


NEW = PodAnnounced("new", "ns", "new", {}, {}, "/kubepods/burstable/podnew")


@pytest.mark.parametrize("restarted", [False, True], ids=["same-agent", "next-agent"])
def test_a_sandbox_starts_without_cpus_of_owners(world: World, restarted: bool) -> None:
    """The kernel creates a v1 group with the CPUs of its parent."""
    pod = "kubepods/burstable/podnew"
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    world.group(pod)
    agent.notified([NEW])
    agent.reconcile()
    assert (world.cpus(pod), world.snapshot().announced) == ("0,2-3", ("new",))
    world.sandbox("new")
    world.group(f"{pod}/s-new", world.cpus(pod))
    if restarted:
        agent = world.agent()
    agent.reconcile()
    assert (world.cpus(pod), world.cpus(f"{pod}/s-new")) == ("0-3", "0,2-3")
    assert world.snapshot().announced == ()
    writer.restore(Hierarchy(str(world.cpuset.parent)), Journal(world.state / "journal"))
    assert (world.cpus(pod), world.cpus(f"{pod}/s-new")) == ("0-3", "0-3")


def test_announced_pod_follows_the_pool_and_gets_its_cpus_back_when_its_sandbox_fails(
    world: World,
) -> None:
    pod = "kubepods/burstable/podnew"
    owner = world.sandbox("own", "LSE", "1")
    agent = world.agent()
    world.group(pod)
    agent.notified([NEW])
    agent.reconcile()
    world.sandbox("second", "LSE", "3")
    agent.reconcile()
    assert world.cpus(pod) == "0,2"
    world.runtime.listed_sandboxes.remove(owner)
    agent.reconcile()
    assert world.cpus(pod) == "0-2"
    agent.notified([PodFailed("new")])
    agent.reconcile()
    assert world.cpus(pod) == "0-3"
    assert "/kubepods/burstable/podnew" not in Journal(world.state / "journal")


def test_announced_pod_keeps_all_cpus_that_no_other_pod_owns(world: World) -> None:
    """A runtime may run the monitor of a container on any of these CPUs."""
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    for uid, cpus in (("first", "2"), ("second", "3")):
        world.group(f"kubepods/pod{uid}")
        agent.notified([PodAnnounced(uid, "ns", uid, {}, claim(cpus), f"/kubepods/pod{uid}")])
    agent.reconcile()
    assert world.cpus("kubepods/podfirst") == "0,2"
    assert world.cpus("kubepods/podsecond") == "0,3"


@pytest.mark.parametrize("cgroup_parent", ["", "/kubepods", "/kubepods/podabsent"])
def test_only_the_group_of_the_announced_pod_is_narrowed(world: World, cgroup_parent: str) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.notified([PodAnnounced("absent", "ns", "absent", {}, {}, cgroup_parent)])
    agent.reconcile()
    assert (world.cpus("kubepods"), world.snapshot().announced) == ("0-3", ("absent",))
    assert not (world.cpuset / "kubepods/podabsent").exists()


@pytest.mark.parametrize("pattern", ["ns/new", "ns/n*/side"])
def test_excluded_pod_keeps_its_cpus_and_is_not_delayed(world: World, pattern: str) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.exclude = (pattern,)
    world.group("kubepods/burstable/podnew")
    agent.notified([NEW])
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podnew") == "0-3"
    assert world.snapshot().announced == ("new",)


@pytest.mark.parametrize("key", podvalues.ANNOTATIONS)
@pytest.mark.parametrize("text", ["," * 1_000_000, '{"x":' + "[" * 1_000, "\0"])
def test_no_annotation_of_a_pod_fails_a_pass(world: World, key: str, text: str) -> None:
    world.container(world.sandbox("bad", "LSE", "2"))
    world.runtime.listed_sandboxes[0].annotations[key] = text
    world.container(world.sandbox("own", "LSE", "1"))
    world.agent().reconcile()
    assert world.cpus("kubepods/burstable/podown/c-own-main") == "1"


def test_objects_that_cannot_be_stored_do_not_delay_the_snapshot(world: World) -> None:
    (world.state / "objects").write_text("")
    with pytest.raises(StoreError):
        world.agent().reconcile()
    assert world.snapshot().generation == 1


def test_policy_of_the_kubelet_is_reported_when_nothing_else_changes(world: World) -> None:
    agent = world.agent()
    agent.reconcile()
    (world.kubelet / "cpu_manager_state").write_text('{"policyName":"static"}')
    agent.reconcile()
    stored = (world.state / "objects/noderesourcetopology/n.yaml").read_text()
    annotations = yaml.safe_load(stored)["metadata"]["annotations"]
    assert annotations["kubelet.koordinator.sh/cpu-manager-policy"] == '{"policy":"static"}'


def test_cpus_of_a_resource_claim_are_exclusive_to_its_containers(world: World) -> None:
    """The kubelet and the driver must report the ResourceClaim; an earlier owner keeps its CPUs."""
    claimed, sharer = world.sandbox("c"), world.sandbox("ls", "LS")
    container = world.container(claimed)
    world.container(sharer)
    world.container(world.sandbox("own", "LSE", "2"))
    environment = (("DRA_CPUSET_1", "1-2"),)
    world.runtime.carriers[container.id] = Carriers(environment=environment)
    agent = world.agent()
    agent.reconcile()
    groups = [f"kubepods/burstable/pod{uid}/c-{uid}-main" for uid in ("c", "ls", "own")]
    assert [world.cpus(each) for each in groups] == ["0-1,3", "0-1,3", "2"], (
        "the kubelet does not report the claim"
    )
    device = ClaimedDevice("dra.cpu", "n", "cpudevnuma000", ("dra.k8s.io/cpu=claim-1",))
    resources = ContainerResources("main", claims=(ResourceClaim("ns", "x", (device,)),))
    listed = PodResources("ns", "c", (resources,))
    world.pod_resources.answer = PodResourcesAnswer((listed,), None, 0.0)
    agent.reconcile()
    assert [world.cpus(each) for each in groups] == ["1", "0,3", "2"]
    (topology,) = (world.state / "objects" / "noderesourcetopology").iterdir()
    assert '"cpuset":"1-2"' in topology.read_text()
    world.runtime.listed_sandboxes.remove(claimed)
    world.end_container(container)
    agent.reconcile()
    assert world.cpus(groups[1]) == "0-1,3"


class CountedCalls:
    """Calls a function, and counts the calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.calls = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self._function(*args, **options)


def test_a_pass_without_changes_requests_two_lists_of_the_runtime_and_decides_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid, qos, cpus in (("own", "LSE", "1"), ("ls", "LS", ""), ("be", "BE", "")):
        sandbox = world.sandbox(uid, qos, cpus)
        world.group(f"kubepods/burstable/pod{uid}/{sandbox.id}")
        world.container(sandbox)
    counted = {}
    for name in ("sandboxes", "containers", "sandbox_status", "container_status", "update"):
        counted[name] = CountedCalls(getattr(world.runtime, name))
        monkeypatch.setattr(world.runtime, name, counted[name])
    decide = CountedCalls(pools.decide)
    monkeypatch.setattr(pools, "decide", decide)
    report_values = CountedCalls(reports.report_values)
    monkeypatch.setattr(reports, "report_values", report_values)
    agent = world.agent()
    for _ in range(3):  # the second pass reads the owner in the first one's snapshot
        agent.reconcile()
    before = {name: each.calls for name, each in counted.items()}, decide.calls, report_values.calls
    agent.reconcile()
    after = {name: each.calls for name, each in counted.items()}, decide.calls, report_values.calls
    expected = before[0] | {name: before[0][name] + 1 for name in ("sandboxes", "containers")}
    assert after == (expected, *before[1:])


@pytest.mark.parametrize("group", ["c-ls-main", "s-ls"])
def test_a_pass_without_changes_restores_values_that_another_process_wrote(
    world: World, group: str
) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    sandbox = world.sandbox("ls", "LS")
    world.group(f"kubepods/burstable/podls/{sandbox.id}")
    world.container(sandbox)
    agent = world.agent()
    for _ in range(3):
        agent.reconcile()
    path = f"kubepods/burstable/podls/{group}"
    assert world.cpus(path) == "0,2-3"
    (world.cpuset / path / "cpuset.cpus").write_text("0-3\n")
    agent.reconcile()
    assert world.cpus(path) == "0,2-3"
    world.container(sandbox, "late")
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podls/c-ls-late") == "0,2-3"


def test_a_pass_succeeds_without_the_cgroup_of_a_sandbox(world: World) -> None:
    sandbox = world.sandbox("ls", "LS")
    group = f"kubepods/burstable/podls/{sandbox.id}"
    world.group(group)
    world.container(sandbox)
    owner = world.sandbox("own", "LSE", "1")
    agent = world.agent()
    agent.reconcile()
    assert world.cpus(group) == "0,2-3"
    shutil.rmtree(world.cpuset / group)
    world.container(owner)
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podown/c-own-main") == "1"


def bound(uid: str, qos: str, cpus: str, limit_milli: int, scheduler: str = "s") -> ApiPod:
    """A pod of this node that requests 2 CPUs."""
    annotations = claim(cpus)
    containers = (ApiContainer("main", {"cpu": 2000}, {"cpu": limit_milli}),)
    return ApiPod(
        uid,
        "ns",
        uid,
        "n",
        Phase.PENDING,
        {QOS_LABEL: qos},
        annotations,
        "burstable",
        1,
        containers=containers,
        scheduler=scheduler,
    )


@pytest.mark.parametrize(("limit_milli", "owns"), [(2000, True), (4000, False)])
def test_a_pod_whose_limit_differs_gets_the_pool_and_an_event(
    world: World, limit_milli: int, owns: bool
) -> None:
    world.cluster_objects.pods["a"] = bound("a", "LSR", "2-3", limit_milli)
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    agent.reconcile()
    container = world.container(world.sandbox("a", "LSR", "2-3"))
    agent.reconcile()
    assert world.cpus(f"kubepods/burstable/poda/{container.id}") == ("2-3" if owns else "0-3")
    assert [each.uid for each in world.snapshot().owners] == ["a"] * owns
    if not owns:
        ((about, reason, note),) = recorded.events
        assert (about.uid, reason) == ("a", CLAIM_NOT_HONORED)
        assert "container main: requests.cpu is 2, limits.cpu is 4" in note


def test_a_pod_of_another_scheduler_shares_the_pool_and_gets_an_event(world: World) -> None:
    world.cluster_objects.pods["a"] = bound("a", "LSE", "", 2000, "default-scheduler")
    container = world.container(world.sandbox("a", "LSE"))
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    for _ in range(2):
        agent.reconcile()
    assert world.cpus(f"kubepods/burstable/poda/{container.id}") == "0-3"
    ((about, reason, note),) = recorded.events
    assert (about.uid, reason) == ("a", NO_CPUS_ALLOCATED)
    assert "default-scheduler" in note


def test_without_an_api_server_log_and_metrics_name_the_pods(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The resources of the pod's sandbox show that its limit differs from its request."""
    sandbox = world.sandbox("a", "LSR", "2-3")
    unequal = "its sandbox: requests.cpu is 2, limits.cpu is 4"
    world.runtime.statuses[sandbox.id] = msgspec.structs.replace(
        world.runtime.statuses[sandbox.id], unequal=unequal
    )
    container = world.container(sandbox)
    world.container(world.sandbox("b", "LSE"))
    world.agent().reconcile()
    assert world.cpus(f"kubepods/burstable/poda/{container.id}") == "0-3"
    logged = "\n".join(caplog.messages)
    assert f"pod ns/a keeps the pool: annotation {RESOURCE_STATUS}: {unequal}" in logged
    assert "pod ns/b: no scheduler allocated CPUs to this LSE pod" in logged
    page = world.metrics.render()
    assert "topolet_pods_without_allocated_cpus 1" in page
    assert f'topolet_refused_claims{{annotation="{RESOURCE_STATUS}",namespace="ns",pod="a"' in page
