from __future__ import annotations

from typing import Any

from conformance.nrt_match import BELOW_NOTHING, BY_POSITION, judge

SINGLE = {"topologyManagerPolicy": "single-numa-node"}


def container(cpu: str, always: bool = False, **more: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "1Gi", **more}
    return {"requests": requests, "limits": requests, "always": always}


def case(
    containers: list[dict[str, Any]],
    init: list[dict[str, Any]],
    expect: dict[str, Any],
    attributes: dict[str, str] = SINGLE,
) -> dict[str, Any]:
    """One NUMA node of 4 CPUs, and a zone that is not a NUMA node."""
    zones = [
        {
            "name": "node-0",
            "type": "Node",
            "costs": {"node-0": 10},
            "available": {"cpu": "4", "memory": "8Gi"},
        },
        {"name": "socket-0", "type": "Socket", "available": {"cpu": "64", "memory": "64Gi"}},
    ]
    return {
        "pod": {"containers": containers, "initContainers": init},
        "nrt": {"attributes": attributes, "zones": zones},
        "nodeAllocatable": {"cpu": "64", "memory": "64Gi"},
        "expect": expect,
    }


def fits(**scores: Any) -> dict[str, Any]:
    return {"fit": True, "score": scores}


def test_negative_scores_are_declared() -> None:
    few = {**SINGLE, "topologyManagerMaxNUMANodes": "2"}
    three = case([container("9")], [], fits(LeastNUMANodes=-50), few)
    for name in ("node-1", "node-2"):
        zone = {"name": name, "type": "Node", "available": {"cpu": "4", "memory": "8Gi"}}
        three["nrt"]["zones"].append(zone)
    three["expect"] |= {"fit": False, "reason": "cannot align container"}
    verdict = judge(three)
    assert verdict.actual["score"] == {"LeastNUMANodes": 0}
    assert verdict.declared == BELOW_NOTHING.name
    two = case([container("2")], [], fits(LeastNUMANodes=-1))
    assert judge(two).declared is None


def gaps(expected: Any, *, ids: tuple[int, ...] = (0, 2, 3)) -> dict[str, Any]:
    """Two containers of 3 CPUs on three NUMA nodes with 1, 4 and 2 CPUs. Together they fit, one
    container on the second NUMA node, the other one on the remaining CPUs."""
    two = case(
        [container("3"), container("3")],
        [],
        fits(LeastNUMANodes=expected),
        {"topologyManagerPolicy": "best-effort"},
    )
    two["nrt"]["zones"] = [
        {
            "name": f"node-{node}",
            "type": "Node",
            "costs": {f"node-{other}": 10 if other == node else 20 for other in ids},
            "available": {"cpu": cpu, "memory": "8Gi"},
        }
        for node, cpu in zip(ids, ("1", "4", "2"), strict=True)
    ]
    return two


def test_numa_ids_that_are_used_as_positions_are_declared() -> None:
    """The plugin subtracts the first container from NUMA node 3, which is at position 2, so that
    NUMA node 2 holds both containers. The kubelet identifies NUMA nodes by their ids."""
    verdict = judge(gaps(94))
    assert verdict.actual["score"] == {"LeastNUMANodes": 82}
    assert verdict.declared == BY_POSITION.name
    assert judge(gaps(82)).agrees
    assert judge(gaps(88)).declared is None


def test_without_gaps_the_position_of_a_numa_node_is_its_id() -> None:
    assert judge(gaps(82, ids=(0, 1, 2))).agrees
    assert judge(gaps(94, ids=(0, 1, 2))).declared is None
    assert judge(gaps(94, ids=(0, 5, 9))).declared is None, "the plugin panics"
    assert judge(gaps("panic", ids=(0, 5, 9))).agrees
