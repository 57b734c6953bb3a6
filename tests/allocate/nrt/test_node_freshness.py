from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.nrt.node import (
    MAX_MISSING,
    Freshness,
    NrtFreshness,
    freshness,
    method_of,
)
from agent.model.nrt import resource_topology as fingerprint
from agent.model.nrt.resource_topology import FINGERPRINT_METHOD, FingerprintMethod, NodeTopology

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
