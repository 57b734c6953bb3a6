"""The agent's sampler and its NodeMetric, without a runtime and an API server."""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.allocate.colocation.cpu_burst import SharedUse
from agent.allocate.pools import Decision
from agent.cgroup.hierarchy import Controllers, mounted
from agent.kube.errors import KubeError, ServerError
from agent.kube.objects import Kind
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse
from agent.model.nrt.node_annotations import CPU_NORMALIZATION_RATIO, RESERVATION
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError
from agent.model.pod.apiobjects import ApiContainer, ApiNode, ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QOS_LABEL, Pool, QoS
from agent.model.snapshot import Owner
from agent.node.cluster_view import ClusterState
from agent.node.report import GpuMoment
from agent.node.sources import Sources
from agent.node.strategies import StrategiesView
from agent.node.usage import (
    CgroupUse,
    NodeMetricReporter,
    UsageView,
    changes,
    cpus_by_pool,
    sampled_pod,
    without_memory,
)
from agent.telemetry.metrics import AgentMetrics
from agent.usage.batch_mid import PodLoad
from agent.usage.machine import GroupMemory
from agent.usage.node_metric import CollectPolicy, NodeMemoryPolicy, UsedNode, UsedPod
from agent.usage.prediction import Peak
from agent.usage.sampler import SampledPod, Used
from agent.usage.series import aggregate
from agent.usage.traffic import DiskTraffic
from tests.builders import machine, pod
from tests.cgroup.real_groups import RealGroups
from tests.telemetry.scrape import samples
from tests.waiting import eventually

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ONE = aggregate([1.0], [1.0])
NO_DECISION = Decision((), {}, (), {})
ROOT = os.environ.get("TOPOLET_CGROUP_ROOT", "/sys/fs/cgroup")


def container(name: str, group: str | None, *, virtual: bool = False) -> Container:
    return Container(name, name, ContainerState.RUNNING, group, virtual)


def test_a_pod_is_sampled_by_the_cgroup_above_its_containers() -> None:
    main, without = container("main", "/kubepods/pod1/main"), container("side", None)
    pause = msgspec.structs.replace(container("pause", "/kubepods/pod1/pause"), pid=7)
    both = pod("a", containers=(main, without))
    of_main = {"main": "/kubepods/pod1/main"}
    sampled = SampledPod("a", "/kubepods/pod1", of_main, ("pause", 7))
    assert sampled_pod(msgspec.structs.replace(both, sandboxes=(pause,))) == sampled
    alone = msgspec.structs.replace(pod("a"), sandboxes=(pause,))
    assert sampled_pod(alone) == SampledPod("a", "/kubepods/pod1", process=("pause", 7))
    without_pause = pod("a", containers=(msgspec.structs.replace(main, pid=8), without))
    assert sampled_pod(without_pause) == SampledPod("a", "/kubepods/pod1", of_main, ("main", 8))
    virtual = container("main", "/kubepods/pod1/main", virtual=True)
    assert sampled_pod(pod("a", containers=(virtual, without))) is None


def test_the_patch_has_only_what_differs() -> None:
    stored = {"a": 1, "b": {"c": 2, "d": 3}, "list": [1], "other": 5}
    wanted = {"a": 1, "b": {"c": 2, "d": 4}, "list": [1, 2], "new": {"e": 1}}
    assert changes(stored, wanted) == {"b": {"d": 4}, "list": [1, 2], "new": {"e": 1}}
    assert changes(None, wanted) == wanted
    assert changes(stored, {"b": {"c": 2}}) == {"b": {"d": None}}


def test_memory_that_the_kernel_cannot_tell_is_missing() -> None:
    both = Used(ONE, ONE)
    used = UsedNode(both, both, ((300, both, both),), {0: both}, (UsedPod("n", "p", "", "", both),))
    less = without_memory(used)
    assert less.node == less.pods[0].used == less.aggregated[0][1] == Used(ONE)
    assert less.system == less.numa[0] == both


