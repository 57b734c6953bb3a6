"""The values of a node's label that a pod admits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.model.pod.node_selection import PodAffinity, admitted_values


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
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affinity = msgspec.convert({"nodeAffinity": required}, PodAffinity)
    assert admitted_values("model", selector, affinity if terms is not None else None) == admitted
