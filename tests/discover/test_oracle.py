"""Random machines: Topolet's topology is compared with lstopo's."""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from tests.discover.oracle import lstopo, needs_lstopo, summary
from tests.fixtures.trees import CPU, Files, machine, offline, without, write

pytestmark = needs_lstopo

IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""For thousands of small files."""

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
    removed = draw(st.sets(st.sampled_from(present), max_size=len(present) - 1))
    if draw(st.booleans()):
        files = offline(files, CpuSet(removed))
    for parts in draw(st.sets(st.sampled_from(REMOVABLE), max_size=3)):
        files = without(files, *parts)
    return files


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines())
def test_random_machine(files: Files) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        root = write(folder, files)
        expected = lstopo(root)
        found = summary(cpus.read(root))
    # hwloc fails if the folder of CPU 0 and the list of online CPUs are missing.
    assume(expected is not None)
    assert expected is not None
    assert not expected.error
    assert found.online == expected.online
    assert found.cores == expected.cores
    assert found.sockets == expected.sockets
    assert found.socket_ids | expected.socket_ids == found.socket_ids
    assert found.caches == expected.caches
    # If all CPUs of a node are offline, hwloc assigns it the CPUs of the nearest nodes.
    assert found.nodes.keys() == expected.nodes.keys()
    for node, (members, memory_bytes) in found.nodes.items():
        assert expected.nodes[node][1] == memory_bytes
        assert members in ("", expected.nodes[node][0])
