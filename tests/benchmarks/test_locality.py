"""benchmarks/locality.py: its kubelets give what a kubelet gives, its counters see rejections and
places, and every case of the issue has a row."""

from __future__ import annotations

import pytest

from agent.allocate.numa.hint import TopologyHint
from agent.model.cpu.policies import NumaPolicy
from benchmarks import locality
from benchmarks.locality import (
    ARMS,
    JOBS,
    MACHINES,
    Amounts,
    Extent,
    Kubelet,
    KubeletWithAgent,
    Pod,
)


def job(gpus: int, number: int) -> Pod:
    return Pod(number, JOBS[gpus], 0.0, 1.0)


@pytest.mark.parametrize(
    ("requested", "free", "hints"),
    [
        (1, (0, 2), [(0b10, True), (0b11, False)]),
        (2, (1, 1), [(0b11, False)]),
        (3, (1, 2), [(0b11, True)]),
        (3, (1, 1), []),
    ],
)
def test_a_device_hint_is_preferred_where_an_empty_machine_needs_as_many_numa_nodes(
    requested: int, free: tuple[int, ...], hints: list[tuple[int, bool]]
) -> None:
    """Of two NUMA nodes with two devices each."""
    expected = tuple(TopologyHint(mask, preferred) for mask, preferred in hints)
    assert locality.device_hints(requested, free, 2) == expected


@pytest.mark.parametrize(
    ("kubelet_type", "numa", "admitted"),
    [
        (Kubelet, NumaPolicy.SINGLE_NUMA_NODE, False),
        (Kubelet, NumaPolicy.BEST_EFFORT, True),
        (KubeletWithAgent, NumaPolicy.BEST_EFFORT, True),
    ],
)
def test_a_job_is_rejected_or_far_where_both_numa_nodes_have_half_of_its_gpus(
    kubelet_type: type[Kubelet], numa: NumaPolicy, admitted: bool
) -> None:
    kubelet = kubelet_type(MACHINES["2x4"], numa)
    placements = [kubelet.admit(job(2, number)) for number in range(3)]
    assert [each and (dict(each.gpus), each.near) for each in placements] == [
        ({0: 2}, True),
        ({0: 2}, True),
        ({1: 2}, True),
    ]
    kubelet.end(job(2, 0).name)
    split = kubelet.admit(job(4, 3))
    assert (split is not None) is admitted
    if split is not None:
        assert (dict(split.gpus), split.near) == ({0: 2, 1: 2}, False)
    assert sum(kubelet.free_gpus) == (0 if admitted else 4)


def test_gpus_of_a_numa_node_whose_cpus_other_pods_own_are_far() -> None:
    kubelet = Kubelet(MACHINES["2x4"], NumaPolicy.BEST_EFFORT)
    kubelet.admit(Pod(0, Amounts(62, 0, 1), 0.0, 1.0))
    kubelet.admit(job(4, 1))
    assert kubelet.free_gpus == [4, 0]
    far = kubelet.admit(Pod(2, Amounts(12, 1, 1), 0.0, 1.0))
    assert far is not None
    assert (dict(far.gpus), far.near) == ({0: 1}, False)


def test_all_cases_exist_and_ours_is_never_rejected() -> None:
    results = locality.measured(Extent(seeds=1, loads=(90,), warm_up=0.5, measured=0.5))
    rows = {row["case"]: row for row in locality.rows(results)}
    assert {rows[f"rejections_{arm}"]["value"] for arm in locality.OURS} == {0}
    assert {f"{figure}_{arm}" for figure in locality.FIGURES for arm in ARMS} <= rows.keys()
    assert rows["gpus_in_use_vs_best"]["base"] > 0
    assert rows["near_percent_stock_single_numa_node"]["value"] == 100