def test_pods_train_the_models_of_their_class(tmp_path: Path) -> None:
    """The machine itself is sampled; its pods have no cgroup that could be read."""
    api_pod = ApiPod("a", "ns", "a", "n", Phase.RUNNING, {}, {}, "burstable", 0)
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics(), now=lambda: 2 * 86_400.0)
    node = ApiNode(allocatable={"cpu": 4000, "memory": 1 << 30})
    cluster = ClusterState(node, {"a": api_pod}, pods_listed=True)
    assert view.allocatable_bytes() is None
    view.follow([pod("a")], cluster, machine(1, 2), NO_DECISION)
    assert view.allocatable_bytes() == 1 << 30
    for _ in range(2):
        view.sampler.sample()
    assert view.used(CollectPolicy()).prod is None, "the models have no samples"
    view.train()
    prod = view.used(CollectPolicy()).prod
    assert prod is not None
    assert prod.peak.cpu_milli > 0
    assert prod.reclaimable == Peak()


def test_pods_that_own_cpus_are_no_part_of_the_shared_use(tmp_path: Path) -> None:
    def api_pod(name: str, qos: str) -> ApiPod:
        labels = {QOS_LABEL: qos}
        requests = (ApiContainer("main", {"cpu": 500}),)
        return ApiPod(
            name, "ns", name, "n", Phase.RUNNING, labels, {}, "burstable", 0, containers=requests
        )

    in_api = {name: api_pod(name, qos) for name, qos in (("a", "LSR"), ("b", "LSE"), ("c", "LS"))}
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics())
    assert view.shared_use() is None
    node = ApiNode(annotations={CPU_NORMALIZATION_RATIO: "1.20"})
    pods, topology = [pod(name) for name in in_api], machine(1, 2)
    view.follow(pods, ClusterState(node, in_api, pods_listed=True), topology, NO_DECISION)
    assert view.shared_use() == SharedUse(len(topology.cpus), 1000, None, 1.2)
    for _ in range(2):
        view.sampler.sample()
    sampled = view.shared_use()
    assert sampled is not None
    assert sampled.used_cores is not None
    wrong = ApiNode(annotations={CPU_NORMALIZATION_RATIO: "fast"})
    view.follow(pods, ClusterState(wrong, in_api, pods_listed=True), topology, NO_DECISION)
    with pytest.raises(AnnotationError, match=r"'fast' is not a number"):
        view.shared_use()


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    """Where both versions are mounted, also in that of v2, which has PSI."""
    cpu = None if os.geteuid() else mounted(ROOT, "cpu")
    if cpu is None:
        pytest.skip("no cgroups of the cpu controller can be made here")
    mounts = {"cpu": cpu}
    if (cpuacct := mounted(ROOT, "cpuacct")) is not None:
        mounts["cpuacct"] = cpuacct
    if os.path.exists(f"{ROOT}/unified/cgroup.controllers"):
        mounts["pressure"] = 1, f"{ROOT}/unified"  # nothing has to be enabled for it
    made = RealGroups(mounts)
    yield made
    made.close()


