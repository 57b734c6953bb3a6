"""The values of a node label that the node selector and affinity of a pod admit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.model.pod.apiobjects import MAX_VALUES, PodAffinity, admitted_values


def term(*expressions: tuple[str, str, list[str]]) -> dict[str, Any]:
    names = ("key", "operator", "values")
    return {"matchExpressions": [dict(zip(names, each, strict=True)) for each in expressions]}


@pytest.mark.parametrize(
    ("selector", "terms", "admitted"),
    [
        (None, None, ()),
        ({"model": "a", "other": "b"}, None, ("a",)),
        ({"other": "b"}, None, ()),
        (None, [term(("model", "In", ["b", "a"]))], ("a", "b")),
        (None, [term(("model", "In", ["a"])), term(("model", "In", ["b"]))], ("a", "b")),
        (None, [term(("model", "In", ["a"])), term(("other", "In", ["b"]))], ()),
        (None, [term(("model", "In", ["a", "b"]), ("model", "In", ["b", "c"]))], ("b",)),
        (None, [term(("model", "NotIn", ["a"]))], ()),
        ({"model": "a"}, [term(("model", "In", ["a", "b"]))], ("a",)),
        (None, [], ()),
        (None, [{}], ()),
    ],
)
def test_selectors_and_lists_limit_the_values(
    selector: dict[str, str] | None, terms: list[Any] | None, admitted: tuple[str, ...]
) -> None:
    found = admitted_values("model", selector, affinity(terms) if terms is not None else None)
    assert found == admitted


def affinity(terms: list[Any] | None) -> PodAffinity:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return msgspec.convert({"nodeAffinity": required}, PodAffinity)


def test_a_long_list_counts_as_any_value() -> None:
    """Placements keep the values for each kind of pods, and an object has up to 1.5 MB."""
    values = [f"model-{number}" for number in range(MAX_VALUES + 1)]
    assert admitted_values("model", None, affinity([term(("model", "In", values))])) == ()
    found = admitted_values("model", None, affinity([term(("model", "In", values[1:]))]))
    assert len(found) == MAX_VALUES


def test_a_value_that_no_label_can_have_is_left_out() -> None:
    terms = [term(("model", "In", ["a", "x" * 64]))]
    assert admitted_values("model", None, affinity(terms)) == ("a",)
