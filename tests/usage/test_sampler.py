"""Samples of a machine whose counters the tests set."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.usage.machine import GroupMemory, Machine, MachineMemory
from agent.usage.past import PastLoad
from agent.usage.sampler import MEMORY_SECONDS, HostUnit, Last, SampledPod, UsageSampler
from agent.usage.traffic import DiskTraffic, NetworkTraffic, Traffic
from agent.usage.waits import Stalls, Throttling, Waits

GIB = 1 << 30
PODS = (
    SampledPod("a", "/a", {"main": "/a/main", "side": "/a/side"}),
    SampledPod("b", "/b", {"main": "/b/main"}),
)
NODE_OF = {0: 0, 1: 0, 2: 1, 3: 1}
MOVED = DiskTraffic(900, 800, 9, 8)
SENT = NetworkTraffic(70, 60, 7, 6)


class Host(Machine):
    """Counters of a machine with four CPUs, and of cgroups."""

    def __init__(self, root: str = "/nowhere") -> None:
        super().__init__(root)
        self.now = 100.0
        self.busy = dict.fromkeys(NODE_OF, 1000.0)
        self.cpu: dict[str, float] = {}
        self.memory_of: dict[str, tuple[int, int]] = {}
        self.faults_of: dict[str, int] = {}
        self.disks_of: dict[str, dict[str, DiskTraffic]] = {}
        self.quota_of: dict[str, Throttling] = {}
        self.limits_of: dict[str, int] = {}
        self.in_slice: tuple[str, ...] = ()

    def busy_seconds(self) -> dict[int, float]:
        return dict(self.busy)

    def memory(self) -> MachineMemory:
        return MachineMemory(100 * GIB, 40 * GIB, 70 * GIB)

    def disks(self) -> dict[str, tuple[str, DiskTraffic]]:
        return {"8:0": ("sda", MOVED)}

    def numa_memory_bytes(self, node: int) -> int:
        return (node + 1) * GIB

    def major_faults(self) -> int:
        return 7

    def networks(self) -> dict[str, NetworkTraffic]:
        return {"eth0": SENT}

    def stalls(self, group: str = "/") -> Stalls:
        return {("cpu", group): self.now}

    def use(self, seconds: float, busy: dict[int, float], groups: dict[str, float]) -> None:
        """So many CPUs are used for so long."""
        self.now += seconds
        for cpu, cpus in busy.items():
            self.busy[cpu] += cpus * seconds
        for group, cpus in groups.items():
            self.cpu[group] = self.cpu.get(group, 0.0) + cpus * seconds


class Cgroups:
    """Those of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def cpu_seconds(self, group: str) -> float | None:
        return self._host.cpu.get(group)

    def memory(self, group: str) -> GroupMemory | None:
        memory = self._host.memory_of.get(group)
        return None if memory is None else GroupMemory(*memory, self._host.faults_of.get(group))

    def disks(self, group: str) -> dict[str, DiskTraffic]:
        return self._host.disks_of.get(group, {})

    def children(self, group: str) -> tuple[str, ...]:
        return self._host.in_slice if group == "/system.slice" else ()

    def throttling(self, group: str) -> Throttling | None:
        return self._host.quota_of.get(group)

    def stalls(self, group: str) -> Stalls:
        return self._host.stalls(group)

    def limits_reached(self, group: str) -> int | None:
        return self._host.limits_of.get(group)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def sampler(host: Host) -> UsageSampler:
    sampler = UsageSampler(host, Cgroups(host), lambda: host.now)
    sampler.follow(PODS, NODE_OF)
    return sampler


def average(used: object) -> float | None:
    found = getattr(used, "cpus", None)
    return None if found is None else round(found.average, 6)


def test_use_is_the_difference_of_two_samples_by_the_time_between_them(
    host: Host, sampler: UsageSampler
) -> None:
    host.cpu = {"/a": 5.0, "/a/main": 4.0, "/b": 7.0}
    sampler.sample()
    assert average(sampler.node(60)) is None, "a first sample has no value"
    host.use(1.5, {0: 1.0, 1: 0.5, 2: 0.75}, {"/a": 1.0, "/a/main": 0.75, "/b": 0.25})
    sampler.sample()
    assert average(sampler.node(60)) == 2.25
    assert average(sampler.system(60)) == 1.0
    assert {node: average(used) for node, used in sampler.numa(60).items()} == {0: 1.5, 1: 0.75}
    assert {uid: average(used) for uid, used in sampler.pods(60).items()} == {"a": 1.0, "b": 0.25}
    _, of_pods, of_containers = sampler.last()
    assert of_pods["a"].cpus == 1.0
    assert of_containers["a", "main"] == Last(), "containers are sampled with the memory"
    host.use(MEMORY_SECONDS, {}, {"/a": 0.5, "/a/main": 0.5})
    sampler.sample()
    _, _, of_containers = sampler.last()
    assert of_containers["a", "main"].cpus == pytest.approx(8.625 / 16.5)
    assert of_containers["a", "side"] == Last(), "its cgroup can't be read"


