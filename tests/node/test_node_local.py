"""Node-local CPU policies in the reconciler, from the proxy's notification to cgroups and
snapshot."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.allocate.device_holders.reported_devices import Carriers
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.cri.client import Sandbox
from agent.discover.cpus import TopologyView
from agent.host.kernel_events import MOVED_TO, Inotify
from agent.kubelet.configuration import of_object
from agent.model import snapshot
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    PodAnnounced,
    Resized,
)
from agent.model.pod.pod_resources import (
    ClaimedDevice,
    ContainerResources,
    PluginDevice,
    PodResources,
    ResourceClaim,
)
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import CpuPolicy, Wanted
from agent.model.verdict import Code
from agent.node import node_local
from agent.node.kubelet_view import PodResourcesAnswer
from agent.node.node_local import NodeLocalCpus
from agent.node.reconcile import Reconciler
from tests.node.world import World

STATIC = NodeLocalCpus("static")


def guaranteed(world: World, uid: str, qos: str = "", *, handler: str = "") -> Sandbox:
    parent = f"/kubepods/pod{uid}"
    sandbox = world.sandbox(uid, qos, parent=parent, handler=handler)
    if not handler:
        world.group(f"{parent[1:]}/{sandbox.id}", world.cpus(""))
    return sandbox


def announced_container(uid: str, cpus: int, name: str = "main") -> ContainerAnnounced:
    pod = PodAnnounced(uid, "ns", uid, {}, {}, f"/kubepods/pod{uid}")
    return ContainerAnnounced(pod, name, LinuxResources(shares=1024 * cpus))


def decided(world: World, uid: str, name: str = "main") -> Wanted:
    return world.snapshot().pods[uid].containers[name]


def announce(world: World, agent: Reconciler, uid: str, cpus: int, name: str = "main") -> str:
    """Announces a container; returns the CPUs that are decided for it."""
    agent.notified([announced_container(uid, cpus, name)])
    agent.reconcile()
    return decided(world, uid, name).cpuset or ""


def start(world: World, agent: Reconciler, sandbox: Sandbox, cpus: int, name: str = "main") -> str:
    """Announces a container, creates it as decided, and reconciles; returns its group."""
    chosen = announce(world, agent, sandbox.uid, cpus, name)
    container = world.container(sandbox, name, cpus=cpus, cpuset=chosen)
    agent.reconcile()
    return f"kubepods/pod{sandbox.uid}/{container.id}"


def pool(world: World) -> CpuSet:
    snapshot = world.snapshot()
    assert snapshot.pools["ls"] == snapshot.pools["be"]
    return CpuSet.parse(",".join(each.cpuset for each in snapshot.pools["ls"]))


def test_container_gets_cpus_before_its_creation_and_others_are_moved_away(world: World) -> None:
    world.container(world.sandbox("ls", "LS"))
    world.container(world.sandbox("be", "BE"))
    sandbox = guaranteed(world, "g")
    agent = world.agent(STATIC)
    assert announce(world, agent, "g", 2) == "0-1"
    assert decided(world, "g") == Wanted(LinuxResources("0-1", quota=NO_QUOTA), exclusive=True)
    assert world.cpus("kubepods/burstable/podls/c-ls-main") == "2-3"
    assert world.cpus("kubepods/burstable/podbe/c-be-main") == "2-3"
    container = world.container(sandbox, cpus=2, cpuset="0-1")
    world.container(sandbox, "side", cpus=0)
    agent.reconcile()
    assert world.cpus(f"kubepods/podg/{container.id}") == "0-1"
    assert world.cpus("kubepods/podg/c-g-side") == "2-3"
    assert world.cpus(f"kubepods/podg/{sandbox.id}") == "2-3"
    world.end_container(container)
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podls/c-ls-main") == "0-3"


@pytest.mark.parametrize(
    ("uid", "qos", "policy", "exclusive"),
    [
        ("guaranteed", "", "static", True),
        ("guaranteed", "LSE", "static", True),
        ("guaranteed", "LS", "static", False),
        ("guaranteed", "BE", "static", False),
        ("guaranteed", "SYSTEM", "static", False),
        ("burstable", "", "static", False),
        ("guaranteed", "", "none", False),
        ("guaranteed", "", None, False),
    ],
)
def test_guaranteed_containers_of_owner_classes_get_exclusive_cpus(
    world: World, uid: str, qos: str, policy: CpuPolicy | None, exclusive: bool
) -> None:
    """Without a policy in the settings too."""
    parent = {"guaranteed": "/kubepods/podp", "burstable": "/kubepods/burstable/podp"}[uid]
    container = world.container(world.sandbox("p", qos, parent=parent), cpus=2)
    settings = AgentSettings(reserved_cpus="3")
    if policy is not None:
        settings = msgspec.structs.replace(settings, cpu_policy=policy)
    world.agent(node_local.configured(settings, TopologyView(world.root), None)).reconcile()
    assert world.cpus(f"{parent[1:]}/{container.id}") == ("0-1" if exclusive else "0-3")
    assert bool(world.snapshot().owners) is exclusive


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_restart_moves_no_container(world: World, with_snapshot: bool) -> None:
    first, second = guaranteed(world, "a"), guaranteed(world, "b")
    world.container(world.sandbox("ls", "LS"))
    agent = world.agent(STATIC)
    groups = [start(world, agent, first, 1), start(world, agent, second, 2)]
    before = [world.cpus(group) for group in groups]
    # A new decision would choose the CPU of the first container.
    world.runtime.delete(first)
    if not with_snapshot:
        (world.state / "snapshot.json").unlink()
    world.agent(STATIC).reconcile()
    assert world.cpus(groups[1]) == before[1]
    assert decided(world, "b") == Wanted(LinuxResources(before[1], quota=NO_QUOTA), exclusive=True)
    assert pool(world) == CpuSet.parse("0-3") - CpuSet.parse(before[1])


def test_container_created_without_an_agent_keeps_its_cpus(
    world: World,
) -> None:
    sandbox = guaranteed(world, "g")
    world.container(world.sandbox("ls", "LS"), cpuset="0-1")
    agent = world.agent(STATIC)
    agent.reconcile()
    container = world.container(sandbox, cpus=2, cpuset="2-3")
    world.agent(STATIC).reconcile()
    assert world.cpus(f"kubepods/podg/{container.id}") == "2-3"


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_restarted_container_returns_to_its_cpus(world: World, with_snapshot: bool) -> None:
    sandbox, other = guaranteed(world, "g"), guaranteed(world, "other")
    agent = world.agent(STATIC)
    start(world, agent, other, 1)
    group = start(world, agent, sandbox, 2)
    before = world.cpus(group)
    world.end_container(world.runtime.listed_containers[1], still_listed=True)
    world.end_container(world.runtime.listed_containers[0])
    if not with_snapshot:
        (world.state / "snapshot.json").unlink()
    agent = world.agent(STATIC)
    agent.reconcile()
    assert decided(world, "g") == Wanted(LinuxResources(before, quota=NO_QUOTA), exclusive=True)
    assert announce(world, agent, "g", 2) == before


def test_refused_container_has_a_reason_and_moves_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    guaranteed(world, "g")
    world.container(world.sandbox("ls", "LS"))
    agent = world.agent(STATIC)
    announce(world, agent, "g", 4)
    reason = "no CPU would be left to share: 4 requested, 4 available"
    assert decided(world, "g") == Wanted(LinuxResources("0-3"), blocked=reason)
    assert world.cpus("kubepods/burstable/podls/c-ls-main") == "0-3"
    assert f"pod ns/g keeps the pool: container main: {reason}" in caplog.text


def test_reserved_cpus_and_options_of_the_kubelet(tmp_path: Path) -> None:
    world = World(tmp_path, cores=4, threads=2)
    siblings = Path(world.root, "sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    first_core = CpuSet.parse(siblings.read_text())
    guaranteed(world, "whole")
    guaranteed(world, "half")
    rules = NodeLocalCpus("static", StaticOptions(full_pcpus_only=True), first_core)
    agent = world.agent(rules)
    chosen = CpuSet.parse(announce(world, agent, "whole", 2))
    assert len(chosen) == 2
    assert not chosen & first_core
    announce(world, agent, "half", 1)
    assert "not a whole number of cores" in decided(world, "half").blocked
    assert pool(world) == CpuSet.parse("0-7") - chosen


def test_a_reserved_amount_takes_whole_cores_from_the_lowest(tmp_path: Path) -> None:
    world = World(tmp_path, cores=4, threads=2)
    siblings = Path(world.root, "sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    first_core = CpuSet.parse(siblings.read_text())
    guaranteed(world, "g")
    kubelet = of_object({"kubeReserved": {"cpu": "1500m"}}, "kubelet 7")
    settings = AgentSettings(cpu_policy="static")
    agent = world.agent(node_local.configured(settings, TopologyView(world.root), kubelet))
    # A container can own all other CPUs: the reserved ones stay shared.
    assert CpuSet.parse(announce(world, agent, "g", 6)) == CpuSet.parse("0-7") - first_core
    assert pool(world) == first_core


@pytest.mark.parametrize(
    ("settings", "kubelet", "shared"),
    [
        ({}, {"reservedSystemCPUs": "2", "kubeReserved": {"cpu": "3"}}, "2"),
        ({}, {"kubeReserved": {"cpu": "600m"}, "systemReserved": {"cpu": "500m"}}, "0-1"),
        ({"reserved_cpus": "3"}, {"reservedSystemCPUs": "2"}, "3"),
    ],
)
def test_the_kubelets_reservation_counts_unless_the_agent_has_its_own(
    world: World, settings: dict[str, str], kubelet: dict[str, Any], shared: str
) -> None:
    of_agent = AgentSettings(cpu_policy="static", **settings)  # type: ignore[arg-type]
    machine = TopologyView(world.root)
    agent = world.agent(node_local.configured(of_agent, machine, of_object(kubelet, "kubelet 7")))
    guaranteed(world, "g")
    rest = CpuSet.parse("0-3") - CpuSet.parse(shared)
    assert announce(world, agent, "g", len(rest)) == str(rest)
    assert pool(world) == CpuSet.parse(shared)


@pytest.mark.parametrize(
    ("kubelet", "why"),
    [
        (None, "the kubelet's configuration is not known"),
        ({"kubeReserved": {"memory": "1Gi"}}, "the kubelet reserves no CPU (kubelet 7)"),
    ],
)
def test_no_policy_without_a_reservation(
    world: World, kubelet: dict[str, Any] | None, why: str
) -> None:
    settings = AgentSettings(cpu_policy="dynamic")
    configuration = None if kubelet is None else of_object(kubelet, "kubelet 7")
    with pytest.raises(SettingsError) as raised:
        node_local.configured(settings, TopologyView(world.root), configuration)
    assert str(raised.value).startswith(f"cpu-policy is dynamic, and {why}: set reserved-cpus, or")


def test_resize_without_a_notification_is_detected(world: World) -> None:
    sandbox = guaranteed(world, "g")
    agent = world.agent(STATIC)
    group = start(world, agent, sandbox, 2)
    world.runtime.set_resources("c-g-main", shares=1024)
    agent.reconcile()
    assert len(CpuSet.parse(world.cpus(group))) == 1


def test_container_resized_to_a_fraction_shares_with_its_requested_quota(
    world: World,
) -> None:
    sandbox = guaranteed(world, "g")
    agent = world.agent(STATIC)
    group = start(world, agent, sandbox, 2)
    for limited in (group, "kubepods/podg"):
        world.limits(limited, "cpu.cfs_quota_us", "200000")
    world.agent(STATIC).reconcile()
    for lifted in (group, "kubepods/podg"):
        assert world.limit(lifted, "cpu.cfs_quota_us") == "-1"
    agent = world.agent(STATIC)
    world.runtime.set_resources("c-g-main", shares=1536)
    agent.notified([Resized("c-g-main", LinuxResources(shares=1536, quota=CpuQuota(150_000)))])
    agent.reconcile()
    assert world.cpus(group) == "0-3"
    assert world.limit(group, "cpu.cfs_quota_us") == "150000"
    # A kubelet reduces the pod's own group after those of its containers.
    assert world.limit("kubepods/podg", "cpu.cfs_quota_us") == "200000"


def test_a_container_without_a_status_keeps_its_cpus(world: World) -> None:
    sandbox = guaranteed(world, "g")
    agent = world.agent(STATIC)
    group = start(world, agent, sandbox, 2)
    world.runtime.failing["c-g-main"] = Code.UNKNOWN
    for each in (agent, world.agent(STATIC)):
        each.reconcile()
        assert world.cpus(group) == "0-1"


def test_containers_of_virtual_machines_share(world: World) -> None:
    sandbox = guaranteed(world, "vm", handler="kata-qemu")
    agent = world.agent(STATIC)
    announce(world, agent, "vm", 2)
    assert decided(world, "vm") == Wanted(LinuxResources("0-3"))
    world.container(sandbox, cpus=2)
    agent.reconcile()
    assert world.snapshot().owners == ()


def test_a_container_keeps_its_cpus_without_its_sandbox(world: World) -> None:
    sandbox = guaranteed(world, "g")
    agent = world.agent(STATIC)
    group = start(world, agent, sandbox, 2)
    world.runtime.listed_sandboxes[0] = msgspec.structs.replace(sandbox, ready=False)
    agent.reconcile()
    assert decided(world, "g") == Wanted(LinuxResources("0-1", quota=NO_QUOTA), exclusive=True)
    assert world.cpus(group) == "0-1"


def test_excluded_container_claims_nothing(world: World) -> None:
    sandbox = guaranteed(world, "g")
    world.container(sandbox, cpus=2)
    agent = world.agent(STATIC)
    agent.exclude = snapshot.parse_patterns("ns/g/main")
    agent.reconcile()
    assert world.snapshot().owners == ()


def test_policy_is_inactive_while_the_kubelet_has_the_static_policy(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = guaranteed(world, "g")
    agent = world.agent(STATIC)
    group = start(world, agent, sandbox, 2)
    (world.kubelet / "cpu_manager_state").write_text('{"policyName":"static"}')
    for _ in range(2):
        agent.reconcile()
    assert world.snapshot().cpu_policy == "none"
    assert world.cpus(group) == "0-3"
    assert caplog.text.count("cpu-policy is static, but the kubelet's cpuManagerPolicy is") == 1


def cpus_file(world: World, uid: str, name: str = "main") -> dict[str, object]:
    path = world.state / "containers" / uid / name / "cpus"
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


@pytest.fixture
def two_nodes(tmp_path: Path) -> World:
    """Two NUMA nodes of five CPUs."""
    return World(tmp_path, cores=5, nodes=2)


def test_dynamic_container_moves_to_better_cpus_and_its_file_is_written(two_nodes: World) -> None:
    rules = NodeLocalCpus("dynamic", reserved=CpuSet([4]))
    agent = two_nodes.agent(rules)
    for uid, cpus in (("b", 3), ("c", 4)):
        start(two_nodes, agent, guaranteed(two_nodes, uid), cpus)
    sandbox = guaranteed(two_nodes, "a")
    assert announce(two_nodes, agent, "a", 2) == "3,9"
    assert cpus_file(two_nodes, "a") == {"cpus": "3,9", "generation": 1}, (
        "before the container is created"
    )
    two_nodes.container(sandbox, cpus=2, cpuset="3,9")
    agent.reconcile()
    assert not agent.again
    two_nodes.runtime.delete(two_nodes.runtime.listed_sandboxes[1])
    agent = two_nodes.agent(rules)
    with closing(Inotify()) as inotify:
        inotify.watch(str(two_nodes.state / "containers" / "a" / "main"), MOVED_TO)
        agent.reconcile()
        assert [each.name for each in inotify.read()] == ["cpus"]
    assert agent.again
    moved = two_nodes.cpus("kubepods/poda/c-a-main")
    assert CpuSet.parse(moved) <= CpuSet.parse("5-9")
    assert cpus_file(two_nodes, "a") == {"cpus": moved, "generation": 2}
    assert not (two_nodes.state / "containers" / "c").exists(), "its pod is deleted"
    agent.reconcile()
    assert not agent.again
    assert cpus_file(two_nodes, "a") == {"cpus": moved, "generation": 2}


def test_container_that_starts_sharing_gets_the_pool_in_its_file(world: World) -> None:
    sandbox = guaranteed(world, "g")
    start(world, world.agent(NodeLocalCpus("dynamic")), sandbox, 2)
    world.runtime.set_resources("c-g-main", shares=1536)
    world.agent(NodeLocalCpus("dynamic")).reconcile()
    assert cpus_file(world, "g") == {"cpus": "0-3", "generation": 2}


def test_failed_write_of_a_container_file_does_not_delay_the_snapshot(world: World) -> None:
    (world.state / "containers").write_text("")
    guaranteed(world, "g")
    agent = world.agent(NodeLocalCpus("dynamic"))
    agent.notified([announced_container("g", 2)])
    with pytest.raises(RuntimeError, match="ns/g main can't read its CPUs"):
        agent.reconcile()
    assert decided(world, "g").cpuset == "0-1"


@pytest.mark.parametrize(
    ("options", "reserved", "reason"),
    [
        ("full-pcpus", "", "cpu-policy-options: 'full-pcpus' is not one of align-by-socket, "),
        (
            "full-pcpus-only, distribute-cpus-across-cores",
            "",
            "cpu-policy-options: full-pcpus-only and distribute-cpus-across-cores: options exclude",
        ),
        ("", "0-", "reserved-cpus: CPU list '0-'"),
        ("", "0,99", "reserved-cpus: CPUs 99 do not exist"),
    ],
)
def test_invalid_settings_name_the_option(
    world: World, options: str, reserved: str, reason: str
) -> None:
    settings = AgentSettings(
        cpu_policy="static", cpu_policy_options=options, reserved_cpus=reserved
    )
    with pytest.raises(SettingsError) as raised:
        node_local.configured(settings, TopologyView(world.root), None)
    assert str(raised.value).startswith(reason)


@pytest.mark.parametrize(
    ("policy", "kubelet", "starts"),
    [("static", "static", False), ("dynamic", "static", False), ("static", "none", True),
     ("none", "static", True)],
)  # fmt: skip
def test_static_kubelet_and_policy_exclude_each_other(
    world: World, policy: str, kubelet: str, starts: bool
) -> None:
    (world.kubelet / "cpu_manager_state").write_text(json.dumps({"policyName": kubelet}))
    settings = AgentSettings(cpu_policy=policy, kubelet_dir=str(world.kubelet))  # type: ignore[arg-type]
    if starts:
        node_local.check_kubelet(settings)
        return
    with pytest.raises(SettingsError) as raised:
        node_local.check_kubelet(settings)
    for word in (f"cpu-policy is {policy}", "drain", "cpu_manager_state", "cpuManagerPolicy"):
        assert word in str(raised.value)


def write_device_checkpoint(
    world: World, uid: str, *entries: tuple[str, dict[str, list[str]]]
) -> None:
    """A checkpoint of the kubelet in which containers have these devices, by NUMA node."""
    path = world.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
    path.parent.mkdir(exist_ok=True)
    devices = [
        {"PodUID": uid, "ContainerName": name, "ResourceName": "example.com/nic", "DeviceIDs": ids}
        for name, ids in entries
    ]
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": devices}}))


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_container_gets_cpus_near_its_devices_of_device_plugins(
    two_nodes: World, policy: CpuPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sandbox = guaranteed(two_nodes, "g")
    agent = two_nodes.agent(NodeLocalCpus(policy))
    write_device_checkpoint(two_nodes, "g", ("main", {"1": ["nic-1"], "-1": ["fuse"]}))
    group = start(two_nodes, agent, sandbox, 2)
    assert two_nodes.cpus(group) == "5-6"
    assert "ns/g main: CPUs 5-6 on NUMA nodes 1: its devices are on 1" in caplog.text
    assert announce(two_nodes, agent, "g", 2, "side") == "7-8", "near the devices of its pod"
    assert caplog.text.count("ns/g main: CPUs") == 1
    # A restart moves no container, even if the checkpoint can't be read.
    (two_nodes.kubelet / "device-plugins" / "kubelet_internal_checkpoint").write_text("{")
    agent = two_nodes.agent(NodeLocalCpus(policy))
    agent.reconcile()
    assert two_nodes.cpus(group) == "5-6"
    assert not agent.again


def test_devices_of_pod_resources_are_used(two_nodes: World) -> None:
    plugin_device = PluginDevice("example.com/nic", "nic-1", (1,))
    listed = PodResources("ns", "g", (ContainerResources("main", devices=(plugin_device,)),))
    two_nodes.pod_resources.answer = PodResourcesAnswer((listed,), None, 0.0)
    guaranteed(two_nodes, "g")
    assert announce(two_nodes, two_nodes.agent(STATIC), "g", 2) == "5-6"


def test_container_gets_cpus_where_its_huge_pages_are_free(two_nodes: World) -> None:
    for node, free in (("node0", 3), ("node1", 4)):
        pool = Path(two_nodes.root, f"sys/devices/system/node/{node}/hugepages/hugepages-2048kB")
        (pool / "nr_hugepages").write_text("4")
        (pool / "free_hugepages").write_text(str(free))
    agent = two_nodes.agent(NodeLocalCpus("static", root=two_nodes.root))
    for uid, pages, expected in (("a", 4, "5-6"), ("b", 3, "0-1"), ("c", 1, "2-3")):
        sandbox = guaranteed(two_nodes, uid)
        hugepages = {2 << 20: pages * 2 << 20}
        requested = LinuxResources(shares=2048, hugepages=hugepages)
        agent.notified([msgspec.structs.replace(announced_container(uid, 2), requested=requested)])
        agent.reconcile()
        assert decided(two_nodes, uid).cpuset == expected
        container = two_nodes.container(sandbox, cpus=2, cpuset=expected)
        two_nodes.runtime.set_resources(container.id, hugepages=hugepages)
        agent.reconcile()


def test_a_container_with_cpus_of_a_resource_claim_gets_no_others(world: World) -> None:
    sandbox = guaranteed(world, "c")
    container = world.container(sandbox, cpus=2)
    variable = (("DRA_CPUSET_1", "2"),)
    world.runtime.carriers[container.id] = Carriers(environment=variable)
    device = ClaimedDevice("dra.cpu", "n", "cpudevnuma000", ("dra.k8s.io/cpu=claim-1",))
    resources = ContainerResources("main", claims=(ResourceClaim("ns", "x", (device,)),))
    listed = PodResources("ns", "c", (resources,))
    world.pod_resources.answer = PodResourcesAnswer((listed,), None, 0.0)
    agent = world.agent(STATIC)
    agent.reconcile()
    assert world.snapshot().local_owners == ()
    assert decided(world, "c").cpuset == "2"
    assert announce(world, agent, guaranteed(world, "other").uid, 2) == "0-1"
