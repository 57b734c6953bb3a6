"""Who asks for quiet CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.pod.annotations import (
    CRIO_C_STATES,
    CRIO_GOVERNOR,
    CRIO_INTERRUPTS,
    CRIO_LOAD_BALANCING,
    CRIO_QUOTA,
    QUIET,
    QUIET_BYTES,
    QUIET_FEATURES,
)
from agent.model.pod.pods import pod_metadata
from agent.model.pod.quiet import QuietWishes, quiet_wishes

ALL = frozenset(QUIET_FEATURES)


def wishes(*features: str, **others: object) -> QuietWishes:
    return QuietWishes(frozenset(features), **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, wishes()),
        ({QUIET: "all"}, wishes(*QUIET_FEATURES)),
        ({QUIET: "none"}, wishes()),
        ({QUIET: ""}, wishes()),
        ({QUIET: " partitions , interrupts,"}, wishes("partitions", "interrupts")),
        ({CRIO_LOAD_BALANCING: "disable"}, wishes("partitions")),
        ({CRIO_LOAD_BALANCING: "true"}, wishes("partitions")),
        ({CRIO_LOAD_BALANCING: "enable"}, wishes()),
        ({CRIO_INTERRUPTS: "disable"}, wishes("interrupts")),
        ({CRIO_INTERRUPTS: "true"}, wishes("interrupts")),
        ({CRIO_INTERRUPTS: "housekeeping"}, wishes("interrupts", housekeeping=True)),
        ({CRIO_C_STATES: "disable"}, wishes("c-states")),
        ({CRIO_C_STATES: "max_latency:10"}, wishes("c-states", latency_us=10)),
        ({CRIO_C_STATES: "max_latency:999999999"}, wishes("c-states", latency_us=999_999_999)),
        ({CRIO_GOVERNOR: "performance"}, wishes("frequency")),
        ({CRIO_GOVERNOR: "schedutil"}, wishes("frequency", governor="schedutil")),
        ({CRIO_QUOTA: "disable"}, wishes()),
        (
            {CRIO_INTERRUPTS: "disable", CRIO_C_STATES: "disable", CRIO_QUOTA: "disable"},
            wishes("interrupts", "c-states"),
        ),
        ({QUIET: "workqueues", CRIO_INTERRUPTS: "disable"}, wishes("workqueues", "interrupts")),
    ],
)
def test_what_a_pod_asks_for(annotations: dict[str, str], expected: QuietWishes) -> None:
    assert quiet_wishes(annotations, frozenset()) == (expected, ())


@pytest.mark.parametrize(
    ("annotations", "taken_away"),
    [
        ({}, frozenset()),
        ({QUIET: ""}, frozenset()),
        ({QUIET: "none"}, ALL),
        ({QUIET: "c-states"}, ALL - {"c-states"}),
        ({CRIO_LOAD_BALANCING: "enable"}, {"partitions"}),
        ({CRIO_INTERRUPTS: "enable"}, {"interrupts"}),
        ({CRIO_C_STATES: "enable"}, {"c-states"}),
        ({CRIO_QUOTA: "enable"}, frozenset()),
        ({QUIET: "all", CRIO_C_STATES: "enable"}, {"c-states"}),
    ],
)
def test_a_pod_can_ask_for_less_than_every_owner_of_its_node_gets(
    annotations: dict[str, str], taken_away: frozenset[str]
) -> None:
    assert quiet_wishes(annotations, ALL) == (QuietWishes(ALL - taken_away), ())


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        (QUIET, "interrupt", "'interrupt' is not one of all, none, partitions, "),
        (QUIET, "all,interrupts", "'all' is not one of"),
        (CRIO_LOAD_BALANCING, "housekeeping", "'housekeeping' is not one of disable, true, enable"),
        (CRIO_LOAD_BALANCING, "Disable", "'Disable' is not one of"),
        (CRIO_INTERRUPTS, "off", "'off' is not one of disable, true, enable, housekeeping"),
        (CRIO_C_STATES, "true", "'true' is not one of disable, enable, max_latency:MICROSECONDS"),
        (CRIO_C_STATES, "max_latency:0", "'max_latency:0' is not one of"),
        (CRIO_C_STATES, "max_latency:-1", "'max_latency:-1' is not one of"),
        (CRIO_C_STATES, "max_latency:1us", "'max_latency:1us' is not one of"),
        (CRIO_C_STATES, "max_latency:2147483648", "'max_latency:2147483648' is not one of"),
        (CRIO_C_STATES, "max_latency:\u0663", "is not one of"),
        (CRIO_GOVERNOR, "../../x", "'../../x' is no name of a governor"),
        (CRIO_GOVERNOR, "a" * 16, "is no name of a governor"),
        (CRIO_QUOTA, "0", "'0' is not one of disable, true, enable"),
    ],
)
def test_a_value_that_is_not_known_changes_nothing_and_is_an_error(
    key: str, text: str, reason: str
) -> None:
    others = {CRIO_INTERRUPTS: "disable", CRIO_C_STATES: "disable", key: text}
    valid = {other: value for other, value in others.items() if other != key}
    of_pod, (error,) = quiet_wishes(others, frozenset())
    assert of_pod == quiet_wishes(valid, frozenset())[0]
    assert error.key == key
    assert reason in str(error)
    assert str(error).startswith(f"annotation {key}: ")


_TEXTS = st.one_of(
    st.text(),
    st.sampled_from(["all", "disable", "enable", "true", "housekeeping", "max_latency:", "none"]),
    st.from_regex(r"max_latency:[0-9]*", fullmatch=True),
    st.text("a,-:0", min_size=60),
)


@given(
    st.dictionaries(st.sampled_from(sorted(QUIET_BYTES)), _TEXTS),
    st.sets(st.sampled_from(QUIET_FEATURES)),
)
def test_no_annotation_raises(annotations: dict[str, str], default: set[str]) -> None:
    of_pod, errors = quiet_wishes(annotations, frozenset(default))
    assert of_pod.features <= ALL
    assert 0 <= of_pod.latency_us < 1 << 31
    assert {error.key for error in errors} <= annotations.keys()
    assert all(len(str(error)) < 1000 for error in errors)


@given(st.sampled_from(sorted(QUIET_BYTES)), st.integers(1, 10_000))
def test_an_annotation_that_is_too_long_is_an_error_from_every_source(key: str, more: int) -> None:
    """The agent keeps of what the runtime or the API server lists no more than the reader needs."""
    annotations = {key: "a" * (QUIET_BYTES[key] + more)}
    kept = pod_metadata({}, annotations).annotations
    assert len(kept[key]) == QUIET_BYTES[key] + 1
    for texts in (annotations, kept):
        (error,) = quiet_wishes(texts, frozenset())[1]
        assert error.key == key
