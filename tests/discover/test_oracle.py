"""Random machines: Topolet's topology is compared with lstopo's."""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from tests.discover.oracle import lstopo, needs_lstopo, ours
from tests.fixtures.trees import CPU, Files, machine, offline, without, write

pytestmark = needs_lstopo

IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Thousands of small files."""

REMOVABLE = (
    ("core_cpus", "package_cpus"),
    ("/die_",),
    ("/physical_package_id",),
    ("/cache/",),
    ("index3",),
    ("/distance",),
    ("/hugepages",),
    ("cpu/online",),
    ("node/online",),
    ("possible", "present"),
    ("proc/",),
    ("_list", "cpulist"),
)


@st.composite
def machines(draw: st.DrawFn) -> Files:
    small = st.integers(1, 3)
    shape = [draw(small) for _ in range(5)]
    total = shape[0] * shape[1] * shape[2] * shape[3] * shape[4]
    assume(total <= 24)
    pool = range(draw(st.integers(total, total + 40)))
    files = machine(
        *shape,
        masks=draw(st.booleans()),
        numbers=draw(st.permutations(pool))[:total],
    )
    present = sorted({int(path.split("/")[4][3:]) for path in files if f"{CPU}/cpu" in path})
    gone = draw(st.sets(st.sampled_from(present), max_size=len(present) - 1))
    if draw(st.booleans()):
        files = offline(files, CpuSet(gone))
    for parts in draw(st.sets(st.sampled_from(REMOVABLE), max_size=3)):
        files = without(files, *parts)
    return files


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines())
def test_random_machine(files: Files) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        root = write(folder, files)
        theirs = lstopo(root)
        found = ours(cpus.read(root))
    # hwloc fails if CPU 0 does not have a folder and the list of online CPUs is missing too.
    assume(theirs is not None)
    assert theirs is not None
    assert not theirs.complaint
    assert found.online == theirs.online
    assert found.cores == theirs.cores
    assert found.sockets == theirs.sockets
    assert found.socket_ids | theirs.socket_ids == found.socket_ids
    assert found.caches == theirs.caches
    # A node whose CPUs are all offline: hwloc assigns it the CPUs of the nearest nodes.
    assert found.nodes.keys() == theirs.nodes.keys()
    for node, (members, memory_bytes) in found.nodes.items():
        assert theirs.nodes[node][1] == memory_bytes
        assert members in ("", theirs.nodes[node][0])
