"""Rings of samples. The vectors of koordlet compare their aggregation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.usage.series import Aggregate, SampleRing, aggregate


@given(
    st.integers(1, 12),
    st.lists(st.floats(-1e9, 1e9), max_size=40),
    st.integers(0, 45),
)
def test_a_ring_has_the_last_samples(limit: int, values: list[float], since: int) -> None:
    """One sample a second."""
    series = SampleRing(limit)
    for at, value in enumerate(values, 1):
        series.add(at, value)
    kept = list(enumerate(values, 1))[-limit:]
    chosen = [(at, value) for at, value in kept if at > since]
    assert series.last == (values[-1] if values else None)
    found = series.since(since)
    assert (found is None) == (not chosen)
    if found is not None:
        expected = aggregate([at for at, _ in chosen], [value for _, value in chosen])
        assert isinstance(expected, Aggregate)
        assert found.average == pytest.approx(expected.average)
        assert (found.p50, found.p99, found.last) == (expected.p50, expected.p99, values[-1])
        assert found.span_seconds == chosen[-1][0] - chosen[0][0]
