from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.nrt.filter import ZoneFit, filter
from agent.allocate.nrt.node import (
    FAR,
    MAX_MISSING,
    Assumed,
    Freshness,
    NrtFreshness,
    freshness,
    method_of,
    without,
    zoned_node,
)
from agent.allocate.refusal import Refusal
from agent.model.nrt import resource_topology as fingerprint
from agent.model.nrt.resource_topology import (
    FINGERPRINT_METHOD,
    Amounts,
    FingerprintMethod,
    NodeTopology,
    Zone,
)
from agent.model.pod.numa_request import NumaRequest
from tests.allocate.nrt.values import CPU, GPU, container, node, pod, topology


def test_zones_are_ordered_by_their_ids() -> None:
    node_ = node({9: {"cpu": 1}, 2: {"cpu": 2, GPU: 1}}, costs={9: {2: 21, 9: 10}, 2: {2: 10}})
    assert node_.zones == (2, 9)
    assert node_.available == {"cpu": {2: 2, 9: 1}, GPU: {2: 1}}
    assert node_.together == {"cpu": 3, GPU: 1}
    assert node_.distances == ((10, FAR), (21, 10))


def test_resources_that_kubernetes_counts_are_on_every_node() -> None:
    found = zoned_node(topology({}), ("example.com/licence",))
    assert {"cpu", "memory", "ephemeral-storage", "pods", "example.com/licence"} == found.resources


def test_an_empty_node_has_all_allocatable_resources() -> None:
    object_ = NodeTopology(
        "node-a", (Zone(0, {"cpu": Amounts(8 * CPU, 6 * CPU, CPU)}),), "single-numa-node"
    )
    for cpus, now, when_empty in (
        (1, ZoneFit, ZoneFit),
        (6, Refusal, ZoneFit),
        (7, Refusal, Refusal),
    ):
        pod_a = pod(container(cpu=cpus * CPU), kube_class="guaranteed")
        assert isinstance(filter(zoned_node(object_, ()), pod_a), now)
        assert isinstance(filter(zoned_node(object_, (), empty=True), pod_a), when_empty)


TWO = {0: {"cpu": 4 * CPU, "memory": 8}, 1: {"cpu": 4 * CPU, "memory": 8, GPU: 1}}


def requesting(cpus: int, **more: int) -> NumaRequest:
    return pod(container(cpu=cpus * CPU, memory=1, **more))


def test_an_assumed_pod_is_subtracted_from_its_numa_node() -> None:
    after = without(node(TWO), [Assumed({0: {"cpu": 3 * CPU, "memory": 1}})])
    assert after.available["cpu"] == {0: CPU, 1: 4 * CPU}
    assert after.together == {"cpu": 5 * CPU, "memory": 15, GPU: 1}
    assert filter(after, requesting(3)) == ZoneFit((1,))


def test_a_pod_on_an_unknown_numa_node_is_subtracted_from_each() -> None:
    after = without(node(TWO), [Assumed(anywhere=requesting(3, gpu=1).whole.taken)])
    assert after.available == {
        "cpu": {0: CPU, 1: CPU},
        "memory": {0: 7, 1: 7},
        GPU: {1: 0},
    }
    assert isinstance(filter(after, requesting(2)), Refusal)


def test_a_pod_is_subtracted_once_from_the_sum() -> None:
    after = without(node(TWO, "restricted"), [Assumed(anywhere=requesting(3).whole.taken)])
    assert after.together["cpu"] == 5 * CPU
    assert isinstance(filter(after, requesting(5)), ZoneFit)
    assert isinstance(filter(after, requesting(6)), Refusal)


def test_amounts_are_never_negative_and_unreported_resources_stay_unreported() -> None:
    node_ = node(TWO)
    excessive = Assumed({0: {"cpu": 99 * CPU, "nic": 1}, 7: {"cpu": 1}}, {"memory": 99, "nic": 2})
    after = without(node_, [excessive])
    assert after.available == {"cpu": {0: 0, 1: 4 * CPU}, "memory": {0: 0, 1: 0}, GPU: {1: 1}}
    assert node_.available["cpu"] == {0: 4 * CPU, 1: 4 * CPU}


