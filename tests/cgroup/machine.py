"""The cpuset hierarchy of this machine; tests without one, or without two CPUs, are skipped."""

from __future__ import annotations

import os

import pytest

from agent.cgroup.hierarchy import CgroupError, Hierarchy

if os.geteuid() != 0:
    pytest.skip("cpusets can't be written without root", allow_module_level=True)
try:
    REAL = Hierarchy(os.environ.get("TOPOLET_CGROUP_ROOT", "/sys/fs/cgroup"))
except CgroupError as error:
    pytest.skip(str(error), allow_module_level=True)
ALL = REAL.effective_cpus("/")
if len(ALL) < 2:
    pytest.skip("needs two CPUs", allow_module_level=True)
