"""Vectors of the plugin NodeResourceTopologyMatch: filter, and the four scores."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.allocate.nrt.filter import Misfit, MisfitCause, parts_of
from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.node import ZonedNode, zoned_node
from agent.allocate.nrt.pod import ZonedPod, zoned_pod
from agent.allocate.nrt.score import score
from agent.conformance.files import CaseVerdict, Difference, Judge
from agent.model import apiobjects
from agent.model.cpu.policies import Strategy, TopologyManagerScope
from agent.model.nrt import resource_topology

SIDECARS: Final = Difference(
    "sidecars-stay",
    "sidecars count as init containers that end: they take nothing from a NUMA node, and a pod of "
    "sidecar and container is as large as the larger one; ours count beside all that come after",
    listed=True,
)
TOGETHER: Final = Difference(
    "restricted-has-an-end",
    "under the policy restricted every pod passes, also one for which all NUMA nodes together have "
    "not enough, and the kubelet refuses it; ours says so",
    listed=True,
)
MACHINES_OWN: Final = Difference(
    "not-of-zones",
    "a request for what no NUMA node tells of (ephemeral storage, a licence) makes LeastNUMANodes "
    "0; ours counts the NUMA nodes for the rest",
    listed=True,
)
INIT_ENDS: Final = Difference(
    "init-containers-end",
    "LeastNUMANodes takes what init containers have from NUMA nodes for good, which the filter "
    "never does; ours gives it back",
)
BELOW_NOTHING: Final = Difference(
    "no-score-below-0",
    "LeastNUMANodes is below 0 for more NUMA nodes than the topology manager works for, with which "
    "kube-scheduler gives up the pod; ours is 0",
)
DIFFERENCES: Final = (SIDECARS, TOGETHER, MACHINES_OWN, INIT_ENDS, BELOW_NOTHING)

_PANIC: Final = "panic"


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Compares fit, reason and scores; a panic agrees with any score. A case that differs in
    several ways counts for the one of them that is not listed."""
    asked = _Question(case)
    found = by_zones(asked.node, asked.pod)
    expect = case["expect"]
    ours = {
        **_fit(found),
        "score": {name: asked.score(asked.pod, name) for name in expect["score"]},
    }
    why = {
        asked.why_score(name, theirs)
        for name, theirs in expect["score"].items()
        if theirs not in (_PANIC, ours["score"][name])
    }
    if _fit(found) != {key: value for key, value in expect.items() if key != "score"}:
        why.add(asked.why_fit(found, expect))
    if not why:
        return CaseVerdict(True, ours)
    declared = None
    if None not in why:
        declared = next(each for each in reversed(DIFFERENCES) if each in why).name
    return CaseVerdict(False, ours, declared)


class _Question:
    """A case, and what the plugin takes its pod for."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.node = _node(case)
        self.pod = _pod(case["pod"])
        self._weights = case.get("weights")
        self._ending = _pod(case["pod"], sidecars=False)
        self._staying = _pod(case["pod"], sidecars=True)

    def score(self, pod: ZonedPod, name: str) -> int:
        return score(self.node, pod, Strategy(name), self._weights)

    def why_fit(self, found: object, expect: dict[str, Any]) -> Difference | None:
        """What explains that they answer otherwise."""
        fits = expect["fit"]
        if fits and isinstance(found, Misfit) and found.cause is MisfitCause.ZONES_TOGETHER:
            return TOGETHER
        theirs = by_zones(self.node, self._ending)
        if isinstance(theirs, Misfit):
            kinds = {part.name: part.kind for part in (*self.pod.parts, self.pod.whole)}
            theirs = msgspec.structs.replace(theirs, kind=kinds[theirs.name])
        same = _fit(theirs) == {key: expect[key] for key in ("fit", "reason") if key in expect}
        return SIDECARS if same else None

    def why_score(self, name: str, theirs: int) -> Difference | None:
        """What explains that they score otherwise."""
        if Strategy(name) is not Strategy.LEAST_NUMA_NODES:
            return SIDECARS if self.score(self._ending, name) == theirs else None
        if theirs == 0 and self._asks_machine():
            return MACHINES_OWN
        if theirs < 0 and self.score(self.pod, name) == 0:
            return BELOW_NOTHING
        if self.node is not None and self.node.scope is TopologyManagerScope.CONTAINER:
            return INIT_ENDS if self.score(self._staying, name) == theirs else None
        return SIDECARS if self.score(self._ending, name) == theirs else None

    def _asks_machine(self) -> bool:
        """Whether a container requests resources of which NUMA nodes report some, and others
        not."""
        node = self.node
        if node is None:
            return False
        told = [
            [name in node.available for name in part.requests] for part in parts_of(node, self.pod)
        ]
        return any(any(each) and not all(each) for each in told)


def _fit(found: object) -> dict[str, Any]:
    if isinstance(found, Misfit):
        return {"fit": False, "reason": found.unaligned}
    return {"fit": True}


def _node(case: dict[str, Any]) -> ZonedNode | None:
    written = case["nrt"]
    if written is None:
        return None
    topology = resource_topology.decode(
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


def _pod(written: dict[str, Any], sidecars: bool | None = None) -> ZonedPod:
    """`sidecars`: what all init containers are taken for, if not for what they are."""
    pod = apiobjects.from_object(
        {
            "metadata": {"name": "pod", "uid": "pod"},
            "spec": {
                **{
                    field: [
                        {
                            "name": f"{field}-{place}",
                            "resources": {key: each.get(key) for key in ("requests", "limits")},
                            "restartPolicy": "Always" if _stays(each, sidecars) else "",
                        }
                        for place, each in enumerate(written.get(field) or ())
                    ]
                    for field in ("containers", "initContainers")
                },
                "overhead": written.get("overhead"),
            },
        }
    )
    return zoned_pod(pod)


def _stays(container: dict[str, Any], sidecars: bool | None) -> bool:
    return bool(container.get("always")) if sidecars is None else sidecars


JUDGES: Final = {
    "nrt-match": Judge(judge, DIFFERENCES),
}
