"""What people are told about evictions."""

from __future__ import annotations

import json

from agent.view import colocation
from agent.view.evictions import ShownEvictionFeature, ShownEvictions, as_json, as_text, of_pod

TOLD = ShownEvictions(
    acts=True,
    kills=True,
    problem="why",
    features=(ShownEvictionFeature("BEMemoryEvict", "90 % is in use", 2, wants=True),),
    next_pod="ns/a",
    next_reason="It is the largest.",
    pods={"ns/a": "It may be evicted."},
    refused={"ns/b": "its budget\n"},
)


def test_it_is_told_who_is_next_and_why() -> None:
    assert as_text(TOLD) == (
        "Evictions:\n"
        "  pods are deleted, whatever their disruption budgets say\n"
        "  no pod leaves now: why\n"
        "  BEMemoryEvict: 90 % is in use\n"
        "  next is pod ns/a: It is the largest.\n"
        "  pod ns/b stays: its budget?\n"
    )
    assert as_text(ShownEvictions(acts=False)).startswith("Evictions, which the agent only obs")
    assert json.loads(as_json(TOLD))["next_pod"] == "ns/a"


def test_a_pod_may_be_evicted_or_has_been_refused() -> None:
    assert of_pod(TOLD, "ns/a") == "It may be evicted."
    assert of_pod(TOLD, "ns/c") == ""


def test_colocation_has_the_evictions() -> None:
    told = colocation.ShownColocation((), suppresses=True)
    assert "Evictions" not in colocation.as_text(told)
    told = colocation.ShownColocation((), suppresses=True, evictions=TOLD)
    assert colocation.as_text(told).endswith(as_text(TOLD))