def test_a_reset_or_missing_counter_is_no_use(host: Host, sampler: UsageSampler) -> None:
    host.cpu = {"/a": 5.0, "/b": 7.0}
    sampler.sample()
    host.use(1, {0: 1.0}, {})
    host.cpu = {"/a": 1.0}
    sampler.sample()
    assert {uid: average(used) for uid, used in sampler.pods(60).items()} == {"a": 0.0}
    assert average(sampler.system(60)) == 1.0
    host.use(1, {0: 1.0}, {"/a": 0.5})
    host.cpu["/b"] = 8.0
    sampler.sample()
    assert set(sampler.pods(60)) == {"a"}, "a first sample after a gap has no value"


def test_applications_of_the_host_are_no_use_of_the_system(
    host: Host, sampler: UsageSampler
) -> None:
    sampler.follow(PODS, NODE_OF, applications={"web": "/web", "gone": "/gone"})
    host.cpu = {"/a": 5.0, "/web": 1.0}
    host.memory_of = {"/a": (4 * GIB, 6 * GIB), "/web": (2 * GIB, 3 * GIB)}
    sampler.sample()
    host.use(1, {0: 1.0, 1: 1.0}, {"/a": 0.5, "/web": 0.75})
    sampler.sample()
    assert average(sampler.system(60)) == 0.75
    of_system = sampler.system(60).memory_bytes
    assert of_system is not None
    assert of_system.average == 24 * GIB
    assert {name: average(used) for name, used in sampler.applications(60).items()} == {"web": 0.75}
    with_cache = sampler.applications(60, page_cache=True)["web"].memory_bytes
    assert with_cache is not None
    assert with_cache.average == 3 * GIB
    sampler.follow(PODS, NODE_OF)
    sampler.sample()
    assert sampler.applications(60) == {}


def test_memory_is_sampled_less_often(host: Host, sampler: UsageSampler) -> None:
    host.memory_of = {"/a": (4 * GIB, 6 * GIB), "/a/main": (3 * GIB, 3 * GIB), "/b": (GIB, GIB)}
    for _ in range(1 + round(MEMORY_SECONDS)):
        sampler.sample()
        host.use(1, {}, {})
    used, with_cache = sampler.node(600), sampler.node(600, page_cache=True)
    assert used.memory_bytes is not None
    assert with_cache.memory_bytes is not None
    assert (used.memory_bytes.count, used.memory_bytes.average) == (2, 30 * GIB)
    assert with_cache.memory_bytes.average == 60 * GIB
    of_system = sampler.system(600).memory_bytes
    assert of_system is not None
    assert of_system.average == 25 * GIB
    pods = sampler.pods(600, page_cache=True)
    assert {uid: used.memory_bytes.average for uid, used in pods.items() if used.memory_bytes} == {
        "a": 6 * GIB,
        "b": GIB,
    }
    numa = sampler.numa(600)
    assert [used.memory_bytes.last for used in numa.values() if used.memory_bytes] == [GIB, 2 * GIB]
    assert sampler.last()[2]["a", "main"].memory_bytes == 3 * GIB


def test_what_pods_wait_for_is_read_with_the_memory(host: Host, sampler: UsageSampler) -> None:
    quota = Throttling(10, 7, 2.5)
    host.quota_of = {"/a": quota, "/a/side": quota}
    read_at = host.now
    for _ in range(round(MEMORY_SECONDS)):
        sampler.sample()
        host.use(1, {}, {})
        assert sampler.counted().waits == Waits(
            {("cpu", "/"): read_at},
            {"a": {("cpu", "/a"): read_at}, "b": {("cpu", "/b"): read_at}},
            {("a", ""): quota, ("a", "side"): quota},
        )
    host.quota_of = {}
    sampler.follow(PODS[1:], NODE_OF)
    sampler.sample()
    assert sampler.counted().waits == Waits(
        {("cpu", "/"): host.now}, {"b": {("cpu", "/b"): host.now}}
    )


