"""What a koordlet that has ended left in cgroups. The values of v1 are those that koordlet 1.8.0
left on a mainline kernel, after SIGTERM as after SIGKILL."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.allocate.colocation.koordlet_left import (
    GroupLevel,
    LeftGroup,
    LeftKind,
    left,
    left_cpus,
    pod_quota,
)
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, CpuQuota

BATCH = {
    "cpu.cfs_quota_us": "80000",
    "cpu.shares": "819",
    "memory.limit_in_bytes": "268435456",
}
OF_KUBELET = {
    "cpu.cfs_quota_us": "-1",
    "cpu.shares": "2",
    "memory.limit_in_bytes": "9223372036854771712",
}
SERVICE = {"cpu.cfs_quota_us": "60000", "cpu.cfs_burst_us": "50000"}
DANGERS = {"cpu.idle": "1", "memory.oom.group": "1"}
PROTECTED = {"memory.min": "4096", "memory.low": "4096", "memory.high": "8192"}


def kernel_values(read: LeftGroup, *, kubelet_protects: bool = False) -> dict[str, str]:
    return {each.file: each.kernel for each in left([read], kubelet_protects=kubelet_protects)}


@pytest.mark.parametrize(
    ("level", "texts", "requested", "expected"),
    [
        (GroupLevel.BATCH, {"cpu.cfs_quota_us": "2000"}, None, {"cpu.cfs_quota_us": "-1"}),
        (GroupLevel.BATCH, {"cpu.max": "2000 100000"}, None, {"cpu.max": "max 100000"}),
        (GroupLevel.BATCH, {"cpu.max": "max 100000", "cpu.shares": "2"}, None, {}),
        (
            GroupLevel.BATCH,
            {"cpu.idle": "1", "cpu.shares": "3"},
            None,
            {"cpu.idle": "0", "cpu.shares": "2"},
        ),
        (GroupLevel.SERVICES, DANGERS, None, {"cpu.idle": "0", "memory.oom.group": "0"}),
        (GroupLevel.SERVICES, {"cpu.shares": "204", "cpu.cfs_quota_us": "100"}, None, {}),
        (GroupLevel.NODE, {"cpu.bvt_warp_ns": "2"}, None, {"cpu.bvt_warp_ns": "0"}),
        (
            GroupLevel.CONTAINER,
            SERVICE,
            "50000",
            {"cpu.cfs_quota_us": "50000", "cpu.cfs_burst_us": "0"},
        ),
        (GroupLevel.CONTAINER, SERVICE, None, {"cpu.cfs_burst_us": "0"}),
        (GroupLevel.CONTAINER, DANGERS, None, {}),
        (GroupLevel.POD, {"memory.oom.group": "1"}, None, {"memory.oom.group": "0"}),
        (GroupLevel.POD, PROTECTED, None, dict.fromkeys(("memory.min", "memory.low"), "0")),
    ],
)
def test_values_that_neither_kernel_nor_kubelet_sets(
    level: GroupLevel, texts: Mapping[str, str], requested: str | None, expected: dict[str, str]
) -> None:
    found = kernel_values(LeftGroup("/g", level, texts, requested=requested))
    found.pop("memory.high", None)
    assert found == expected


def test_limits_of_batch_pods_are_given_back_to_the_kubelets() -> None:
    kernel = {"cpu.cfs_quota_us": "-1", "cpu.shares": "2", "memory.limit_in_bytes": "-1"}
    for level in (GroupLevel.POD, GroupLevel.CONTAINER):
        values = list(left([LeftGroup("/g", level, BATCH, True)], kubelet_protects=False))
        assert {each.file: each.kernel for each in values} == kernel
        assert {each.kind for each in values} == {LeftKind.BATCH}
        assert not kernel_values(LeftGroup("/g", level, OF_KUBELET, True))
        assert not kernel_values(LeftGroup("/g", level, BATCH, False))


def test_a_kubelet_that_protects_memory_writes_the_same_files() -> None:
    read = LeftGroup("/g", GroupLevel.CONTAINER, PROTECTED)
    assert kernel_values(read) == {"memory.min": "0", "memory.low": "0", "memory.high": "max"}
    assert not kernel_values(read, kubelet_protects=True)


@pytest.mark.parametrize(
    ("present", "containers", "expected"),
    [
        (CpuQuota(300_000), [(CpuQuota(300_000), CpuQuota(100_000))], CpuQuota(100_000)),
        (CpuQuota(400_000), [(CpuQuota(300_000), CpuQuota(100_000))], CpuQuota(200_000)),
        (CpuQuota(40_000), [(CpuQuota(30_000, 10_000), CpuQuota(100_000))], CpuQuota(100_000)),
        (CpuQuota(30_000), [(CpuQuota(50_000), CpuQuota(50_000))], CpuQuota(50_000)),
        (CpuQuota(60_000), [(NO_QUOTA, CpuQuota(50_000))], CpuQuota(60_000)),
        (NO_QUOTA, [(CpuQuota(90_000), CpuQuota(50_000))], NO_QUOTA),
    ],
)
def test_the_quota_of_a_pod_is_what_remains_without_that_of_its_containers(
    present: CpuQuota, containers: list[tuple[CpuQuota, CpuQuota]], expected: CpuQuota
) -> None:
    assert pod_quota(present, containers) == expected


@pytest.mark.parametrize(
    ("own", "inherits", "expected"),
    [
        ("0-1", False, "0-7"),
        ("0-7", False, None),
        ("", False, None),
        ("0-1", True, ""),
        ("0-7", True, ""),
        ("", True, None),
    ],
)
def test_the_cpus_of_batch_pods_without_koordlet(
    own: str, inherits: bool, expected: str | None
) -> None:
    kernel = left_cpus(CpuSet.parse(own), CpuSet.parse("0-7"), inherits=inherits)
    assert kernel == (None if expected is None else CpuSet.parse(expected))
