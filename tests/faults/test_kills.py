import os

import pytest

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from tests.faults.kills import Tally, kill


def check(tally: Tally, kills: int) -> None:
    assert not tally.findings
    assert tally.kills == kills
    assert tally.checked, "no owner was checked"
    assert len(tally.points) > kills // 8, "kills at too few steps"


def test_kills_under_churn_lose_no_cpuset() -> None:
    """On v1 and v2."""
    check(kill(80, seed=20), 80)


def test_kills_under_churn_on_this_machines_cgroups() -> None:
    if os.geteuid():
        pytest.skip("cpusets can't be written without root")
    try:
        if len(Hierarchy().effective_cpus("/")) < 2:
            pytest.skip("needs two CPUs")
    except CgroupError as error:
        pytest.skip(str(error))
    check(kill(40, seed=21, real=True), 40)
