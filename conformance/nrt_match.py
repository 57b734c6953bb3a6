"""kube-scheduler's plugin NodeResourceTopologyMatch: the filter and the four scores."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.allocate.nrt.filter import PASSED, parts_of
from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.node import ZonedNode, zoned_node
from agent.allocate.nrt.score import count_score, score, spread, without
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import NumaPolicy, Strategy, TopologyManagerScope
from agent.model.nrt import resource_topology
from agent.model.pod import apiobjects
from agent.model.pod.numa_request import NumaRequest, PartKind, numa_request_of
from conformance.files import CaseVerdict, Difference, Judge

SIDECARS: Final = Difference(
    "sidecars-stay",
    "sidecars count as init containers that end: they take nothing from a NUMA node, and sidecar "
    "and container together are as large as the larger one; Topolet adds them to later containers",
    listed=True,
)
TOGETHER: Final = Difference(
    "restricted-has-an-end",
    "under the policy restricted every pod passes, also one for which all NUMA nodes together do "
    "not have enough, and the kubelet refuses it; Topolet rejects it",
    listed=True,
)
PREFERRED: Final = Difference(
    "restricted-prefers",
    "under the policy restricted every pod passes, also one for whose devices the NUMA nodes that "
    "the kubelet prefers do not have enough, and the kubelet refuses it; Topolet rejects it",
    listed=True,
)
INIT_BINDS: Final = Difference(
    "init-containers-bind",
    "under single-numa-node a container passes on another NUMA node than an init container, whose "
    "CPUs and devices the kubelet reuses for it, and the kubelet refuses it; Topolet rejects it",
    listed=True,
)
NOT_OF_ZONES: Final = Difference(
    "not-of-zones",
    "a request for a resource that no zone reports (ephemeral storage, a licence) makes "
    "LeastNUMANodes 0; Topolet counts the NUMA nodes for the rest",
    listed=True,
)
INIT_ENDS: Final = Difference(
    "init-containers-end",
    "LeastNUMANodes never releases the resources of init containers, the filter does; Topolet "
    "releases them in both",
)
BELOW_NOTHING: Final = Difference(
    "no-score-below-0",
    "LeastNUMANodes is below 0 for more NUMA nodes than the topology manager supports, and "
    "kube-scheduler then fails the pod; Topolet's score is 0",
)
BY_POSITION: Final = Difference(
    "numa-id-as-position",
    "where NUMA ids have gaps, LeastNUMANodes subtracts what a container takes from the NUMA node "
    "at the position of that id in the list; Topolet subtracts it from the NUMA node with the id, "
    "as the kubelet does",
    listed=True,
)
SPELLINGS: Final = Difference(
    "policy-by-another-spelling",
    "of the spellings of a policy in topologyPolicies only those with a level, BestEffort and "
    "Restricted are read; Topolet reads all, also the proposals' single-numa-node and "
    "SingleNUMANode",
    listed=True,
)
DIFFERENCES: Final = (
    SIDECARS,
    TOGETHER,
    PREFERRED,
    INIT_BINDS,
    NOT_OF_ZONES,
    INIT_ENDS,
    BELOW_NOTHING,
    BY_POSITION,
    SPELLINGS,
)

_OF_RESTRICTED: Final = {
    Reason.ZONES_TOGETHER: TOGETHER,
    Reason.NO_PREFERRED_HOLDS: PREFERRED,
    Reason.SIZES_DIFFER: PREFERRED,
}
_READ_POLICIES: Final = (
    "None",
    "BestEffort",
    "Restricted",
    *(
        f"{policy}{level}Level"
        for policy in ("BestEffort", "Restricted", "SingleNUMANode")
        for level in ("Container", "Pod")
    ),
)

_PANIC: Final = "panic"


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Compares fit, reason and scores; a panic agrees with any score. If a case has several
    differences, one that is not listed counts."""
    verdict = _judge(case)
    if verdict.agrees or verdict.declared is not None or not _spelled(case):
        return verdict
    unread = _judge({**case, "nrt": {**case["nrt"], "topologyPolicies": None}})
    explained = unread.agrees or unread.declared is not None
    return CaseVerdict(False, verdict.actual, SPELLINGS.name if explained else None)


def _spelled(case: dict[str, Any]) -> bool:
    policies = (case["nrt"] or {}).get("topologyPolicies") or ("None",)
    return policies[0] not in _READ_POLICIES


def _judge(case: dict[str, Any]) -> CaseVerdict:
    question = _Question(case)
    found = by_zones(question.node, question.pod)
    expect = case["expect"]
    actual = {
        **_fit(found),
        "score": {name: question.score(question.pod, name) for name in expect["score"]},
    }
    why = {
        question.why_score(name, theirs)
        for name, theirs in expect["score"].items()
        if theirs not in (_PANIC, actual["score"][name])
    }
    if _fit(found) != {key: value for key, value in expect.items() if key != "score"}:
        why.add(question.why_fit(found, expect))
    if not why:
        return CaseVerdict(True, actual)
    declared = None
    if None not in why:
        declared = next(each for each in reversed(DIFFERENCES) if each in why).name
    return CaseVerdict(False, actual, declared)


