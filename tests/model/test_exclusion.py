from __future__ import annotations

import pytest

from agent.model.exclusion import ExclusionError, excludes, parse


@pytest.mark.parametrize(
    ("text", "pod", "container", "left"),
    [
        ("", "prod/db", "main", False),
        ("prod", "prod/db", "main", True),
        ("prod", "prod/db", "", True),
        ("prod/db", "prod/web", "main", False),
        ("kube-*, prod/d?", "prod/db", "main", True),
        ("kube-*,prod/d?", "kube-system/dns", "", True),
        ("*/*/istio-proxy", "prod/db", "istio-proxy", True),
        ("*/*/istio-proxy", "prod/db", "main", False),
        ("*/*/istio-proxy", "prod/db", "", False),
        ("*/*/*", "prod/db", "", False),
        ("PROD", "prod/db", "main", False),
    ],
)
def test_what_is_left_alone(text: str, pod: str, container: str, left: bool) -> None:
    assert excludes(parse(text), *pod.split("/"), container) is left


@pytest.mark.parametrize("text", ["a/b/c/d", "/a", "a//b", "a/", "a,/"])
def test_a_pattern_that_names_nothing_is_quoted(text: str) -> None:
    with pytest.raises(ExclusionError, match="is no NAMESPACE"):
        parse(text)
