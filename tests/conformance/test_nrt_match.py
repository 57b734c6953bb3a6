from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from conformance import files
from conformance.nrt_match import (
    BELOW_NOTHING,
    BY_POSITION,
    INIT_ENDS,
    NOT_OF_ZONES,
    SIDECARS,
    SPELLINGS,
    TOGETHER,
    judge,
)
from tests.conftest import DATA

VECTORS = DATA / "vectors" / "nrt-match.jsonl.gz"

SINGLE = {"topologyManagerPolicy": "single-numa-node"}
POD_SCOPE = {**SINGLE, "topologyManagerScope": "pod"}
SCORES = {"BalancedAllocation", "LeastAllocated", "LeastNUMANodes", "MostAllocated"}


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


def test_agreement() -> None:
    scores = {"LeastAllocated": 68, "MostAllocated": 31, "LeastNUMANodes": 94}
    assert judge(case([container("2")], [], fits(**scores))).agrees
    refused = {"fit": False, "reason": "cannot align pod", "score": {"LeastNUMANodes": 0}}
    assert judge(case([container("5")], [], refused, POD_SCOPE)).agrees
    nothing = {name: 100 if name == "x" else 0 for name in SCORES}
    assert judge({**case([container("5")], [], fits(**nothing)), "nrt": None}).agrees


@pytest.mark.parametrize(
    "expect",
    [
        {"fit": False, "reason": "cannot align container", "score": {}},
        fits(LeastAllocated=67),
        fits(MostAllocated=32),
        fits(BalancedAllocation=94),
        fits(LeastNUMANodes=88),
    ],
)
def test_every_field_is_compared(expect: dict[str, Any]) -> None:
    verdict = judge(case([container("2")], [], expect))
    assert not verdict.agrees
    assert verdict.declared is None


def test_the_reason_is_compared() -> None:
    expect = {"fit": False, "reason": "cannot align pod", "score": {}}
    assert judge(case([container("5")], [], expect)).declared is None


def test_a_panic_agrees_with_any_score() -> None:
    assert judge(case([container("2")], [], fits(LeastAllocated="panic"))).agrees


@pytest.mark.parametrize("attributes", [SINGLE, POD_SCOPE])
def test_sidecars_are_declared_if_they_cause_the_difference(attributes: dict[str, str]) -> None:
    side = container("3", always=True)
    verdict = judge(case([container("3")], [side], fits(), attributes))
    assert verdict.declared == SIDECARS.name
    assert verdict.actual["fit"] is False
    plain = container("3")
    assert judge(case([container("3")], [plain], fits(), attributes)).agrees
    alone = judge(case([container("5")], [side], fits(), attributes))
    assert not alone.agrees
    assert alone.declared is None
    scored = judge(case([container("2")], [container("1", always=True)], fits(), attributes))
    assert scored.agrees


def test_an_impossible_request_under_restricted_is_declared() -> None:
    restricted = {"topologyManagerPolicy": "restricted"}
    verdict = judge(case([container("3"), container("2")], [], fits(), restricted))
    assert verdict.declared == TOGETHER.name
    assert judge(case([container("2"), container("2")], [], fits(), restricted)).agrees


def test_requests_for_resources_outside_the_zones_are_declared() -> None:
    storage = {"ephemeral-storage": "1Gi"}
    verdict = judge(case([container("2", **storage)], [], fits(LeastNUMANodes=0)))
    assert verdict.declared == NOT_OF_ZONES.name
    assert verdict.actual["score"] == {"LeastNUMANodes": 94}
    verdict = judge(case([container("2", **storage)], [], fits(LeastNUMANodes=88)))
    assert verdict.declared is None


def test_terminated_init_containers_are_declared() -> None:
    init = [container("3")]
    verdict = judge(case([container("3")], init, fits(LeastNUMANodes=0)))
    assert verdict.declared == INIT_ENDS.name
    assert judge(case([container("3")], init, fits(LeastNUMANodes=94))).agrees
    assert judge(case([container("3")], init, fits(LeastNUMANodes=88))).declared is None


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


@pytest.mark.parametrize("policy", ["single-numa-node", "SingleNUMANode"])
def test_a_policy_that_the_plugin_does_not_recognize_is_declared(policy: str) -> None:
    by_policies = case([container("5")], [], fits(LeastNUMANodes=0), {})
    by_policies["nrt"]["topologyPolicies"] = [policy]
    verdict = judge(by_policies)
    assert verdict.actual == {
        "fit": False,
        "reason": "cannot align container",
        "score": {"LeastNUMANodes": 0},
    }
    assert verdict.declared == SPELLINGS.name
    by_policies["expect"]["score"] = {"LeastNUMANodes": 1}
    assert judge(by_policies).declared is None
    by_policies["nrt"]["topologyPolicies"] = ["SingleNUMANodePodLevel"]
    by_policies["expect"]["score"] = {"LeastNUMANodes": 0}
    assert judge(by_policies).declared is None


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


def test_a_case_that_differs_twice_counts_as_not_listed() -> None:
    """With the sidecar no NUMA node has 3 CPUs, but both together have."""
    init = [container("3"), container("3", always=True)]
    two = case([container("3")], init, fits(LeastNUMANodes=0))
    zone = {"name": "node-1", "type": "Node", "available": {"cpu": "2", "memory": "8Gi"}}
    two["nrt"]["zones"].append(zone)
    verdict = judge(two)
    assert (verdict.actual["fit"], verdict.actual["score"]) == (False, {"LeastNUMANodes": 82})
    assert verdict.declared == INIT_ENDS.name
    two["expect"]["score"]["LeastNUMANodes"] = 82
    assert judge(two).declared == SIDECARS.name


def test_all_vectors_agree() -> None:
    found = files.judge(str(VECTORS))
    assert found.kind == "nrt-match"
    assert found.passes
    assert found.cases == 2010
    assert found.agree > 1600


def test_other_answers_are_not_declared() -> None:
    """A score that is one higher, or the opposite answer of the filter, disagrees in nearly every
    case."""
    missed = total = 0
    with gzip.open(VECTORS, "rt") as lines:
        for line in lines:
            given = json.loads(line)
            expect = given["expect"]
            if "panic" in expect["score"].values():
                continue
            total += 1
            scores = {name: value + 1 for name, value in expect["score"].items()}
            missed += judge({**given, "expect": {**expect, "score": scores}}).declared is not None
            other = {"fit": not expect["fit"], "score": expect["score"]}
            missed += judge({**given, "expect": other}).declared is not None
    assert missed * 50 < total
