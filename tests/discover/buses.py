"""PCI trees below a folder of the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Cpu, NumaNode, Topology
from agent.model.devices.gpus import Ancestor
from agent.model.devices.pci import Function


def topology(
    nodes: Mapping[int, str], sockets: Mapping[int, str] | None = None, **distances: str
) -> Topology:
    """CPUs of each node and socket in list format, "" for a node with memory alone; one socket per
    node if `sockets` is absent. `distances` by `nodeN`."""
    socket_of = {
        cpu: socket for socket, cpus in (sockets or nodes).items() for cpu in CpuSet.parse(cpus)
    }
    return Topology(
        tuple(
            Cpu(cpu, cpu, None, None, socket_of[cpu], node)
            for node, cpus in nodes.items()
            for cpu in CpuSet.parse(cpus)
        ),
        tuple(
            NumaNode(
                node,
                CpuSet.parse(cpus),
                1 << 30,
                tuple(map(int, distances.get(f"node{node}", "").split())),
            )
            for node, cpus in nodes.items()
        ),
        CpuSet(),
        CpuSet(),
        False,
    )


def put(folder: Path, files: Mapping[str, str]) -> None:
    """A name that ends with `@` is a symbolic link; folders are created as needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.removesuffix("@")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("@"):
            path.symlink_to(text)
        else:
            path.write_text(text)


def plug(root: Path, way: str, files: Mapping[str, str] | None = None) -> Path:
    """A function at the end of `way` (`pci0000:17/0000:17:00.0`), listed as by the kernel; returns
    its folder."""
    folder = root / "sys/devices" / way
    put(folder, {"class": "0x020000\n", "numa_node": "-1\n"} | dict(files or {}))
    listing = root / "sys/bus/pci/devices"
    listing.mkdir(parents=True, exist_ok=True)
    (listing / folder.name).symlink_to(f"../../../devices/{way}")
    return folder


def proximity(one: Function, other: Function) -> Ancestor:
    """The highest level that the path between two functions crosses, numbered as in NVML."""
    if one.address == other.address:
        return Ancestor.BOARD
    if one.bridges and other.bridges and one.bridges[0] == other.bridges[0]:
        together = one.bridges == other.bridges or (
            one.switches and one.switches[-1:] == other.switches[-1:]
        )
        return Ancestor.SWITCH if together else Ancestor.SWITCHES
    if one.root and one.root == other.root:
        return Ancestor.HOST_BRIDGE
    if one.node >= 0 and one.node == other.node:
        return Ancestor.NODE
    return Ancestor.SYSTEM