def test_a_throttled_container_waits_and_its_pod_without_quota_does_not(
    tmp_path: Path, groups: RealGroups
) -> None:
    group = groups.make("/main")
    v2 = groups.path(group, "cpu.max")
    if v2.exists():
        v2.write_text("2000 10000")
    else:
        groups.path(group, "cpu.cfs_period_us").write_text("10000")
        groups.path(group, "cpu.cfs_quota_us").write_text("2000")
    groups.process(group, sys.executable, "-c", "while True: pass")
    stat = groups.path(group, "cpu.stat")
    # The kernel adds the time when it lets the group run again.
    eventually("it was throttled", lambda: re.search("throttled_.* [1-9]", stat.read_text()))
    metrics = AgentMetrics()
    view = UsageView("/", str(tmp_path), Controllers(ROOT), metrics)
    running = pod("a", containers=(container("main", group), container("gone", f"{group}/gone")))
    view.follow([running], ClusterState(), machine(1, 2), NO_DECISION)
    view.sampler.sample()
    exported = samples(metrics)
    view.close()
    of_pod = {("namespace", "ns"), ("pod", "a")}
    quotas = {
        (name, dict(labels)["container"]): value
        for (name, labels), value in exported.items()
        if "quota" in name or "throttled" in name
    }
    assert set(quotas) == {
        ("topolet_pod_cpu_quota_periods_total", "main"),
        ("topolet_pod_cpu_throttled_periods_total", "main"),
        ("topolet_pod_cpu_throttled_seconds_total", "main"),
    }
    assert all(value > 0 for value in quotas.values())
    waited = frozenset({("resource", "cpu"), ("kind", "some")})
    if any(os.path.exists(f"{tree}{group}/cpu.pressure") for tree in (ROOT, f"{ROOT}/unified")):
        assert exported["topolet_node_pressure_stalled_seconds_total", waited] > 0
        assert exported["topolet_pod_pressure_stalled_seconds_total", waited | of_pod] > 0


def test_units_of_the_host_are_exported(tmp_path: Path) -> None:
    mounts = {each: mounted(ROOT, each) for each in ("cpu", "cpuacct", "memory")}
    if os.geteuid() or mounts["cpu"] is None or mounts["memory"] is None:
        pytest.skip("no cgroups of the controllers can be made here")
    trees = sorted({Path(found[1]) for found in mounts.values() if found})
    name = f"topolet-test-{os.getpid()}.service"
    with ExitStack() as made:
        for tree in trees:
            for group in (tree / "system.slice", tree / "system.slice" / name):
                if not group.exists():
                    group.mkdir()
                    made.callback(group.rmdir)
                if (enabled := group.parent / "cgroup.subtree_control").exists():
                    enabled.write_text("+cpu +memory")
        for tree in trees:
            command = (
                f"echo $$ >{tree}/system.slice/{name}/cgroup.procs; i=0; while [ $i -lt 1000 ]"
            )
            subprocess.run(["sh", "-c", f"{command}; do i=$((i+1)); done"], check=True)
        metrics = AgentMetrics()
        view = UsageView("/", str(tmp_path), Controllers(ROOT), metrics)
        view.sampler.sample()
        exported = samples(metrics)
        view.close()
    unit = frozenset({("unit", name)})
    assert exported["topolet_host_unit_cpu_seconds_total", unit] > 0
    assert exported["topolet_host_unit_used_memory_bytes", unit] >= 0


def test_what_no_cgroup_has_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "cpu/pod").mkdir(parents=True)
    (tmp_path / "cpu/cpu.shares").write_text("1024")
    groups = CgroupUse(Controllers(str(tmp_path)))
    for group in ("/pod", "/pod", "/gone"):
        assert groups.throttling(group) is None
        assert groups.stalls(group) == {}
        assert groups.disks(group) == {}
    assert caplog.messages == [
        f"no {file} can be read in the cgroups of this machine"
        for file in ("cpu.stat", "cpu.pressure", "memory.pressure", "io.pressure", "io.stat")
    ]


