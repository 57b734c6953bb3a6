from __future__ import annotations

from typing import Any

from conformance.kubelet import judge_static_policy


def case(
    *steps: tuple[dict[str, Any], dict[str, Any]], cpus: int, init_cpus: int = 0
) -> dict[str, Any]:
    """A pod with container c0, and init container i0 if it has CPUs; each step is followed by its
    expected result."""
    containers = [{"name": "c0", "cpu": str(cpus)}]
    init = [{"name": "i0", "cpu": str(init_cpus)}] if init_cpus else []
    return {
        "shape": [2, 1, 4, 2],
        "numbering": "interleaved",
        "l3": 2,
        "options": [],
        "reserved": "0",
        "topologyPolicy": "none",
        "pods": [{"name": "a", "qos": "Guaranteed", "init": init, "containers": containers}],
        "steps": [{"pod": "a", **step} for step, _ in steps],
        "expect": {
            "start": {"reserved": "0", "default": "0-15"},
            "steps": [expected for _, expected in steps],
        },
    }


def test_a_step_at_which_the_kubelet_hangs_agrees() -> None:
    step = ({"op": "allocate", "container": "c0"}, {"hang": True})
    assert judge_static_policy(case(step, cpus=5)).agrees


def test_hints_that_count_cpus_twice_are_declared() -> None:
    hints = [{"mask": [0], "preferred": False}, {"mask": [0, 1], "preferred": True}]
    counted_twice = case(
        (
            {"op": "allocate", "container": "i0", "mask": [0]},
            {"cpuset": "1-2,9-10", "default": "0,3-8,11-15"},
        ),
        ({"op": "remove", "container": "i0"}, {"default": "0-15"}),
        ({"op": "hints", "container": "c0"}, {"hints": hints, "default": "0-15"}),
        cpus=10,
        init_cpus=4,
    )
    verdict = judge_static_policy(counted_twice)
    assert not verdict.agrees
    assert verdict.declared == "reusable-counted-twice"
