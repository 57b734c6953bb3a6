"""Real cgroups for the features of colocation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import mounted
from agent.cgroup.limits import IDLE
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ColocatedNode

ROOT = "/sys/fs/cgroup"


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    cpu = None if os.geteuid() else mounted(ROOT, "cpu")
    if cpu is None:
        pytest.skip("no cgroups of the cpu controller can be made here")
    mounts = {each: mounted(ROOT, each) for each in ("cpu", "cpuacct")}
    real = RealGroups({each: mount for each, mount in mounts.items() if mount is not None})
    yield real
    real.close()


@pytest.fixture
def node(tmp_path: Path, groups: RealGroups) -> ColocatedNode:
    node = ColocatedNode(tmp_path, groups)
    group = groups.make("/probe")
    if not groups.path(group, IDLE).exists():
        pytest.skip("this kernel has no cpu.idle")
    return node