def test_limits_are_read_of_pods_whose_waits_for_memory_are_known(
    host: Host, sampler: UsageSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.limits_of = {"/a": 5, "/b": 6}
    waits: dict[str, Stalls] = {"/a": {("memory", "some"): 1.0}}
    monkeypatch.setattr(host, "stalls", lambda group="/": waits.get(group, {}))
    sampler.sample()
    assert sampler.counted().waits.limits == {"a": 5}


def test_what_is_gone_is_forgotten(host: Host, sampler: UsageSampler) -> None:
    host.cpu = {"/a": 0.0, "/a/main": 0.0, "/b": 0.0}
    for _ in range(2):
        sampler.sample()
        host.use(1, {0: 1.0}, {"/a": 0.5, "/b": 0.5})
    sampler.follow(PODS[:1], {0: 0})
    sampler.sample()
    _, of_pods, of_containers = sampler.last()
    assert (set(of_pods), set(sampler.numa(60))) == ({"a"}, {0})
    assert set(of_containers) == {("a", "main"), ("a", "side")}


@given(st.data())
def test_pods_and_system_add_up_to_the_machine(data: st.DataObject) -> None:
    host = Host()
    sampler = UsageSampler(host, Cgroups(host), lambda: host.now)
    sampler.follow(PODS, NODE_OF)
    host.cpu = {"/a": 0.0, "/b": 0.0}
    sampler.sample()
    for _ in range(data.draw(st.integers(1, 5))):
        busy = {cpu: data.draw(st.floats(0, 1)) for cpu in NODE_OF}
        total = sum(busy.values())
        of_a = data.draw(st.floats(0, total))
        groups = {"/a": of_a, "/b": data.draw(st.floats(0, total - of_a))}
        host.use(data.draw(st.floats(0.5, 3)), busy, groups)
        sampler.sample()
    node, system = average(sampler.node(60)), average(sampler.system(60))
    of_pods = [average(used) for used in sampler.pods(60).values()]
    assert node is not None
    assert system is not None
    assert node == pytest.approx(system + sum(each or 0.0 for each in of_pods), abs=1e-5)
    assert node == pytest.approx(
        sum(average(used) or 0.0 for used in sampler.numa(60).values()), abs=1e-5
    )


def test_mounts_and_names_that_are_no_text_take_no_place_of_units(host: Host) -> None:
    mounts = [f"/system.slice/run-{number:03}.mount" for number in range(300)]
    host.in_slice = (*mounts, "/system.slice/\udcff.service", "/system.slice/sshd.service")
    host.memory_of = dict.fromkeys(host.in_slice, (5, 9))
    sampler = UsageSampler(host, Cgroups(host), lambda: host.now)
    sampler.sample()
    assert sampler.counted().units == {"sshd.service": HostUnit(None, 5)}


def test_the_past_has_what_each_part_used_and_waited_for(
    host: Host, sampler: UsageSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stalls(group: str = "/") -> Stalls:
        share = 0.25 if group == "/" else 0.5
        return {("cpu", "some"): host.now * share, ("cpu", "full"): host.now}

    monkeypatch.setattr(host, "stalls", stalls)
    pools = {("LS", 0): CpuSet((0, 1)), ("LS", 1): CpuSet((2,)), ("own", 1): CpuSet((3,))}
    sampler.follow(PODS, NODE_OF, pools)
    host.memory_of = {"/a": (4 * GIB, 6 * GIB)}
    host.cpu = {"/a": 5.0}
    host.quota_of = {"/a": Throttling(10, 1, 2.0), "/a/main": Throttling(10, 1, 1.0)}
    host.now = 6000.0
    sampler.sample()
    assert sampler.past(0.0).pods["a"].cpus == (), "a first sample has no value"
    host.use(MEMORY_SECONDS, {0: 1.0, 2: 0.5, 3: 0.25}, {"/a": 1.25})
    host.quota_of = {"/a": Throttling(20, 9, 3.5), "/a/main": Throttling(20, 9, 2.5)}
    sampler.sample()
    hour = sampler.past(0.0)

    def last(load: PastLoad) -> dict[str, float | None]:
        """The quantities that are known, in the last minute."""
        values = msgspec.structs.asdict(load)
        return {name: minutes[-1] for name, minutes in values.items() if minutes}

    assert last(hour.machine) == {"cpus": 1.75, "memory_bytes": 30 * GIB, "cpu_pressure": 0.25}
    assert {node: last(load) for node, load in hour.numa_nodes.items()} == {
        0: {"cpus": 1.0, "memory_bytes": GIB},
        1: {"cpus": 0.75, "memory_bytes": 2 * GIB},
    }
    assert [(pool.kind, pool.node, last(pool.load)) for pool in hour.pools] == [
        ("LS", 0, {"cpus": 1.0, "of_cpus": 2.0}),
        ("LS", 1, {"cpus": 0.5, "of_cpus": 1.0}),
        ("own", 1, {"cpus": 0.25, "of_cpus": 1.0}),
    ]
    assert last(hour.pods["a"]) == {
        "cpus": 1.25,
        "memory_bytes": 4 * GIB,
        "cpu_pressure": 0.5,
        "throttled_cpus": 0.2,
    }
    sampler.follow(PODS[1:], NODE_OF)
    host.use(MEMORY_SECONDS, {}, {})
    sampler.sample()
    assert (set(sampler.past(0.0).pods), sampler.past(0.0).pools) == ({"b"}, ())


def test_traffic_is_that_of_disks_which_the_machine_has(host: Host) -> None:
    of_a = DiskTraffic(1, 2, 3, 4)
    host.in_slice = ("/system.slice/backup.service",)
    host.disks_of = {
        "/a": {"8:0": of_a, "253:7": MOVED},
        "/system.slice/backup.service": {"8:0": MOVED},
    }
    host.memory_of, host.faults_of = {"/a": (1, 1), "/b": (1, 1)}, {"/a": 4}
    sampler = UsageSampler(host, Cgroups(host), lambda: host.now)
    sampler.follow(PODS, NODE_OF)
    sampler.sample()
    counted = sampler.counted()
    assert counted.traffic == Traffic(
        {"sda": MOVED}, {"eth0": SENT}, {("a", "sda"): of_a}, {}, {("backup.service", "sda"): MOVED}
    )
    assert (counted.major_faults, counted.pod_major_faults) == (7, {"a": 4})
    assert counted.kernel_threads_cpu_seconds is None, "this host has no /proc"


def test_pods_networks_and_kernel_threads_are_read_less_often(tmp_path: Path) -> None:
    (tmp_path / "proc/2/task/2").mkdir(parents=True)
    (tmp_path / "proc/2/comm").write_text("kthreadd")
    (tmp_path / "proc/2/task/2/children").write_text("3")
    ran = tmp_path / "proc/3/schedstat"
    ran.parent.mkdir()
    host = Host(str(tmp_path))
    sampler = UsageSampler(host, Cgroups(host), lambda: host.now)
    seconds = []
    for reading in range(5):
        ran.write_text(f"{reading}000000000 0 1")
        sampler.sample()
        seconds.append(sampler.counted().kernel_threads_cpu_seconds)
        host.use(MEMORY_SECONDS, {}, {})
    assert seconds == [0.0, 0.0, 0.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("root", "burstable", "besteffort"),
    [
        ("/kubepods", "burstable", "besteffort"),
        ("/kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice"),
        (
            "/k.slice/k-kubepods.slice",
            "k-kubepods-burstable.slice",
            "k-kubepods-besteffort.slice",
        ),
    ],
)
def test_guaranteed_pods_have_what_the_other_classes_leave(
    host: Host, root: str, burstable: str, besteffort: str
) -> None:
    groups = root, f"{root}/{burstable}", f"{root}/{besteffort}"
    pod = f"{burstable.removesuffix('.slice')}-poda.slice" if "slice" in root else "poda"
    host.cpu = dict(zip(groups, (9.0, 2.0, 3.0), strict=True))
    host.memory_of = dict(zip(groups, ((90, 90), (20, 20), (30, 30)), strict=True))
    host.faults_of = dict(zip(groups, (9, 2, 1), strict=True))
    sampler = UsageSampler(host, Cgroups(host), lambda: host.now)
    sampler.follow([SampledPod("a", f"{groups[1]}/{pod}")], NODE_OF)
    sampler.sample()
    assert sampler.counted().kube_classes == {
        "guaranteed": HostUnit(4.0, 40, 6),
        "burstable": HostUnit(2.0, 20, 2),
        "besteffort": HostUnit(3.0, 30, 1),
    }
    host.cpu[groups[1]] = 2.5  # it ran between the readings of two groups
    del host.memory_of[groups[2]]
    host.use(MEMORY_SECONDS, {}, {})
    sampler.sample()
    guaranteed = sampler.counted().kube_classes["guaranteed"]
    assert guaranteed == HostUnit(4.0, None), "a counter never decreases"


def test_the_classes_of_pods_outside_of_the_kubelets_groups_are_not_known(
    sampler: UsageSampler,
) -> None:
    sampler.sample()
    assert sampler.counted().kube_classes == {}


def test_each_cpu_is_busy_by_itself(host: Host, sampler: UsageSampler) -> None:
    sampler.sample()
    host.use(2, {0: 1.0, 3: 0.25}, {})
    sampler.sample()
    assert sampler.busy_cpus() == {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.25}
