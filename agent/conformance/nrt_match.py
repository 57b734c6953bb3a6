"""Vectors of the plugin NodeResourceTopologyMatch: filter, and the four scores."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.zoned.filter import filter as by_zones
from agent.allocate.zoned.misfit import Misfit
from agent.allocate.zoned.node import ZonedNode, zoned_node
from agent.allocate.zoned.pod import ZonedPod, zoned_pod
from agent.allocate.zoned.score import score
from agent.allocate.zoned.strategies import ZoneStrategy
from agent.conformance.verdict import Difference, Verdict
from agent.model import apipods, nodetopology
from agent.model.quantities import milli, whole

DIFFERENCES: Final[tuple[Difference, ...]] = ()

PANIC: Final = "panic"


def judge(case: dict[str, Any]) -> Verdict:
    """Compares fit, reason and scores; a panic agrees with any score."""
    node, pod = _node(case), _pod(case["pod"])
    found = by_zones(node, pod)
    expect = case["expect"]
    ours = {
        "fit": not isinstance(found, Misfit),
        **({"reason": found.unaligned} if isinstance(found, Misfit) else {}),
        "score": {
            name: score(node, pod, ZoneStrategy(name), case.get("weights"))
            for name in expect["score"]
        },
    }
    theirs = {
        **expect,
        "score": {
            name: ours["score"][name] if value == PANIC else value
            for name, value in expect["score"].items()
        },
    }
    return Verdict(ours == theirs, ours)


def _node(case: dict[str, Any]) -> ZonedNode | None:
    written = case["nrt"]
    if written is None:
        return None
    topology = nodetopology.decode(
        {
            "metadata": {"name": "node"},
            "topologyPolicies": written.get("topologyPolicies"),
            "attributes": _named(written.get("attributes")),
            "zones": [_zone(each) for each in written["zones"]],
        }
    )
    return zoned_node(topology, case["nodeAllocatable"])


def _zone(written: dict[str, Any]) -> dict[str, Any]:
    resources = written.get("available") or {}
    return {
        "name": written["name"],
        "type": written["type"],
        "costs": _named(written.get("costs")),
        "resources": [
            {"name": name, "capacity": n, "allocatable": n, "available": n}
            for name, n in resources.items()
        ],
    }


def _named(values: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in (values or {}).items()]


def _pod(written: dict[str, Any]) -> ZonedPod:
    pod = apipods.from_object(
        {
            "metadata": {"name": "pod", "uid": "pod"},
            "spec": {
                field: [
                    {
                        "name": f"{field}-{place}",
                        "resources": {key: each.get(key) for key in ("requests", "limits")},
                        "restartPolicy": "Always" if each.get("always") else "",
                    }
                    for place, each in enumerate(written.get(field) or ())
                ]
                for field in ("containers", "initContainers")
            },
        }
    )
    overhead = {
        name: (milli if name == "cpu" else whole)(quantity)
        for name, quantity in (written.get("overhead") or {}).items()
    }
    return zoned_pod(pod, overhead)