taken = st.builds(
    Assumed,
    st.dictionaries(
        st.integers(0, 2), st.dictionaries(st.sampled_from(["cpu", GPU]), st.integers(0, 5000))
    ),
    st.dictionaries(st.sampled_from(["cpu", GPU]), st.integers(0, 5000)),
)


@given(st.lists(taken, max_size=4))
def test_pods_may_be_subtracted_one_by_one_or_together(pods: list[Assumed]) -> None:
    node_ = node(TWO)
    for each in pods:
        node_ = without(node_, [each])
    assert node_ == without(node(TWO), pods)


FIRST, OWNER, LAST, UNKNOWN, DELETED, DELETED_FIRST = (
    fingerprint.pod_hash("ns", name) for name in ("first", "owner", "last", "f", "gone", "long")
)
ALL = [FIRST, OWNER, LAST]
fingerprint_of = fingerprint.combined


def test_zones_that_count_all_known_pods_are_current() -> None:
    assert freshness(fingerprint_of(ALL), ALL) == Freshness(NrtFreshness.CURRENT)
    assert freshness(fingerprint_of([]), []) == Freshness(NrtFreshness.CURRENT)


def test_the_last_started_pods_may_be_missing_from_a_report() -> None:
    assert freshness(fingerprint_of([FIRST, OWNER]), ALL) == Freshness(NrtFreshness.BEHIND, 1)
    assert freshness(fingerprint_of([]), ALL) == Freshness(NrtFreshness.BEHIND, 3)


@pytest.mark.parametrize("counted", [(FIRST, LAST), (*ALL, UNKNOWN), (DELETED,)])
def test_zones_that_count_unknown_pods_are_refused(counted: tuple[int, ...]) -> None:
    assert freshness(fingerprint_of(counted), ALL) == Freshness(NrtFreshness.OTHER)


def test_deleted_pods_may_still_be_in_a_report() -> None:
    deleted = [DELETED_FIRST, DELETED]
    assert freshness(fingerprint_of([*ALL, DELETED]), ALL, deleted) == Freshness(
        NrtFreshness.BEHIND
    )
    assert freshness(fingerprint_of([*ALL, *deleted]), ALL, deleted) == Freshness(
        NrtFreshness.BEHIND
    )
    assert freshness(fingerprint_of([FIRST, *deleted]), ALL, deleted) == Freshness(
        NrtFreshness.BEHIND, 2
    )
    assert freshness(fingerprint_of(ALL), ALL, deleted) == Freshness(NrtFreshness.CURRENT)


def test_pods_leave_the_report_in_the_order_of_their_deletion() -> None:
    assert freshness(
        fingerprint_of([*ALL, DELETED_FIRST]), ALL, [DELETED_FIRST, DELETED]
    ) == Freshness(NrtFreshness.OTHER)


def test_a_node_may_report_no_fingerprint() -> None:
    assert freshness(None, ALL) == Freshness(NrtFreshness.UNREPORTED)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, FingerprintMethod.ALL),
        ("all", FingerprintMethod.ALL),
        ("with-exclusive-resources", FingerprintMethod.EXCLUSIVE),
        ("unknown", FingerprintMethod.ALL),
    ],
)
def test_the_fingerprint_method_of_the_node(value: str | None, expected: FingerprintMethod) -> None:
    attributes = {} if value is None else {FINGERPRINT_METHOD: value}
    assert method_of(NodeTopology("node-a", attributes=attributes)) is expected


def test_the_number_of_missing_pods_is_limited() -> None:
    many = [fingerprint.pod_hash("ns", f"pod-{each}") for each in range(MAX_MISSING + 1)]
    assert freshness(fingerprint_of(many[:1]), many) == Freshness(NrtFreshness.BEHIND, MAX_MISSING)
    assert freshness(fingerprint_of([]), many) == Freshness(NrtFreshness.OTHER)


@given(st.permutations(ALL), st.integers(0, 3))
def test_missing_and_counted_pods_are_all_pods(order: list[int], started: int) -> None:
    assert freshness(fingerprint_of(order[:started]), order).missing == len(order) - started
