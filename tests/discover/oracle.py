"""The topology that hwloc's lstopo reads from a tree, to compare with Topolet's."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology

LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")

needs_lstopo = pytest.mark.skipif(LSTOPO is None, reason="no lstopo (Debian: hwloc-nox)")


class Summary(msgspec.Struct, frozen=True):
    """A topology with CPU sets as Linux lists. `error`: hwloc found the tree invalid."""

    online: str
    cores: frozenset[str]
    sockets: frozenset[str]
    socket_ids: dict[str, int]
    caches: frozenset[str]
    nodes: dict[int, tuple[str, int]]
    error: str = ""


def lstopo(root: str) -> Summary | None:
    """The summary of hwloc, None if hwloc fails. `socket_ids` has only ids of one socket each."""
    done = subprocess.run(
        [str(LSTOPO), "--if", "fsroot", "--input", root, "--disallowed", "--of", "xml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if done.returncode:
        return None
    found = list(ElementTree.fromstring(done.stdout).iter("object"))

    def sets(kind: str) -> list[str]:
        return [_list(each.get("cpuset")) for each in found if each.get("type") == kind]

    packages = [each for each in found if each.get("type") == "Package"]
    ids = [each.get("os_index") for each in packages]
    return Summary(
        online=_list(found[0].get("cpuset")),
        cores=frozenset(sets("Core")),
        sockets=frozenset(sets("Package")),
        socket_ids={
            _list(each.get("cpuset")): int(number)
            for each, number in zip(packages, ids, strict=True)
            if number is not None and ids.count(number) == 1
        },
        caches=frozenset(sets("L3Cache")),
        nodes={
            int(each.get("os_index", "")): (
                _list(each.get("cpuset")),
                int(each.get("local_memory", "0")),
            )
            for each in found
            if each.get("type") == "NUMANode"
        },
        error=done.stderr,
    )


def summary(topology: Topology) -> Summary:
    """The summary of Topolet's topology."""
    groups: dict[str, dict[int, list[int]]] = {"core": {}, "socket": {}, "l3": {}}
    for cpu in topology.cpus:
        groups["core"].setdefault(cpu.core, []).append(cpu.id)
        groups["socket"].setdefault(cpu.socket, []).append(cpu.id)
        if cpu.l3 is not None:
            groups["l3"].setdefault(cpu.l3, []).append(cpu.id)
    sockets = {str(CpuSet(cpus)): socket for socket, cpus in groups["socket"].items()}
    return Summary(
        online=str(topology.online),
        cores=frozenset(str(CpuSet(cpus)) for cpus in groups["core"].values()),
        sockets=frozenset(sockets),
        socket_ids=sockets,
        caches=frozenset(str(CpuSet(cpus)) for cpus in groups["l3"].values()),
        nodes={node.id: (str(node.cpus), node.memory_bytes) for node in topology.numa_nodes},
    )


def _list(mask: str | None) -> str:
    words = (mask or "0x0").split(",")
    return str(CpuSet.parse_mask(",".join(word.removeprefix("0x").rjust(8, "0") for word in words)))
