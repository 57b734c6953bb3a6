"""Draw the machine: sockets, NUMA nodes, caches, cores with their threads, memory, distances."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any

from agent.discover import cpus
from agent.discover.facts import DiscoveryError
from agent.model.topology import Cpu, NumaNode, Topology
from agent.view import machine

_NARROWEST = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--root` and `--output`."""
    parser.add_argument(
        "--root",
        default="/",
        metavar="DIR",
        help="folder that holds the machine's sys and proc (default: /)",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the machine; 1 where it cannot be made out, 2 where the root is no folder."""
    root: str = arguments.root
    if not os.path.isdir(root):
        print(f"topolet topology: --root {root}: no such folder", file=sys.stderr)
        return 2
    try:
        topology = cpus.read(root)
    except DiscoveryError as error:
        print(f"topolet topology: {error}", file=sys.stderr)
        return 1
    if arguments.output == "json":
        json.dump(body(topology), sys.stdout, indent=1)
        print()
    else:
        print(_encodable(_picture(topology)), end="")
    return 0


def body(topology: Topology) -> dict[str, Any]:
    """The topology as JSON values: CPU sets as Linux lists, null for what is unknown."""
    return {
        "cpus": [_cpu(cpu) for cpu in topology.cpus],
        "numa_nodes": [_node(node) for node in topology.numa_nodes],
        "online": str(topology.online),
        "offline": str(topology.offline),
        "isolated": str(topology.isolated),
        "smt": topology.smt,
        "smt_control": topology.smt_control,
    }


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


def _node(node: NumaNode) -> dict[str, Any]:
    return {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory_bytes": node.memory_bytes,
        "distances": list(node.distances),
        "hugepages": [
            {"size_bytes": pool.size_bytes, "total": pool.total, "free": pool.free}
            for pool in node.hugepages
        ],
    }


def _picture(topology: Topology) -> str:
    width = max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return machine.draw(topology, width, colour=colour)


def _encodable(text: str) -> str:
    """The text, with plain characters for the frames where the terminal has no others."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate(str.maketrans("╭╮╰╯│─·", "++++|--"))
        return plain.encode(encoding, "replace").decode(encoding)
    return text