@pytest.mark.parametrize(
    ("controllers", "files"),
    [
        (
            {"blkio/blkio.throttle.io_service_bytes": "Total 0"},
            {
                "blkio/pod/blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\n8:0 Write 2\n",
                "blkio/pod/blkio.throttle.io_serviced_recursive": "8:0 Read 3\n8:0 Write 4\n",
                "blkio/pod/blkio.throttle.io_service_bytes": "8:0 Read 0\n8:0 Write 0\n",
                "blkio/pod/blkio.throttle.io_serviced": "8:0 Read 0\n8:0 Write 0\n",
            },
        ),
        (
            {"cgroup.controllers": "cpuset cpu io memory"},
            {"pod/io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"},
        ),
    ],
    ids=["v1", "v2"],
)
def test_disks_of_a_group_are_those_of_all_groups_in_it(
    tmp_path: Path, controllers: dict[str, str], files: dict[str, str]
) -> None:
    for name, text in {**controllers, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    groups = CgroupUse(Controllers(str(tmp_path)))
    assert groups.disks("/pod") == {"8:0": DiskTraffic(1, 2, 3, 4)}


@pytest.mark.parametrize("priority", ["koord-prod", None])
def test_an_application_of_the_host_is_reported_and_counted(
    tmp_path: Path, groups: RealGroups, priority: str | None
) -> None:
    slo = tmp_path / "slo"
    slo.mkdir()
    path = {"parentDir": groups.top, "relativePath": "web"}
    application = {"name": "web", "qos": "LS", "cgroupPath": path}
    if priority is not None:
        application["priority"] = priority
    (slo / "host-application-config").write_text(json.dumps({"applications": [application]}))
    strategies = StrategiesView(
        None, "n", str(slo), str(tmp_path / "strategies.json"), Sources(), lambda: None
    )
    strategies.step()
    view = UsageView("/", str(tmp_path), Controllers(ROOT), AgentMetrics(), strategies)
    cluster = ClusterState(ApiNode(), {}, pods_listed=True)
    view.follow((), cluster, machine(1, 2), NO_DECISION)
    groups.process(groups.make("/web"), sys.executable, "-c", "while True: pass")
    view.sampler._groups = Memory(Controllers(ROOT))

    def cpus() -> float:
        view.sampler.sample()
        used = [application.used.cpus for application in view.used(CollectPolicy()).applications]
        return used[0].last if used and used[0] is not None else 0.0

    eventually("its CPU is known", lambda: cpus() > 0.2)
    (reported,) = view.used(CollectPolicy()).applications
    assert (reported.name, reported.qos, reported.priority_class) == ("web", QoS.LS, priority)
    loaded = view.load()
    assert loaded is not None
    counted = [name for name, _ in loaded[1].applications]
    assert counted == ([] if priority is None else [priority])
    view.close()


class Memory(CgroupUse):
    """Every cgroup has some memory, also where a test can make none of this controller."""

    def memory(self, group: str) -> GroupMemory | None:
        return GroupMemory(5, 9)


def test_gpus_of_the_node_and_of_a_pod_are_reported(tmp_path: Path) -> None:
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics())
    view.sampler._groups = Memory(Controllers())
    cluster = a_pod(Phase.RUNNING, {})
    running = pod("a", containers=(container("main", "/a/main"),))
    gpus = GpuMoment(
        (Device(DeviceType.GPU, "GPU-a", 0, {}),),
        (GpuReading("GPU-a", 50, 20),),
        (GpuUse("GPU-a", "ns/a", "main", 30, 10),),
    )
    for _ in range(2):
        view.follow([running], cluster, machine(1, 2), NO_DECISION, gpus)
        view.sampler.sample()
    used = view.used(CollectPolicy(memory=NodeMemoryPolicy.WITH_HOT_PAGE_CACHE))
    (of_pod,) = used.pods
    for gpu, memory_bytes in ((used.node.gpus[0], 50), (of_pod.used.gpus[0], 30)):
        assert gpu.memory_bytes is not None
        assert gpu.memory_bytes.last == memory_bytes
        assert gpu.memory_bytes.count == 1, "the driver was read once"
    view.close()


