"""Nodes as `topolet top` observes them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agent.model import audit
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Cpu, NumaNode, Topology
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.usage.past import MINUTE_SECONDS, MINUTES, PastHour, PastLoad, PastPool, Values
from agent.view.devices import ShownDevice
from agent.view.history import PoolSize, Recent, RecentChange
from agent.view.live import LivePool, live
from agent.view.top.values import NodeObservation, Usage, sample

NOW = 1_700_000_000.0


def machine(sockets: int, nodes: int, caches: int, cores: int, threads: int) -> Topology:
    """The topology of `tests.fixtures.trees.machine`."""
    per_thread = sockets * nodes * caches * cores
    cpus = tuple(
        Cpu(
            id=thread * per_thread + core,
            core=core,
            l3=core // cores * cores,
            die=0,
            socket=core // (nodes * caches * cores),
            node=core // (caches * cores),
        )
        for thread in range(threads)
        for core in range(per_thread)
    )
    numa_nodes = tuple(
        NumaNode(node, CpuSet(cpu.id for cpu in cpus if cpu.node == node), 8 << 30)
        for node in range(sockets * nodes)
    )
    return Topology(cpus, numa_nodes, CpuSet(), CpuSet(), threads > 1)


def snapshot(topology: Topology, shared: int = 6) -> Snapshot:
    """An LSE pod owns CPUs 1 and 2, an LSR pod owns CPU 3, which is in the BE pool too; `shared`
    pods are in the pools, and the claim of pod 1 is refused."""
    lse_cpus, lsr_cpus = CpuSet((1, 2)), CpuSet((3,))
    pool = topology.online - lse_cpus - lsr_cpus
    owners = (
        Owner("t", "ml/train", QoS.LSE, str(lse_cpus)),
        Owner("p", "db/postgres", QoS.LSR, str(lsr_cpus)),
    )
    pods = {
        each.uid: PodWanted(
            each.title,
            each.qos,
            Wanted(LinuxResources(each.cpuset, quota=NO_QUOTA), exclusive=True),
        )
        for each in owners
    }
    for number in range(shared):
        qos, refused = QoS.LS if number % 3 else QoS.BE, "CPUs 9 are offline" * (number == 1)
        pods[f"u{number}"] = PodWanted(
            f"web/front-{number}", qos, Wanted(LinuxResources(str(pool))), refused=refused
        )
    nodes = [each for each in topology.numa_nodes if each.cpus]
    return Snapshot(
        generation=7,
        listed_at=1,
        boot_id="b",
        kubelet_static=False,
        pools={
            "ls": tuple(Pool(0, each.id, str(pool & each.cpus)) for each in nodes),
            "be": tuple(Pool(0, each.id, str((pool | lsr_cpus) & each.cpus)) for each in nodes),
        },
        owners=owners,
        pods=pods,
        containers={},
    )


GPU = ShownDevice(
    "gpu",
    "0000:11:00.0",
    "NVIDIA H100 80GB HBM3",
    id="GPU-1",
    index=0,
    node=0,
    memory_bytes=80 << 30,
    memory_used_bytes=20 << 30,
    utilization_percent=45,
    healthy=True,
    links=("gpu 1: 18 NVLinks through switches, 450 GB/s",),
    holders=("ml/train",),
)
NIC = ShownDevice(
    "nic", "0000:13:00.0", "Mellanox ConnectX-7", node=0, state="eth2, mlx5_0/1 active 400 Gb/s"
)


def moved(seconds_ago: float, pod: str, uid: str, kind: str = "move") -> RecentChange:
    text = "Container main moves to CPUs 0,4-7 (before: 0-7): pod ml/train owns CPUs 1-2."
    return RecentChange(audit.stamp(NOW - seconds_ago), kind, text, pod, uid)


def node(*shape: int, shared: int = 6) -> NodeObservation:
    """A node with the load of each CPU, the usage of pods, changes and a smaller pool."""
    topology = machine(*(shape or (1, 2, 1, 2, 2)))
    count = len(topology.cpus)
    recent = Recent(
        {"t": audit.stamp(NOW - 60)},
        (
            PoolSize(audit.stamp(NOW - 200), "LS", 0, count),
            PoolSize(audit.stamp(NOW - 200), "BE", 0, count),
            PoolSize(audit.stamp(NOW - 60), "LS", 0, count - 3),
            PoolSize(audit.stamp(NOW - 60), "BE", 0, count - 2),
        ),
        (moved(59, "web/front-1", "u1"), moved(60, "web/front-2", "u2")),
    )
    observed = NodeObservation(
        NOW,
        live("node-a", topology, snapshot(topology, shared), (GPU, NIC)),
        (),
        12.0,
        bytes(37 * each % 101 for each in range(count)),
        {
            "t": Usage(1.5, 3 << 30),
            "p": Usage(0.4, 900 << 20),
            "u1": Usage(0.25, 100 << 20),
            "u2": Usage(2.0, 1 << 30),
            **{f"u{each}": Usage(0.04 * each, each << 26) for each in (0, 3, 4, 5)},
        },
        recent,
    )
    return msgspec.structs.replace(observed, samples=(sample(observed),))


def hour(observed: NodeObservation) -> PastHour:
    """The last hour of the node: a pod that waits since half an hour, one with a quota, and one
    that started ten minutes ago."""
    pods = {
        "t": PastLoad(
            _minutes(lambda minute: 0.5 + minute % 7 / 5),
            memory_bytes=_minutes(lambda minute: (2 + minute / 60) * 1024**3),
            cpu_pressure=_minutes(lambda _: 0.0),
        ),
        "u1": PastLoad(
            _minutes(lambda minute: 0.25 if minute >= 30 else 1.5),
            memory_bytes=_minutes(lambda _: 100 * 1024**2),
            cpu_pressure=_minutes(lambda minute: 0.31 if minute >= 30 else 0.02),
            memory_pressure=_minutes(lambda _: 0.0),
            io_pressure=_minutes(lambda _: 0.01),
        ),
        "u2": PastLoad(_minutes(lambda _: 2.0), throttled_cpus=_minutes(lambda _: 1.25)),
        "u4": PastLoad(_minutes(lambda minute: 0.16 if minute >= 50 else None)),
    }
    waits = ("ns/b waited 310 ms of each second for CPUs 2: 310 ms batch/hog (BE)",)
    pools = tuple(
        PastPool(
            pool.kind,
            pool.node,
            PastLoad(
                cpus=_minutes(lambda minute, size=size: size * minute / 100),  # type: ignore[misc]
                of_cpus=_minutes(lambda _, size=size: size),  # type: ignore[misc]
            ),
        )
        for pool in (*observed.node.pools, LivePool("own", 0, "1-3"))
        for size in [float(len(CpuSet.parse(pool.cpus)))]
    )
    machine = PastLoad(
        _minutes(lambda minute: minute / 10),
        memory_bytes=_minutes(lambda _: 12 * 1024**3),
        cpu_pressure=_minutes(lambda minute: minute / 400),
        memory_pressure=_minutes(lambda _: 0.0),
        io_pressure=_minutes(lambda _: 0.02),
    )
    begin = observed.time - MINUTES * MINUTE_SECONDS
    return PastHour(begin, machine, {0: machine}, pools, pods, {"u1": waits})


def _minutes(value: Callable[[int], float | None]) -> Values:
    return tuple(map(value, range(MINUTES)))
