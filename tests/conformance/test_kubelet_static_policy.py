from __future__ import annotations

from typing import Any

import pytest

from conformance.kubelet import judge_static_policy


def container(name: str, cpu: str) -> dict[str, Any]:
    return {"name": name, "cpu": cpu}


def case(
    *steps: tuple[dict[str, Any], dict[str, Any]],
    containers: tuple[dict[str, Any], ...],
    init: tuple[dict[str, Any], ...] = (),
    qos: str = "Guaranteed",
    **other: Any,
) -> dict[str, Any]:
    """One pod; each step is followed by its expected result."""
    return {
        "shape": [2, 1, 4, 2],
        "numbering": "interleaved",
        "l3": 2,
        "options": [],
        "reserved": "0",
        "topologyPolicy": "none",
        "pods": [{"name": "a", "qos": qos, "init": init, "containers": containers}],
        "steps": [{"pod": "a", **step} for step, _ in steps],
        "expect": {
            "start": {"reserved": "0", "default": "0-15"},
            "steps": [expected for _, expected in steps],
        },
        **other,
    }


def allocate(name: str, *mask: int) -> dict[str, Any]:
    step = {"op": "allocate", "container": name}
    return {**step, "mask": mask} if mask else step


def hints(name: str) -> dict[str, Any]:
    return {"op": "hints", "container": name}


def remove(name: str) -> dict[str, Any]:
    return {"op": "remove", "container": name}


def hint(*mask: int, preferred: bool = False) -> dict[str, Any]:
    return {"mask": list(mask), "preferred": preferred}


COUNTED_TWICE = case(
    (allocate("i0", 0), {"cpuset": "1-2,9-10", "default": "0,3-8,11-15"}),
    (remove("i0"), {"default": "0-15"}),
    (hints("c0"), {"hints": [hint(0), hint(0, 1, preferred=True)], "default": "0-15"}),
    init=(container("i0", "4"),),
    containers=(container("c0", "10"),),
)


def test_a_step_at_which_the_kubelet_hangs_agrees() -> None:
    step = (allocate("c0"), {"hang": True})
    assert judge_static_policy(case(step, containers=(container("c0", "5"),))).agrees


def test_hints_that_count_cpus_twice_are_declared() -> None:
    verdict = judge_static_policy(COUNTED_TWICE)
    assert not verdict.agrees
    assert verdict.declared == "reusable-counted-twice"


def with_last_step(wrong: dict[str, Any], **last: Any) -> dict[str, Any]:
    """The same case with another expected result of its last step."""
    expect = wrong["expect"]
    steps = [*expect["steps"][:-1], {**expect["steps"][-1], **last}]
    return {**wrong, "expect": {**expect, "steps": steps}}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(
            with_last_step(COUNTED_TWICE, hints=[hint(0)]), id="one of Topolet's hints is missing"
        ),
        pytest.param(
            with_last_step(
                case(
                    (hints("c0"), COUNTED_TWICE["expect"]["steps"][-1]),
                    containers=(container("c0", "10"),),
                )
            ),
            id="nothing was reusable",
        ),
    ],
)
def test_undeclared_differences(wrong: dict[str, Any]) -> None:
    verdict = judge_static_policy(wrong)
    assert not verdict.agrees
    assert verdict.declared is None
