"""What the files of a moment say about CPUs that two have."""

from __future__ import annotations

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner, Snapshot, encode
from tests.cluster.churn import in_use, moved, overlaps

SNAPSHOT = "/run/topolet/snapshot.json"


def moment(owners: dict[str, tuple[QoS, str]], cpusets: dict[str, str]) -> dict[str, str]:
    """`owners`: by uid; `cpusets`: of one container of each pod, by the pod's uid."""
    snapshot = Snapshot(
        generation=1,
        listed_at=0,
        boot_id="",
        kubelet_static=False,
        pools={},
        owners=tuple(Owner(uid, uid, qos, cpus) for uid, (qos, cpus) in owners.items()),
        pods={},
        containers={},
    )
    files = {
        f"/sys/fs/cgroup/cpuset/kubepods/pod{uid}/of-{uid}/cpuset.cpus": f"{cpus}\n"
        for uid, cpus in cpusets.items()
    }
    return {SNAPSHOT: encode(snapshot).decode(), **files}


OWNING = ("of-a", "of-b")
SHARERS = {"of-ls": QoS.LS, "of-be": QoS.BE}


@pytest.mark.parametrize(
    ("owners", "cpusets", "words"),
    [
        ({"a": (QoS.LSR, "1")}, {"a": "1", "ls": "0", "be": "0-1"}, []),
        ({"a": (QoS.LSR, "1")}, {"a": "1", "ls": "0-1"}, ["a and a pod of class LS: CPUs 1"]),
        ({"a": (QoS.LSE, "1")}, {"a": "1", "be": "1"}, ["a and a pod of class BE: CPUs 1"]),
        # The owner's container has ended, or has not yet its CPUs.
        ({"a": (QoS.LSE, "1")}, {"be": "0-1", "ls": "0-1"}, []),
        ({"a": (QoS.LSE, "1")}, {"a": "0-1", "be": "0-1"}, []),
        # Both have the CPU, by the agent.
        (
            {"a": (QoS.LSE, "1"), "b": (QoS.LSR, "1-2")},
            {"a": "1", "b": "1-2"},
            ["a and b: CPUs 1", "b and a: CPUs 1"],
        ),
        # The container of a pod that the agent does not know as an owner is in the pool.
        ({"a": (QoS.LSE, "1")}, {"a": "1", "b": "0"}, []),
    ],
)
def test_a_cpu_of_an_owner_that_another_has_is_told(
    owners: dict[str, tuple[QoS, str]], cpusets: dict[str, str], words: list[str]
) -> None:
    before = moment({}, {"ls": "0-1", "be": "0-1"})
    moments = [before, moment(owners, cpusets), moment(owners, cpusets), before]
    assert overlaps(moments, OWNING, SHARERS) == words


def test_the_group_of_a_container_that_never_ran_has_no_cpus() -> None:
    """A runtime killed while it creates a container leaves its group without processes."""
    used = moment({"a": (QoS.LSR, "1")}, {"a": "1"})
    groups = "/sys/fs/cgroup/cpuset/kubepods"
    others = {
        f"{groups}/poda/of-a/cgroup.procs": "7\n",
        f"{groups}/podb/of-b/cpuset.cpus": "1\n",
        f"{groups}/podb/of-b/cgroup.procs": "",
    }
    assert in_use(used | others) == used


def test_a_moment_without_a_snapshot_says_nothing() -> None:
    files = moment({"a": (QoS.LSE, "1")}, {"a": "1", "ls": "1"})
    del files[SNAPSHOT]
    assert overlaps([files], OWNING, SHARERS) == []


@pytest.mark.parametrize(
    ("cpusets", "has_moved"),
    [
        (["0-15", "14-15"], False),
        (["0-15", "0-14"], False),
        (["14-15", "14", "14-15"], False),
        (["14-15", "15"], True),
        (["14-15", "12-13"], True),
        (["14-15", "12,14"], True),
        (["2-3", "0-15"], True),
        (["2-3", "2"], True),
    ],
)
def test_a_container_that_lost_an_unplugged_cpu_has_not_moved(
    cpusets: list[str], has_moved: bool
) -> None:
    assert moved([CpuSet.parse(text) for text in cpusets], 2) is has_moved