def test_the_load_has_every_pod_of_the_node(tmp_path: Path) -> None:
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics())
    assert view.load() is None, "the Node is not known"
    bound = {RESOURCE_STATUS: '{"numaNodeResources":[{"node":1,"resources":{"cpu":"1"}}]}'}
    lse = {"koordinator.sh/qosClass": "LSE"}
    running = ApiPod("a", "ns", "a", "n", Phase.RUNNING, lse, bound, "burstable", 0)
    ended = ApiPod("b", "ns", "b", "n", Phase.SUCCEEDED, {}, {}, "burstable", 0)
    node = ApiNode(
        annotations={RESERVATION: '{"reservedCPUs": "0"}'},
        capacity={"cpu": 4000, "memory": 1 << 30},
        allocatable={"cpu": 3500, "memory": 1 << 29},
    )
    cluster = ClusterState(node, {"a": running, "b": ended}, pods_listed=True)
    view.follow([pod("a")], cluster, machine(2, 1), NO_DECISION)
    assert view.load() is None, "nothing is measured"
    for _ in range(2):
        view.sampler.sample()
    loaded = view.load()
    assert loaded is not None
    assert loaded[0] == node
    load = loaded[1]
    assert load.reserved == {"cpu": 1000, "memory": 1 << 29}
    assert load.system.keys() == load.used.keys() == {"cpu", "memory"}
    assert load.used["memory"] >= load.system["memory"] > 0
    at_1 = PodLoad("koord-prod", exclusive=True, numa_nodes=frozenset([1]))
    assert load.pods == (at_1,)
    assert load.numa_capacity == {node_id: {"cpu": 1000, "memory": 1 << 30} for node_id in (0, 1)}
    owns = msgspec.structs.replace(NO_DECISION, owners=(Owner("a", "ns/a", QoS.LSE, "0,7"),))
    view.follow([pod("a")], cluster, machine(2, 1), owns)
    loaded = view.load()
    assert loaded is not None
    (owner,) = loaded[1].pods
    assert owner.numa_nodes == {0}, "7 is offline"


class Batch(CgroupUse):
    """Every cgroup is idle; `used` is its memory."""

    used: GroupMemory | None = GroupMemory(5, 9)

    def cpu_seconds(self, group: str) -> float | None:
        return 1.0

    def memory(self, group: str) -> GroupMemory | None:
        return self.used


def loads_of(view: UsageView, *clusters: ClusterState) -> list[tuple[PodLoad, ...]]:
    """Of the pod `a` of the runtime, one after the other."""
    loads = []
    for cluster in clusters:
        running = pod("a", containers=(container("main", "/a/main"),))
        view.follow([running], cluster, machine(1, 2), NO_DECISION)
        for _ in range(2):
            view.sampler.sample()
        loaded = view.load()
        assert loaded is not None
        loads.append(loaded[1].pods)
    return loads


def a_pod(phase: Phase, labels: dict[str, str]) -> ClusterState:
    api_pod = ApiPod("a", "ns", "a", "n", phase, labels, {}, "burstable", 0)
    return ClusterState(ApiNode(), {"a": api_pod}, pods_listed=True)


def test_pods_are_not_told_before_all_objects_are_known(tmp_path: Path) -> None:
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics())
    known = a_pod(Phase.RUNNING, {})
    without_node = ClusterState(None, known.pods, pods_listed=True)
    for with_node, cluster, told in (
        (False, ClusterState(ApiNode()), False),
        (True, without_node, False),
        (False, without_node, True),
        (True, known, True),
    ):
        view.follow([pod("a")], cluster, machine(1, 1), NO_DECISION)
        assert (view.in_cluster(with_node=with_node) is not None) == told


def test_a_batch_pod_that_ends_stays_a_batch_pod(tmp_path: Path) -> None:
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics())
    view.sampler._groups = Batch(Controllers())
    running = a_pod(Phase.RUNNING, {"koordinator.sh/priority-class": "koord-batch"})
    used = {"cpu": 0, "memory": 5}
    assert loads_of(
        view, running, a_pod(Phase.SUCCEEDED, {}), ClusterState(ApiNode(), pods_listed=True)
    ) == [
        (PodLoad("koord-batch", used=used),),
        (PodLoad("koord-batch", used=used, active=False),),
        (PodLoad("koord-batch", used=used, active=False),),
    ]


def test_a_pod_without_one_of_the_values_is_not_measured(tmp_path: Path) -> None:
    view = UsageView("/", str(tmp_path), Controllers(), AgentMetrics())
    groups = view.sampler._groups = Batch(Controllers())
    groups.used = None
    assert loads_of(view, a_pod(Phase.RUNNING, {})) == [(PodLoad("koord-prod"),)]