class _Question:
    """A case, and its pod as the plugin reads it."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.node = _node(case)
        self.pod = _pod(case["pod"])
        self._weights = case.get("weights")
        self._ending = _pod(case["pod"], sidecars=False)
        self._staying = _pod(case["pod"], sidecars=True)

    def score(self, pod: NumaRequest, name: str) -> int:
        return score(self.node, pod, Strategy(name), self._weights)

    def why_fit(self, found: object, expect: dict[str, Any]) -> Difference | None:
        """The difference that explains another answer of the filter, None if there is none."""
        fits = expect["fit"]
        if fits and isinstance(found, Refusal) and found.reason in _OF_RESTRICTED:
            single = self.node is not None and self.node.policy is NumaPolicy.SINGLE_NUMA_NODE
            return INIT_BINDS if single else _OF_RESTRICTED[found.reason]
        theirs = by_zones(self.node, self._ending)
        if isinstance(theirs, Refusal) and theirs.reason in _OF_RESTRICTED:
            theirs = PASSED
        if isinstance(theirs, Refusal):
            kinds = {part.name: part.kind for part in (*self.pod.parts, self.pod.whole)}
            theirs = msgspec.structs.replace(theirs, kind=kinds[theirs.name])
        same = _fit(theirs) == {key: expect[key] for key in ("fit", "reason") if key in expect}
        return SIDECARS if same else None

    def why_score(self, name: str, theirs: int) -> Difference | None:
        """The difference that explains another score, None if there is none."""
        if Strategy(name) is not Strategy.LEAST_NUMA_NODES:
            return SIDECARS if self.score(self._ending, name) == theirs else None
        if theirs == 0 and self._requests_other_resources():
            return NOT_OF_ZONES
        if theirs < 0 and self.score(self.pod, name) == 0:
            return BELOW_NOTHING
        if self.node is not None and self.node.scope is TopologyManagerScope.CONTAINER:
            if self.score(self._staying, name) == theirs:
                return INIT_ENDS
            return BY_POSITION if _score_by_position(self.node, self._staying) == theirs else None
        return SIDECARS if self.score(self._ending, name) == theirs else None

    def _requests_other_resources(self) -> bool:
        """Whether the zones report some of a container's requested resources, and others not."""
        node = self.node
        if node is None:
            return False
        reported = [
            [name in node.available for name in part.requests] for part in parts_of(node, self.pod)
        ]
        return any(any(each) and not all(each) for each in reported)


def _score_by_position(node: ZonedNode, pod: NumaRequest) -> int | None:
    """LeastNUMANodes of a plugin that takes NUMA ids for positions (scheduler-plugins:
    pkg/noderesourcetopology/pluginhelpers.go, subtractFromNUMAs); None if it panics, and where ids
    are positions."""
    if node.zones == tuple(range(len(node.zones))):
        return None

    available = dict(node.available)
    count, closest = 0, True
    for part in parts_of(node, pod):
        requested = {name: n for name, n in part.requests.items() if name in node.available}
        if not any(requested.values()):
            continue
        chosen = spread(node, available, requested)
        if chosen is None:
            return 0
        count = max(count, len(chosen.zones))
        closest = closest and chosen.closest
        if part.kind is not PartKind.INIT:
            if max(chosen.zones) >= len(node.zones):
                return None
            charged = tuple(node.zones[zone] for zone in chosen.zones)
            available = without(available, charged, requested)
    return count_score(count, closest, node.max_numa_nodes) if count else 100


def unaligned(refusal: Refusal) -> str:
    """The message of the plugin."""
    return f"cannot align {refusal.kind}"


def _fit(found: object) -> dict[str, Any]:
    if isinstance(found, Refusal):
        return {"fit": False, "reason": unaligned(found)}
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


def _pod(written: dict[str, Any], sidecars: bool | None = None) -> NumaRequest:
    """The pod. The init containers that are sidecars count as such, or, with `sidecars`, all or
    none."""
    pod = apiobjects.from_object(
        {
            "metadata": {"name": "pod", "uid": "pod"},
            "spec": {
                **{
                    field: [
                        {
                            "name": f"{field}-{place}",
                            "resources": {
                                key: container.get(key) for key in ("requests", "limits")
                            },
                            "restartPolicy": "Always" if _stays(container, sidecars) else "",
                        }
                        for place, container in enumerate(written.get(field) or ())
                    ]
                    for field in ("containers", "initContainers")
                },
                "overhead": written.get("overhead"),
            },
        }
    )
    return numa_request_of(pod)


def _stays(container: dict[str, Any], sidecars: bool | None) -> bool:
    return bool(container.get("always")) if sidecars is None else sidecars


JUDGES: Final = {
    "nrt-match": Judge(judge, DIFFERENCES),
}
