"""The machine from sysfs: CPUs, those that share a core, die, socket or L3 cache, and the kinds of
cores of a hybrid machine; and the NUMA nodes with their CPUs, memory, huge pages and distances. A
file that a group of CPUs shares is read once for the group, of its lowest CPU.

`cpuN/topology` has `core_cpus`, `package_cpus` and `die_id` since Linux 5.2; earlier kernels have
`thread_siblings` and `core_siblings`. In `cpuN/cache/indexM` the index is only a number; `level`
and `type` describe the cache. On Intel the kernel registers one PMU for each core kind, with the
CPUs that it counts; on ARM each CPU has a capacity relative to the strongest (1024).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import msgspec

from agent.discover.sysfs import (
    CPU,
    NODE,
    DiscoveryError,
    cpu_list,
    cpu_map,
    integer,
    invalid_text,
    numbered,
    optional,
    optional_integer,
    partition,
)
from agent.host.files import Tree
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.cpu.topology import Cpu, HugePages, NumaNode, Topology

_MEM_TOTAL = re.compile(rb"MemTotal:\s*([0-9]{1,20})\s*kB")


def numa_nodes(tree: Tree, online: CpuSet) -> tuple[tuple[NumaNode, ...], dict[int, int]]:
    """The online nodes, and the node of each of the `online` CPUs: by the nodes' lists, by the
    CPU's own link, or else the first node. Raises DiscoveryError, OSError."""
    nodes = _numa_nodes(tree, online)
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    strays = [cpu for cpu in online if cpu not in node_of]
    for cpu in strays:
        node = numbered(tree, f"{CPU}/cpu{cpu}", "node").first()
        node_of[cpu] = nodes[0].id if node is None else node
    if strays:
        nodes = tuple(
            msgspec.structs.replace(
                node, cpus=CpuSet(cpu for cpu in online if node_of[cpu] == node.id)
            )
            for node in nodes
        )
    return nodes, node_of


def _numa_nodes(tree: Tree, cpus: CpuSet) -> tuple[NumaNode, ...]:
    """The online nodes by id; a machine without node directories is node 0.

    `cpus` are the online CPUs; nodes get no others. If two nodes list a CPU (broken firmware), the
    lower one gets it.
    """
    folders = numbered(tree, NODE, "node")
    if not folders:
        return (_machine(tree, cpus),)
    # A node without a directory is offline; a directory that is not in the list is being removed.
    listed = optional(cpu_list, tree, f"{NODE}/online") or folders
    online = tuple(listed)
    ids = tuple(listed & folders or folders)
    machine_meminfo = tree.read("proc/meminfo") or b""
    nodes = []
    rest = cpus
    for node in ids:
        path = f"{NODE}/node{node}"
        members = cpu_map(tree, f"{path}/cpumap")
        if members is None:
            members = cpu_list(tree, f"{path}/cpulist") or CpuSet()
        members &= rest
        rest -= members
        meminfo = tree.read(f"{path}/meminfo") or b""
        nodes.append(
            NumaNode(
                id=node,
                cpus=members,
                memory_bytes=_memory_bytes(tree, f"{path}/meminfo", meminfo),
                distances=_distances(tree, f"{path}/distance", online, ids),
                hugepages=_pools(tree, f"{path}/hugepages", meminfo, machine_meminfo),
            )
        )
    return tuple(nodes)


def _machine(tree: Tree, cpus: CpuSet) -> NumaNode:
    meminfo = tree.read("proc/meminfo") or b""
    return NumaNode(
        id=0,
        cpus=cpus,
        memory_bytes=_memory_bytes(tree, "proc/meminfo", meminfo),
        hugepages=_pools(tree, _MACHINE_POOLS, meminfo, meminfo),
    )


def _memory_bytes(tree: Tree, path: str, meminfo: bytes) -> int:
    match = _MEM_TOTAL.search(meminfo)
    if match:
        return int(match[1]) << 10
    if meminfo.strip(b"\0 \n"):
        raise invalid_text(tree, path, meminfo.decode("utf-8", "replace"), "has no MemTotal in kB")
    return 0


def huge_pages(root: str, nodes: Iterable[int]) -> dict[int, tuple[HugePages, ...]]:
    """The pools of these NUMA nodes now; none where they can't be read."""
    tree = Tree(root)
    pools = {}
    for node in nodes:
        try:
            pools[node] = _pools_of_folder(tree, f"{NODE}/node{node}/hugepages")
        except (DiscoveryError, OSError):
            continue
    return pools