class Server:
    """An API server with at most one NodeMetric."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.error: KubeError | None = None
        self.patches: list[dict[str, Any]] = []

    def get(self, kind: str, name: str, *, cached: bool = False) -> dict[str, Any] | None:
        assert (kind, name) == ("NodeMetric", "n")
        if self.error is not None:
            raise self.error
        return self.stored

    def version(self, kind: str) -> str | None:
        return "v1alpha1"

    def apply(self, wanted: dict[str, Any]) -> bool:
        self.stored = {**wanted, "spec": {}}
        return True

    def merge_status(self, kind: Kind, name: str, body: dict[str, Any]) -> None:
        self.patches.append(body["status"])


class Clock:
    def __init__(self) -> None:
        self.now = START
        self.monotonic = 0.0

    def passed(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        self.monotonic += seconds


def reporter(server: Server, clock: Clock, *, create: bool = False) -> NodeMetricReporter:
    def used(policy: CollectPolicy) -> UsedNode:
        return UsedNode(Used(ONE), Used())

    return NodeMetricReporter(
        server,  # type: ignore[arg-type]
        "n",
        used,
        create=create,
        now=lambda: clock.now,
        monotonic=lambda: clock.monotonic,
    )


def test_a_status_is_written_at_the_interval_of_the_spec() -> None:
    server, clock = Server(), Clock()
    node = reporter(server, clock)
    node.step()
    assert not server.patches, "no manager has created the object"
    server.stored = {"metadata": {"name": "n"}, "spec": {"metricCollectPolicy": {}}}
    node.step()
    assert server.patches[0]["updateTime"] == "2026-01-01T00:00:00Z"
    assert server.patches[0]["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1"}}
    server.stored["status"] = server.patches[0]
    clock.passed(59)
    node.step()
    assert len(server.patches) == 1
    server.stored["spec"]["metricCollectPolicy"] = {"reportIntervalSeconds": 10}
    clock.passed(1)
    node.step()
    assert server.patches[1] == {"updateTime": "2026-01-01T00:01:00Z"}
    clock.passed(10)
    clock.now = START  # the wall clock is set back
    node.step()
    assert len(server.patches) == 3


def test_the_object_is_created_only_if_configured() -> None:
    server = Server()
    reporter(server, Clock()).step()
    assert server.stored is None
    reporter(server, Clock(), create=True).step()
    assert server.stored is not None
    assert server.stored["metadata"] == {"name": "n"}


def test_errors_are_logged_once_and_the_last_policy_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, clock = Server(), Clock()
    node = reporter(server, clock)
    bad = {"metricCollectPolicy": {"reportIntervalSeconds": -1}}
    server.stored = {"metadata": {"name": "n"}, "spec": bad}
    for _ in range(2):
        node.step()
        clock.passed(60)
    assert len(server.patches) == 2, "the usage is reported by the defaults"
    server.error = ServerError("PATCH: 503")
    node.step()
    node.step()
    (spec, request) = [record.getMessage() for record in caplog.records]
    assert "reportIntervalSeconds" in spec
    assert spec.endswith("; the last policy stays in force")
    assert request.startswith("NodeMetric n: ")


def test_the_pools_of_the_last_hour_are_the_shared_ones_and_the_owned_cpus_by_numa_node() -> None:
    decision = Decision(
        (Owner("a", "ns/a", QoS.LSE, "1-2"), Owner("b", "ns/b", QoS.LSR, "3")),
        {"ls": (Pool(0, 0, "0"), Pool(0, 1, "")), "system": (Pool(0, 0, "0"),)},
        (),
        {},
    )
    pools = cpus_by_pool(decision, machine(2, 2))
    assert {key: str(cpus) for key, cpus in pools.items()} == {
        ("own", 0): "1",
        ("own", 1): "2-3",
        ("LS", 0): "0",
        ("LS", 1): "",
    }
