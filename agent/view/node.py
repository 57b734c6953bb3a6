"""The node at one moment: the machine with the owners of its CPUs, and the pods."""

from __future__ import annotations

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.hardware import Hardware
from agent.model.cpu.topology import Topology
from agent.model.pod.qos import POOLS, QoS, pool_cpus
from agent.model.snapshot import PodWanted, Snapshot
from agent.view import machine
from agent.view.format import table

_COLUMNS = ("POD", "QOS", "CPUS", "")
_OTHER_LINES = 9
"""The lines that are neither of the machine nor of pods: summary, legend, headings, blank lines."""


def draw(
    topology: Topology,
    snapshot: Snapshot,
    width: int = 100,
    *,
    hardware: Hardware | None = None,
    colour: bool = False,
    height: int | None = None,
) -> str:
    """The machine's picture with each CPU's owner or pools, then a line for each pod.

    `height` is the number of available lines: the machine is folded to leave room for the pods.
    """
    tall = machine.TALL_LINES
    if height is not None:
        tall = min(tall, max(height - len(snapshot.pods) - _OTHER_LINES, 1))
    held = holders(topology, snapshot)
    picture = machine.draw(topology, width, held, hardware=hardware, colour=colour, tall_lines=tall)
    rows = [_COLUMNS, *map(_row, _sorted(snapshot))]
    lines = table(rows, width)
    if len(rows) == 1:
        lines = ["No pods."]
    return picture + "\n" + "\n".join(lines) + "\n"


def holders(topology: Topology, snapshot: Snapshot) -> dict[int, str]:
    """By CPU: the pod that owns it, or the pools that contain it. CPUs that have neither are left
    out."""
    titles: dict[int, list[str]] = {}
    for name, kind in POOLS.items():
        for cpu in pool_cpus(snapshot.pools.get(name, ())):
            titles.setdefault(cpu, []).append(kind.title)
    named = {cpu: f"{' and '.join(of_cpu)} pool" for cpu, of_cpu in titles.items()}
    for owner in snapshot.owners:
        name = f"{'kubelet' if owner.kubelet else owner.qos} {owner.title}"
        named |= {
            cpu: f"{name}, and the {named[cpu]}" if cpu in titles else name for cpu in owner.cpus
        }
    return {cpu: named[cpu] for cpu in topology.online if cpu in named}


def _sorted(snapshot: Snapshot) -> list[PodWanted]:
    order = list(QoS)
    pods = sorted(
        snapshot.pods.items(), key=lambda each: (order.index(each[1].qos), each[1].title, each[0])
    )
    return [pod for _, pod in pods]


def _row(pod: PodWanted) -> tuple[str, str, str, str]:
    of_kubelet = [each for each in pod.containers.values() if each.kubelet]
    if of_kubelet:
        cpus = union(CpuSet.parse(each.cpuset or "") for each in of_kubelet)
        refused = f"; claim not honoured: {pod.refused}" if pod.refused else ""
        return pod.title, pod.qos.value, str(cpus) or "-", f"own, by the kubelet{refused}"
    wanted = pod.each
    note = "own" if wanted.exclusive else "shared"
    if wanted.cpuset is None:
        note = wanted.blocked or "the kubelet's"
    elif wanted.blocked or pod.refused:
        note += f"; {wanted.blocked or 'claim refused: ' + pod.refused}"
    for name, other in sorted(pod.containers.items()):
        note += f"; {name} on {other.cpuset or other.blocked}"
    return pod.title, pod.qos.value, str(CpuSet.parse(wanted.cpuset or "")) or "-", note
