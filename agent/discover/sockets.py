"""Which CPUs share a core, a die, a socket: `cpuN/topology`.

Three generations of names: `core_cpus`, `package_cpus` (5.2 and later), before them
`thread_siblings`, `core_siblings`; `die_id` came with the new names.
"""

from __future__ import annotations

import re

from agent.discover.facts import CPU, cpu_list, cpu_map, integer, optional_integer, partition
from agent.host.files import Tree
from agent.model.cpuset import EMPTY, CpuSet, union

_CORE_NAMES = ("core_cpus", "thread_siblings")
_SOCKET_NAMES = ("package_cpus", "core_siblings")
_DIE_NAMES = ("die_cpus",)
_BOOK_NAMES = ("book_id", "drawer_id")
_COMPUTE_UNITS = re.compile(rb"cpu family\s*:\s*(21|22)\b")


class Siblings:
    """Reads one kind of sibling file, keeping to the name that the machine turned out to have."""

    def __init__(self, tree: Tree, names: tuple[str, ...]) -> None:
        self._tree = tree
        self._order = [(name, cpu_map) for name in names] + [
            (name + "_list", cpu_list) for name in names
        ]

    def of(self, cpu: int) -> CpuSet | None:
        """The CPUs that share with `cpu`, offline ones possibly among them; None if unknown.

        An empty mask tells nothing: a CPU shares with itself at least.
        """
        for index, (name, read) in enumerate(self._order):
            found = read(self._tree, f"{CPU}/cpu{cpu}/topology/{name}")
            if found:
                if index:
                    self._order.insert(0, self._order.pop(index))
                return found
        return None


def cores(tree: Tree, cpus: CpuSet) -> dict[int, CpuSet]:
    """The threads of each core, by the lowest of them."""
    groups = dict(partition(cpus, Siblings(tree, _CORE_NAMES).of))
    if _has_compute_units(tree, groups):
        return {cpu: CpuSet((cpu,)) for cpu in cpus}
    return groups


def sockets(tree: Tree, cores: dict[int, CpuSet]) -> dict[int, CpuSet]:
    """The CPUs of each socket, by the kernel's `physical_package_id`.

    The sibling files decide which cores belong together, and the ids name the groups. Two groups of
    one id are one socket (kernels that know no cluster-on-die list the siblings of a NUMA node),
    unless they lie in different books (s390 counts anew in each); then the later one, like a group
    whose id is unknown (-1 on many ARM and POWER machines), gets the lowest free number. Without
    sibling files equal ids belong together, and a machine that knows no sockets is socket 0.
    """
    siblings = Siblings(tree, _SOCKET_NAMES)
    ids: dict[int, int | None] = {}

    def number(cpu: int) -> int | None:
        if cpu not in ids:
            ids[cpu] = _package_id(tree, cpu)
        return ids[cpu]

    def sharers(cpu: int) -> CpuSet:
        found = siblings.of(cpu)
        if found is not None:
            return found
        return CpuSet(other for other in cores if number(other) == number(cpu))

    named: dict[int, CpuSet] = {}
    books: dict[int, tuple[int | None, ...]] = {}
    nameless: list[CpuSet] = []
    for first, members in partition(CpuSet(cores), sharers):
        package = number(first)
        cpus = union(cores[core] for core in members)
        if package is None or books.setdefault(package, _book(tree, first)) != _book(tree, first):
            nameless.append(cpus)
        else:
            named[package] = named.get(package, EMPTY) | cpus
    free = 0
    for cpus in nameless:
        while free in named:
            free += 1
        named[free] = cpus
    return named


def dies(tree: Tree, socket: CpuSet) -> dict[int, int]:
    """The kernel's die id of each CPU of a socket; empty where the kernel knows no dies."""
    known: dict[int, int] = {}
    first = socket.first()
    if first is None or _die_id(tree, first) is None:
        return known
    for cpu, members in partition(socket, Siblings(tree, _DIE_NAMES).of):
        die = _die_id(tree, cpu)
        if die is not None:
            known.update(dict.fromkeys(members, die))
    return known


def _package_id(tree: Tree, cpu: int) -> int | None:
    # -1 is "unknown", which some kernels print unsigned.
    found = integer(tree, f"{CPU}/cpu{cpu}/topology/physical_package_id")
    return found if found is not None and 0 <= found < 1 << 31 else None


def _book(tree: Tree, cpu: int) -> tuple[int | None, ...]:
    return tuple(optional_integer(tree, f"{CPU}/cpu{cpu}/topology/{name}") for name in _BOOK_NAMES)


def _die_id(tree: Tree, cpu: int) -> int | None:
    found = optional_integer(tree, f"{CPU}/cpu{cpu}/topology/die_id")
    return found if found is not None and 0 <= found < 1 << 31 else None


def _has_compute_units(tree: Tree, groups: dict[int, CpuSet]) -> bool:
    """AMD Bulldozer: `thread_siblings` are the two cores of a compute unit, each with a core id."""
    pair = next((members for members in groups.values() if len(members) > 1), None)
    if pair is None:
        return False
    # The first page of cpuinfo holds the first CPU, and is all that a live kernel need print.
    cpuinfo = tree.read("proc/cpuinfo", limit=4096) or b""
    if b"AuthenticAMD" not in cpuinfo or not _COMPUTE_UNITS.search(cpuinfo):
        return False
    return len({optional_integer(tree, f"{CPU}/cpu{cpu}/topology/core_id") for cpu in pair}) > 1
