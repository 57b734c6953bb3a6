"""Draw the machine: sockets, NUMA nodes, caches, cores with their threads, CPU models, kinds of
memory, distances, and its devices by NUMA node and switch, as `topolet devices` lists them.

With NODE the command runs in the agent's pod on that node, by kubectl and with the caller's rights.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any

import msgspec

from agent.cli import devices, options, remote
from agent.discover import cpus, hardware
from agent.discover.sysfs import DiscoveryError
from agent.model.cpu.topology import Cpu, Hardware, MemoryTraits, NumaNode, Topology
from agent.model.pod.qos import Pool
from agent.model.settings.agent import DevicesSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import Snapshot, SnapshotError
from agent.view import devices as devices_view
from agent.view import format, machine
from agent.view.devices import ShownDevice

USAGE = "topolet topology [OPTIONS] [NODE]"
SETTINGS = DevicesSettings

_NARROWEST = 40

SCHEMA_VERSION = 1
"""The version of the JSON output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_root(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--owners",
        action="store_true",
        help="also show which pods own which CPUs, and all other pods, as the agent decided",
    )
    remote.add_arguments(parser)
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the machine; returns 1 where it can't be read, 2 for wrong usage."""
    if arguments.node:
        flags = ["--owners"] if arguments.owners else []
        words = (*flags, f"--output={arguments.output}")
        return remote.run_on_node("topology", arguments, SETTINGS, *words)
    root: str = arguments.root
    try:
        settings = options.load(arguments, SETTINGS)
    except SettingsError as error:
        return options.fail(error, 2)
    if not os.path.isdir(root):
        print(f"topolet topology: --root {root}: no such folder", file=sys.stderr)
        return 2
    try:
        topology = cpus.read(root)
        if arguments.output == "json":
            values = body(topology, hardware.read(root, topology))
            values["devices"] = msgspec.to_builtins(_devices(root, topology, settings))
            if arguments.owners:
                values["decisions"] = _decisions(devices.read_snapshot(settings.state_dir))
            json.dump(values, sys.stdout, indent=1)
            print()
        else:
            known = hardware.read(root, topology)
            if arguments.owners:
                picture = _owned(topology, settings.state_dir, known)
            else:
                picture = machine.draw(topology, _width(), hardware=known, colour=_coloured())
            lines = _device_lines(root, topology, settings)
            text = picture + "".join(f"{line}\n" for line in lines)
            print(format.encodable(text, coloured=True), end="")
        sys.stdout.flush()
    except OSError as error:
        return format.unwritten("topology", error)
    except SnapshotError as error:
        return options.fail(SnapshotError(f"no decisions to show: {error}"))
    except DiscoveryError as error:
        return options.fail(error)
    return 0


def _devices(root: str, topology: Topology, settings: DevicesSettings) -> tuple[ShownDevice, ...]:
    return devices_view.shown(devices.read(root, topology, settings), devices.names(root))


def _device_lines(root: str, topology: Topology, settings: DevicesSettings) -> list[str]:
    devices = _devices(root, topology, settings)
    return ["", "Devices", *devices_view.as_tree(devices, _width())] if devices else []


def _owned(topology: Topology, state_dir: str, hardware: Hardware) -> str:
    """The picture with owners and pods; without a snapshot of an agent, the picture of the machine
    with that reason."""
    width, colour = _width(), _coloured()
    try:
        snapshot = devices.read_snapshot(state_dir)
    except SnapshotError as error:
        picture = machine.draw(topology, width, hardware=hardware, colour=colour)
        return f"{picture}\nNo decisions to show: {format.printable(str(error))}\n"
    return machine.draw_node(topology, snapshot, width, hardware=hardware, colour=colour)


def body(topology: Topology, known: Hardware) -> dict[str, Any]:
    """The machine as JSON values: CPU sets as Linux lists, null for an unknown value."""
    memory = {each.node: each for each in known.memory}
    return {
        "schema_version": SCHEMA_VERSION,
        "cpus": [_cpu(cpu) for cpu in topology.cpus],
        "cpu_models": [{"name": each.name, "cpus": str(each.cpus)} for each in known.models],
        "caches": [
            {
                "level": each.level,
                "kind": each.kind.value,
                "size_bytes": each.size_bytes,
                "shared_by": [str(cpus) for cpus in each.shared_by],
            }
            for each in known.caches
        ],
        "numa_nodes": [_node(node, memory.get(node.id)) for node in topology.numa_nodes],
        "online": str(topology.online),
        "offline": str(topology.offline),
        "isolated": str(topology.isolated),
        "smt": topology.smt,
        "smt_control": topology.smt_control,
    }


def _decisions(snapshot: Snapshot) -> dict[str, Any]:
    """The decisions with CPU sets as lists, null for those that Topolet does not decide."""
    return {
        "pools": {name: [_pool(pool) for pool in pools] for name, pools in snapshot.pools.items()},
        "owners": [
            {
                "uid": owner.uid,
                "pod": owner.title,
                "qos": owner.qos.value,
                "cpus": str(owner.cpus),
                "offline": owner.offline,
                "kubelet": owner.kubelet,
                "claims": owner.claims,
            }
            for owner in snapshot.owners
        ],
        "pods": [
            {
                "uid": uid,
                "pod": pod.title,
                "qos": pod.qos.value,
                "cpus": pod.each.cpuset,
                "containers": {name: wanted.cpuset for name, wanted in pod.containers.items()},
                "refused": pod.refused or None,
            }
            for uid, pod in snapshot.pods.items()
        ],
    }


def _pool(pool: Pool) -> dict[str, Any]:
    return {"socket": pool.socket, "node": pool.node, "cpus": pool.cpuset}


def _cpu(cpu: Cpu) -> dict[str, Any]:
    return {
        "id": cpu.id,
        "core": cpu.core,
        "l3": cpu.l3,
        "die": cpu.die,
        "socket": cpu.socket,
        "node": cpu.node,
        "kind": cpu.kind,
    }


def _node(node: NumaNode, memory: MemoryTraits | None) -> dict[str, Any]:
    return {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory_bytes": node.memory_bytes,
        "memory_kind": memory.kind.value if memory and memory.kind else None,
        "memory_tier": memory.tier if memory else None,
        "read_mib_per_second": memory.read_mib_per_second if memory else None,
        "read_latency_ns": memory.read_latency_ns if memory else None,
        "side_cache_bytes": memory.side_cache_bytes if memory else None,
        "distances": list(node.distances),
        "hugepages": [
            {"size_bytes": pool.size_bytes, "total": pool.total, "free": pool.free}
            for pool in node.hugepages
        ],
    }


def _width() -> int:
    return max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns)


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
