"""The pods that a PodDisruptionBudget covers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.objects import ObjectError
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets, read
from tests.kept import kept_bytes

WEB = {"app": "web"}


def body(selector: Any, **status: Any) -> bytes:
    return json.dumps(
        {
            "metadata": {"namespace": "shop", "name": "b"},
            "spec": {"selector": selector, "maxUnavailable": 1},
            "status": status,
        }
    ).encode()


@pytest.mark.parametrize(
    ("selector", "labels", "covered"),
    [
        ({"matchLabels": WEB}, WEB, True),
        ({"matchLabels": WEB}, {}, False),
        ({}, {}, True),
        (None, WEB, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}, WEB, True),
    ],
)
def test_a_budget_covers_the_pods_that_its_selector_matches(
    selector: Any, labels: dict[str, str], covered: bool
) -> None:
    assert read(body(selector)).covers("p", labels) is covered


def test_disrupted_pods_are_not_covered() -> None:
    budget = read(body({}, disruptionsAllowed=2, disruptedPods={"p": "2026-01-01T00:00:00Z"}))
    assert budget.allowed == 2
    assert not budget.covers("p", {})
    assert budget.covers("q", {})


def test_an_invalid_budget_is_reported_with_its_name_and_field() -> None:
    with pytest.raises(ObjectError, match=r"shop/b.*disruptionsAllowed"):
        read(body({}, disruptionsAllowed="two"))


def test_budgets_change_with_the_watch() -> None:
    budgets = Budgets()
    first = read(body({"matchLabels": WEB}, disruptionsAllowed=1))
    key = ObjectKey("shop", "b")

    def covering(namespace: str = "shop") -> tuple[Budget, ...]:
        return budgets.covering(namespace, "p", WEB)

    budgets.changed([Change(ChangeKind.ADDED, key, first)])
    assert covering() == (first,)
    assert covering("elsewhere") == ()
    second = read(body({"matchLabels": WEB}))
    budgets.changed([Change(ChangeKind.MODIFIED, key, second)])
    assert covering() == (second,)
    budgets.changed([Change(ChangeKind.DELETED, key, second)])
    assert covering() == ()


def test_deleted_namespaces_use_no_memory() -> None:
    budgets, first = Budgets(), read(body({}))

    def add_and_delete() -> None:
        for number in range(1_000):
            key = ObjectKey(f"namespace-{number}", "b")
            budgets.changed([Change(ChangeKind.ADDED, key, first)])
            budgets.changed([Change(ChangeKind.DELETED, key, first)])

    assert kept_bytes(add_and_delete) < 10_000
