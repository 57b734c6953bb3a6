"""Snapshots of decisions, and the picture of a node with pods of every kind."""

from __future__ import annotations

import msgspec

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.pods import Pod
from agent.model.snapshot import Snapshot
from agent.view.machine import draw_node
from tests.builders import machine, pod


def decided(topology: Topology, *pods: Pod, kubelet: KubeletCpus | None = None) -> Decision:
    return decide(topology, pods, kubelet or KubeletCpus(), {}, {})


def snapshot(decision: Decision, **blocked: str) -> Snapshot:
    pods = {
        uid: msgspec.structs.replace(
            each, each=msgspec.structs.replace(each.each, blocked=blocked[uid])
        )
        if uid in blocked
        else each
        for uid, each in decision.pods.items()
    }
    return Snapshot(
        generation=1,
        listed_at=1,
        boot_id="b",
        kubelet_static=True,
        pools=decision.pools,
        owners=decision.owners,
        pods=pods,
        containers={},
    )


def picture_of_every_kind_of_pod() -> str:
    topology = machine(2, 4)
    decision = decided(
        topology,
        pod("lse", "LSE", "1"),
        pod("lsr", "LSR", "5"),
        pod("ls", "LS"),
        pod("be", "BE"),
        pod("bad", "LSE", "1,9", created_at=1),
        pod("g", kube_class="guaranteed"),
        kubelet=KubeletCpus(True, {"g": CpuSet([7])}, {"g": {"main": CpuSet([7])}}),
    )
    return draw_node(
        topology, snapshot(decision, lsr="a container of pod ns/ls still holds CPUs 5")
    )
