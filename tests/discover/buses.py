"""Builds PCI trees in a folder of the test."""

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
    """`nodes` and `sockets` have CPU lists, "" for a node without CPUs; without `sockets` each node
    is a socket. `distances`: by `nodeN`."""
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


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """A name that ends with `@` is a symbolic link; folders are created as needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.removesuffix("@")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("@"):
            path.symlink_to(text)
        else:
            path.write_text(text)


def add_function(root: Path, path: str, files: Mapping[str, str] | None = None) -> Path:
    """Adds a PCI function at this path (`pci0000:17/0000:17:00.0`), listed as the kernel does it;
    returns its folder."""
    folder = root / "sys/devices" / path
    write_files(folder, {"class": "0x020000\n", "numa_node": "-1\n"} | dict(files or {}))
    listing = root / "sys/bus/pci/devices"
    listing.mkdir(parents=True, exist_ok=True)
    (listing / folder.name).symlink_to(f"../../../devices/{path}")
    return folder


def proximity(one: Function, other: Function) -> Ancestor:
    """The highest level that the path between two functions crosses, numbered as in NVML."""
    if one.address == other.address:
        return Ancestor.BOARD
    if one.bridges and other.bridges and one.bridges[0] == other.bridges[0]:
        same_switch = one.bridges == other.bridges or (
            one.switches and one.switches[-1:] == other.switches[-1:]
        )
        return Ancestor.SWITCH if same_switch else Ancestor.SWITCHES
    if one.root and one.root == other.root:
        return Ancestor.HOST_BRIDGE
    if one.node >= 0 and one.node == other.node:
        return Ancestor.NODE
    return Ancestor.SYSTEM
