from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.colocation.memory_qos import (
    NO_VALUES,
    RECLAIMED_BYTES,
    MemoryProtection,
    MemoryValues,
    PodMemory,
    lowered,
    reclaimed,
    wanted,
)
from agent.model.node_slo import MemoryQos
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL, KubeClass

GIB: Final = 1 << 30
PAGE: Final = 4096
HALF: Final = MemoryQos(enable=True, min_limit_percent=50, low_limit_percent=100)
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"


def pod(
    uid: str,
    *requests: int,
    limit: int | None = None,
    batch: bool = False,
    kube_class: KubeClass = "burstable",
    **other: Any,
) -> ApiPod:
    name = BATCH_MEMORY if batch else "memory"
    return ApiPod(
        uid,
        "default",
        uid,
        "node",
        other.pop("phase", Phase.RUNNING),
        {QOS_LABEL: "BE"} if batch else {},
        {},
        "besteffort" if batch else kube_class,
        0,
        containers=tuple(
            ApiContainer(f"c{place}", {name: each}, {} if limit is None else {name: limit})
            for place, each in enumerate(requests)
        ),
        **other,
    )


def test_the_groups_of_classes_and_of_all_pods_get_the_sums() -> None:
    pods = [
        pod("g", 8 * GIB, kube_class="guaranteed"),
        pod("u", 2 * GIB, 2 * GIB),
        pod("b", GIB, batch=True),
    ]
    node = wanted([(each, HALF) for each in pods], 64 * GIB)
    assert node.root == MemoryValues(6 * GIB + GIB // 2, 13 * GIB)
    assert node.classes == {
        "burstable": MemoryValues(2 * GIB, 4 * GIB),
        "besteffort": MemoryValues(GIB // 2, GIB),
    }
    assert node.pods["u"] == PodMemory(
        MemoryValues(2 * GIB, 4 * GIB), dict.fromkeys(("c0", "c1"), MemoryValues(GIB, 2 * GIB))
    )
    assert not node.reason


def test_batch_pods_lose_their_protection_before_services() -> None:
    pods = [pod("u", 8 * GIB), pod("b1", 8 * GIB, batch=True), pod("b2", 24 * GIB, batch=True)]
    all_of_it = MemoryQos(enable=True, min_limit_percent=100)
    node = wanted([(each, all_of_it) for each in pods], 16 * GIB)
    assert node.root.min_bytes == 16 * GIB
    assert {uid: each.group.min_bytes for uid, each in node.pods.items()} == {
        "u": 8 * GIB,
        "b1": 2 * GIB,
        "b2": 6 * GIB,
    }
    assert node.pods["b2"].containers["c0"].min_bytes == 6 * GIB
    assert node.reason == (
        f"pods want {40 * GIB} bytes protected, and the node has {16 * GIB}: each gets a part"
    )


def test_neutral_strategies_and_pods_that_ended_want_nothing() -> None:
    ended = pod("e", GIB, phase=Phase.SUCCEEDED)
    assert wanted([(pod("u", GIB), MemoryQos()), (ended, HALF)], GIB) == MemoryProtection()


@pytest.mark.parametrize(
    ("limit", "percent", "high"),
    [
        (3 * GIB, 50, 2 * GIB),
        (3 * GIB, 100, 3 * GIB),
        (None, 50, GIB + 15 * GIB // 2),  # the node stands for a limit
        (3 * GIB, 0, None),
    ],
)
def test_high_lies_between_request_and_limit(
    limit: int | None, percent: int, high: int | None
) -> None:
    qos = MemoryQos(enable=True, throttling_percent=percent, min_limit_percent=1)
    node = wanted([(pod("u", GIB, limit=limit), qos)], 16 * GIB)
    assert node.pods["u"].containers["c0"].high_bytes == high
    assert node.pods["u"].group.high_bytes is None


def test_oom_group_is_set_on_pods_and_containers_alone() -> None:
    node = wanted([(pod("u", GIB), MemoryQos(enable=True, oom_kill_group=1))], GIB)
    together = MemoryValues(oom_group=True)
    assert node == MemoryProtection(pods={"u": PodMemory(together, {"c0": together})})


def test_nothing_is_wanted_against_the_kubelet() -> None:
    pods = [(pod("u", GIB), msgspec.structs.replace(HALF, oom_kill_group=1, throttling_percent=9))]
    kubelets = wanted(pods, GIB, kubelet_protects=True)
    together = MemoryValues(oom_group=True)
    assert kubelets.pods == {"u": PodMemory(together, {"c0": together})}
    assert (kubelets.root, kubelets.classes) == (NO_VALUES, {})
    assert "MemoryQoS" in kubelets.reason
    single = wanted(pods, GIB, kubelet_kills_single=True)
    assert single.pods["u"].group == MemoryValues(GIB // 2, GIB)
    both = wanted(pods, GIB, kubelet_protects=True, kubelet_kills_single=True)
    assert both.pods == {}
    marked = (pod("b", GIB, limit=2 * GIB, batch=True), MemoryQos(enable=True, wmark_ratio=50))
    reclaims = wanted([marked], GIB, kubelet_protects=True)
    assert reclaims.pods["b"].containers == {"c0": MemoryValues(mark_bytes=GIB)}
    assert not reclaims.reason, "what the kubelet does concerns none of it"


@pytest.mark.parametrize(
    ("batch", "limit", "qos", "mark"),
    [
        (True, 4 * GIB, MemoryQos(wmark_ratio=95), 95 * 4 * GIB // 100),
        (True, 4 * GIB, MemoryQos(wmark_ratio=25, low_limit_percent=100), 2 * GIB),  # protected
        (True, None, MemoryQos(wmark_ratio=95), None),
        (True, 4 * GIB, MemoryQos(low_limit_percent=100), None),
        (False, 4 * GIB, MemoryQos(wmark_ratio=95), None),
    ],
)
def test_batch_containers_are_reclaimed_from_above_a_part_of_their_limit(
    batch: bool, limit: int | None, qos: MemoryQos, mark: int | None
) -> None:
    of_pods = wanted([(pod("b", 2 * GIB, limit=limit, batch=batch), qos)], 16 * GIB).pods
    assert of_pods.get("b", PodMemory()).containers.get("c0", NO_VALUES).mark_bytes == mark


@pytest.mark.parametrize(
    ("used", "lost"),
    [(GIB, 0), (GIB + PAGE, PAGE), (4 * GIB, RECLAIMED_BYTES), (0, 0)],
)
def test_what_is_above_the_mark_is_reclaimed_in_parts(used: int, lost: int) -> None:
    assert reclaimed(MemoryValues(mark_bytes=GIB), used) == lost
    assert reclaimed(NO_VALUES, used) == 0


@pytest.mark.parametrize(
    ("present", "used", "high"),
    [
        (None, GIB // 2, GIB),
        (None, 2 * GIB, 2 * GIB - RECLAIMED_BYTES),
        (None, GIB + PAGE, GIB),
        (2 * GIB, 3 * GIB, 2 * GIB - RECLAIMED_BYTES),  # it falls though nothing could be reclaimed
        (3 * GIB, 2 * GIB, 2 * GIB - RECLAIMED_BYTES),
        (GIB, 3 * GIB, GIB),
        (GIB // 2, 3 * GIB, GIB),
    ],
)
def test_high_falls_in_steps(present: int | None, used: int, high: int) -> None:
    assert lowered(GIB, present, used) == high


PERCENTS = st.integers(0, 100)
STRATEGIES = st.builds(
    MemoryQos,
    min_limit_percent=PERCENTS,
    low_limit_percent=PERCENTS,
    throttling_percent=PERCENTS,
    oom_kill_group=st.integers(0, 1),
)
AMOUNTS = st.integers(0, 64 * GIB)


@st.composite
def pods_with_strategies(draw: st.DrawFn) -> list[tuple[ApiPod, MemoryQos]]:
    return [
        (
            pod(
                f"u{place}",
                *draw(st.lists(AMOUNTS, min_size=1, max_size=3)),
                limit=draw(st.none() | AMOUNTS),
                batch=draw(st.booleans()),
                kube_class=draw(st.sampled_from(("guaranteed", "burstable"))),
            ),
            draw(STRATEGIES),
        )
        for place in range(draw(st.integers(0, 4)))
    ]


@given(pods_with_strategies(), AMOUNTS)
def test_protection_is_of_the_node_and_below_what_throttles(
    pods: list[tuple[ApiPod, MemoryQos]], allocatable: int
) -> None:
    node = wanted(pods, allocatable)
    groups = [each.group for each in node.pods.values()]
    assert (node.root.min_bytes or 0) <= allocatable
    assert (node.root.low_bytes or 0) <= allocatable
    assert sum(each.min_bytes or 0 for each in groups) == (node.root.min_bytes or 0)
    assert sum(each.min_bytes or 0 for each in node.classes.values()) <= (node.root.min_bytes or 0)
    for of_pod in node.pods.values():
        containers = of_pod.containers.values()
        assert sum(each.min_bytes or 0 for each in containers) <= (of_pod.group.min_bytes or 0)
        for values in (of_pod.group, *containers):
            least, low = values.min_bytes or 0, values.low_bytes
            assert low is None or least <= low
            if values.high_bytes is not None:
                assert values.high_bytes // PAGE >= max(least, low or 0) // PAGE


@given(pods_with_strategies(), AMOUNTS)
def test_the_order_of_pods_does_not_matter(
    pods: list[tuple[ApiPod, MemoryQos]], allocatable: int
) -> None:
    assert wanted(pods, allocatable) == wanted(pods[::-1], allocatable)