def _pools(tree: Tree, folder: str, meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    of_folder = _pools_of_folder(tree, folder)
    return of_folder or _pool_of_meminfo(meminfo, machine)


def _distances(
    tree: Tree, path: str, online: tuple[int, ...], ids: tuple[int, ...]
) -> tuple[int, ...]:
    """The distances from a node; the kernel prints one number per online node, in order of ids."""
    words = (tree.text(path) or "").split()
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        return ()
    if len(words) == len(ids):
        return tuple(map(int, words))
    if len(words) == len(online):
        row = dict(zip(online, words, strict=True))
        return tuple(int(row[node]) for node in ids)
    return ()


_MACHINE_POOLS = "sys/kernel/mm/hugepages"

_POOL = re.compile(r"hugepages-([0-9]{1,12})kB")
_TOTAL = re.compile(rb"HugePages_Total:\s*([0-9]{1,20})\b")
_FREE = re.compile(rb"HugePages_Free:\s*([0-9]{1,20})\b")
_SIZE = re.compile(rb"Hugepagesize:\s*([0-9]{1,20})\s*kB")


def _pools_of_folder(tree: Tree, folder: str) -> tuple[HugePages, ...]:
    """The pools of a `hugepages` directory, smallest pages first."""
    pools = []
    for name in tree.names(folder):
        match = _POOL.fullmatch(name)
        total = optional_integer(tree, f"{folder}/{name}/nr_hugepages") if match else None
        if match is None or total is None:
            continue
        free = optional_integer(tree, f"{folder}/{name}/free_hugepages") if total else 0
        pools.append(HugePages(int(match[1]) << 10, total, free or 0))
    return tuple(sorted(pools, key=lambda pool: pool.size_bytes))


def _pool_of_meminfo(meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    """The only pool of kernels before 2.6.31: the counts are in the node's `meminfo`, the page size
    in the machine's."""
    total = _TOTAL.search(meminfo)
    free = _FREE.search(meminfo)
    size = _SIZE.search(machine)
    if total is None or free is None or size is None:
        return ()
    return (HugePages(int(size[1]) << 10, int(total[1]), int(free[1])),)


_ISOLCPUS = re.compile(rb"(?:^|\s)isolcpus=(?:[a-z_]+,)*([0-9][0-9,:/-]*)")


def read(root: str) -> Topology:
    """The machine whose /sys and /proc are below `root` (`/` is this one).

    Raises DiscoveryError where the files do not describe a machine.
    """
    tree = Tree(root)
    try:
        return _topology(tree)
    except OSError as error:
        raise DiscoveryError(f"{error.filename or root}: {error.strerror}") from error


def _topology(tree: Tree) -> Topology:
    folders = numbered(tree, CPU, "cpu")
    online = _online(tree, folders)
    if not online:
        raise DiscoveryError(f"{tree.path(CPU)}: no online CPU")
    cores = _cores(tree, online)
    core_of = {cpu: core for core, threads in cores.items() for cpu in threads}
    socket_of: dict[int, int] = {}
    die_of: dict[int, int] = {}
    for socket, members in _sockets(tree, cores).items():
        socket_of.update(dict.fromkeys(members, socket))
        die_of.update(_dies(tree, members))
    l3_of = _l3_groups(tree, online, cores)
    kind_of = _core_kinds(tree, online, cores)
    nodes, node_of = numa_nodes(tree, online)
    present = optional(cpu_list, tree, f"{CPU}/present") or folders
    return Topology(
        cpus=tuple(
            Cpu(
                cpu,
                core_of[cpu],
                l3_of.get(cpu),
                die_of.get(cpu),
                socket_of[cpu],
                node_of[cpu],
                kind_of.get(cpu),
            )
            for cpu in online
        ),
        numa_nodes=nodes,
        offline=present - online,
        isolated=_isolated(tree) & (present | online),
        smt=len(cores) < len(online),
        smt_control=tree.text(f"{CPU}/smt/control"),
    )


def _online(tree: Tree, folders: CpuSet) -> CpuSet:
    """The online CPUs. The kernel describes only those: if some CPUs have a `topology` folder, CPUs
    without one are offline, even if the list names them. Kernels before 2.6.26 have no list."""
    listed = cpu_list(tree, f"{CPU}/online")
    if listed is None:
        listed = CpuSet(cpu for cpu in folders if tree.text(f"{CPU}/cpu{cpu}/online") != "0")
    running = listed & folders
    described = CpuSet(cpu for cpu in running if tree.exists(f"{CPU}/cpu{cpu}/topology"))
    return described or running


def _isolated(tree: Tree) -> CpuSet:
    """The CPUs of `isolcpus`, without those of isolated partitions (kernels as 7.2 too); before
    Linux 4.2 only the kernel's command line has them."""
    if tree.exists(f"{CPU}/isolated"):
        return optional(cpu_list, tree, f"{CPU}/isolated") or CpuSet()
    match = _ISOLCPUS.search(tree.read("proc/cmdline") or b"")
    try:
        return CpuSet.parse(match[1].decode().rstrip(",")) if match else CpuSet()
    except CpuSetError:
        return CpuSet()


_WATCHED = ("sys/devices/system/cpu/online", "sys/devices/system/node/online")


class TopologyView:
    """The topology, read again after CPUs or NUMA nodes went online or offline.

    `root`: the folder with the host's /sys."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._topology: Topology | None = None
        self._online: tuple[bytes, ...] = ()

    def topology(self) -> Topology:
        """Raises DiscoveryError."""
        online = tuple(self._read(path) for path in _WATCHED)
        if self._topology is None or online != self._online:
            self._topology = read(self._root)
            self._online = online
        return self._topology

    def _read(self, path: str) -> bytes:
        try:
            with open(os.path.join(self._root, path), "rb") as file:
                return file.read()
        except OSError:
            return b""


_CORE_NAMES = ("core_cpus", "thread_siblings")
_SOCKET_NAMES = ("package_cpus", "core_siblings")
_DIE_NAMES = ("die_cpus",)
_BOOK_NAMES = ("book_id", "drawer_id")
_COMPUTE_UNITS = re.compile(rb"cpu family\s*:\s*(21|22)\b")


class _Siblings:
    """Reads one kind of sibling file, by the first of `names` that the machine has."""

    def __init__(self, tree: Tree, names: tuple[str, ...]) -> None:
        self._tree = tree
        self._order = [(name, cpu_map) for name in names] + [
            (name + "_list", cpu_list) for name in names
        ]

    def of(self, cpu: int) -> CpuSet | None:
        """The CPUs that share with `cpu`, possibly also offline ones; None if unknown. An empty
        mask is invalid: a CPU shares with itself at least."""
        for index, (name, read) in enumerate(self._order):
            members = read(self._tree, f"{CPU}/cpu{cpu}/topology/{name}")
            if members:
                if index:
                    self._order.insert(0, self._order.pop(index))
                return members
        return None


def _cores(tree: Tree, cpus: CpuSet) -> dict[int, CpuSet]:
    """The threads of each core, by the lowest of them."""
    groups = dict(partition(cpus, _Siblings(tree, _CORE_NAMES).of))
    if _has_compute_units(tree, groups):
        return {cpu: CpuSet((cpu,)) for cpu in cpus}
    return groups


def _sockets(tree: Tree, cores: dict[int, CpuSet]) -> dict[int, CpuSet]:
    """The CPUs of each socket, by the kernel's `physical_package_id`.

    The sibling files determine the groups of cores, and the ids name them. Two groups with one id
    are one socket (kernels without support of cluster-on-die list the siblings of a NUMA node),
    unless they are in different books (on s390 the ids start again in each). Then the later group,
    like one whose id is unknown (-1 on many ARM and POWER machines), gets the lowest free number.
    Without sibling files cores with equal ids are a socket; without ids the machine is socket 0."""
    siblings = _Siblings(tree, _SOCKET_NAMES)
    ids: dict[int, int | None] = {}

    def number(cpu: int) -> int | None:
        if cpu not in ids:
            ids[cpu] = _package_id(tree, cpu)
        return ids[cpu]

    def sharers(cpu: int) -> CpuSet:
        members = siblings.of(cpu)
        if members is not None:
            return members
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


def _dies(tree: Tree, socket: CpuSet) -> dict[int, int]:
    """The kernel's die id of each CPU of a socket; empty if the kernel does not report dies."""
    dies: dict[int, int] = {}
    first = socket.first()
    if first is None or _die_id(tree, first) is None:
        return dies
    for cpu, members in partition(socket, _Siblings(tree, _DIE_NAMES).of):
        die = _die_id(tree, cpu)
        if die is not None:
            dies.update(dict.fromkeys(members, die))
    return dies


def _package_id(tree: Tree, cpu: int) -> int | None:
    # -1 means unknown; some kernels print it unsigned.
    package = integer(tree, f"{CPU}/cpu{cpu}/topology/physical_package_id")
    return package if package is not None and 0 <= package < 1 << 31 else None


def _book(tree: Tree, cpu: int) -> tuple[int | None, ...]:
    return tuple(optional_integer(tree, f"{CPU}/cpu{cpu}/topology/{name}") for name in _BOOK_NAMES)


def _die_id(tree: Tree, cpu: int) -> int | None:
    die = optional_integer(tree, f"{CPU}/cpu{cpu}/topology/die_id")
    return die if die is not None and 0 <= die < 1 << 31 else None


def _has_compute_units(tree: Tree, groups: dict[int, CpuSet]) -> bool:
    """AMD Bulldozer: `thread_siblings` are the two cores of a compute unit, each with a core id."""
    pair = next((members for members in groups.values() if len(members) > 1), None)
    if pair is None:
        return False
    # The first page of cpuinfo has the first CPU; the kernel does not have to print the others.
    cpuinfo = tree.read("proc/cpuinfo", limit=4096) or b""
    if b"AuthenticAMD" not in cpuinfo or not _COMPUTE_UNITS.search(cpuinfo):
        return False
    return len({optional_integer(tree, f"{CPU}/cpu{cpu}/topology/core_id") for cpu in pair}) > 1


def _l3_groups(tree: Tree, cpus: CpuSet, cores: dict[int, CpuSet]) -> dict[int, int]:
    """The lowest CPU that shares the L3, for each CPU that has one."""
    first: dict[int, int] = {}
    unclaimed = rest = cpus.mask
    index = "index3"
    while rest:
        low = rest & -rest
        cpu = low.bit_length() - 1
        threads = cores[cpu].mask if cpu in cores else low
        groups = _l3(tree, cpu, index)
        if groups is None:
            rest &= ~(threads | low)
            continue
        index, sharers = groups
        # Some ia64 kernels have empty maps: then the cache belongs to the core.
        members = CpuSet.from_int((sharers.mask if sharers else threads) & unclaimed | low)
        unclaimed &= ~members.mask
        rest &= unclaimed
        first.update(dict.fromkeys(members, members.first() or 0))
    return first


def _l3(tree: Tree, cpu: int, likely: str) -> tuple[str, CpuSet] | None:
    """The name of the folder of the L3 (`indexM`), and the CPUs that share the cache; None without
    an L3.

    `likely`: the name that is tried first."""
    folder = f"{CPU}/cpu{cpu}/cache"
    if (sharers := _sharers(tree, f"{folder}/{likely}")) is not None:
        return likely, sharers
    for name in sorted(tree.names(folder)):
        if name.startswith("index") and name != likely:
            sharers = _sharers(tree, f"{folder}/{name}")
            if sharers is not None:
                return name, sharers
    return None


def _sharers(tree: Tree, cache: str) -> CpuSet | None:
    if optional_integer(tree, f"{cache}/level") != 3:
        return None
    if tree.text(f"{cache}/type") == "Instruction":
        return None
    cpus = optional(cpu_map, tree, f"{cache}/shared_cpu_map")
    return cpus if cpus is not None else optional(cpu_list, tree, f"{cache}/shared_cpu_list")


_PMU_KINDS = ("core", "atom", "lowpower")


def _core_kinds(tree: Tree, cpus: CpuSet, cores: dict[int, CpuSet]) -> dict[int, str]:
    """The kind of each CPU (`core`, `atom`, `capacity-446`); empty if all are the same."""
    kinds: dict[int, str] = {}
    for kind in _PMU_KINDS:
        members = optional(cpu_list, tree, f"sys/devices/cpu_{kind}/cpus")
        if members is not None:
            kinds.update(dict.fromkeys(members & cpus, kind))
    if not kinds and _capacity(tree, min(cores)) is not None:
        for first, threads in cores.items():
            capacity = _capacity(tree, first)
            if capacity is not None:
                kinds.update(dict.fromkeys(threads, f"capacity-{capacity}"))
    return kinds if len(set(kinds.values())) > 1 else {}


def _capacity(tree: Tree, cpu: int) -> int | None:
    return optional_integer(tree, f"{CPU}/cpu{cpu}/cpu_capacity")
