"""The values of the scheduler's page for the cluster: the nodes with their free amounts, the pods
that wait for a node with the reasons, and the last decisions.

The process loads this module for the first viewer, and drops its state when nobody views the page.
The page names pods of all namespaces. Its requests come from a loopback address, so the viewer has
the permission to forward a port to the scheduler's pod. Like those of `explain.endpoint`, they name
the holder of the leader's Lease, so the viewer also has the permission to read the Lease.

Replies are bounded: nodes and pods are sorted, filtered and paged here. The text of a decision or
of a pod is made only for a request that selects it."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec

from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.http.requests import BadRequestError, Reply, text_reply
from agent.model import audit, bounds
from agent.model.bounds import JsonError
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.causes import offer_facts
from agent.scheduler.fragmentation import NodeRow, NodeTable
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import BindDecision, PodInfo
from agent.scheduler.unschedulable.queue import (
    QueuedPod,
    UnschedulableQueue,
    WaitingPodExplainer,
)
from agent.view import explanation

Value = TypeVar("Value")
MAX_NODES: Final = 25
MAX_PODS: Final = 10
MAX_DECISIONS: Final = 40
"""Rows of the tables in one reply."""
MAX_HOLDINGS: Final = 300
"""Pods of one node in a reply."""
MAX_CAUSES: Final = 12
EXPLAIN_SECONDS: Final = 2.0
_WIDTH: Final = 100
_CLOCK_SECONDS: Final = 1.0
"""The drift between the clocks after which timestamps are computed anew."""
_Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Text = Annotated[str, msgspec.Meta(max_length=253)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Column = Literal[
    "name",
    "model",
    "state",
    "pods",
    "cpus",
    "free_cpus",
    "cores",
    "free_cores",
    "numa_nodes",
    "free_numa_nodes",
    "gpus",
    "free_gpus",
    "lost_cpus",
    "lost_gpus",
]
_Kind = Literal["", "gpus", "losing", "unused", "closed"]
_KINDS: Final[dict[str, Callable[[NodeRow], bool]]] = {
    "": lambda row: True,
    "gpus": lambda row: row.gpus > 0,
    "losing": lambda row: row.lost_cpus > 0 or row.lost_gpus > 0,
    "unused": lambda row: row.numa_nodes > 0 and row.free_numa_nodes == row.numa_nodes,
    "closed": lambda row: bool(row.state),
}
_STEPS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""The least amount of each bar of a chart."""
_CHARTS: Final = ("free_cores", "free_numa_nodes", "free_gpus", "lost_cpus", "lost_gpus")
_TEXTS: Final = ("name", "model", "state")
_AMOUNTS: Final = tuple(name for name in get_args(_Column) if name not in _TEXTS)


class _Range(msgspec.Struct, frozen=True):
    """Nodes whose column is at least `low` and less than `high`."""

    column: _Column
    low: _Amount
    high: _Amount = 1e9


class StateQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the tables. `search`: a part of the name, the GPU model or the state of a node,
    or of the name of a pod. `kind`: a filter of nodes, a key of `_KINDS`. `revision`: that of the
    viewer's last reply to the same query, "" if there is none."""

    lease_holder: str = ""
    revision: Annotated[str, msgspec.Meta(max_length=64)] = ""
    search: _Text = ""
    kind: _Kind = ""
    range: _Range | None = None
    sort: _Column = "free_cores"
    descending: bool = True
    offset: _Offset = 0
    pods_offset: _Offset = 0


class DetailQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for one node, one decision (by its number) or one pod (NAMESPACE/NAME). `explain`:
    with the reasons why no node has room for the pod now."""

    lease_holder: str = ""
    node: _Text = ""
    pod: Annotated[str, msgspec.Meta(max_length=507)] = ""
    decision: _Offset = 0
    explain: bool = False


class ClusterPage:
    """Answers the requests of the page. Safe for many threads."""

    def __init__(
        self,
        cluster: SchedulerCache,
        queue: UnschedulableQueue,
        decisions: Iterable[BindDecision],
        explainer: WaitingPodExplainer,
        unavailable: Callable[[], str | None],
        lease_holder: str,
    ) -> None:
        """`unavailable` and `lease_holder`: see `endpoint.refusal`."""
        self._cluster = cluster
        self._queue = queue
        self._decisions = decisions
        self._explainer = explainer
        self._unavailable = unavailable
        self._lease_holder = lease_holder
        self._table = NodeTable(cluster)
        self._explaining = threading.Lock()
        self._offset = 0.0
        self._cached: tuple[object, dict[str, Any]] = None, {}

    def state(self, body: bytes) -> Reply:
        """The tables; only `same` if the reply would be the viewer's last one."""
        query = decode_state_query(body)
        if (refused := self._refusal(query.lease_holder)) is not None:
            return refused
        self._table.step()
        found = {**self._nodes(query), **self._pods(query)}
        text = msgspec.json.encode(found)
        revision = hashlib.blake2b(text, digest_size=8).hexdigest()
        now = self._stamp(time.monotonic())
        if revision == query.revision:
            return _json({"same": True, "time": now})
        return _json(
            {"revision": revision, "time": now, "page": MAX_NODES, "pods_page": MAX_PODS, **found}
        )

    def _nodes(self, query: StateQuery) -> dict[str, Any]:
        """The part of the reply about nodes, cached until a node changes or the query differs."""
        about_nodes = msgspec.structs.replace(query, revision="", lease_holder="", pods_offset=0)
        key = (about_nodes, self._table.revision, self._table.pending)
        cached_key, found = self._cached
        if cached_key == key:
            return found
        rows = self._table.rows()
        search = query.search.lower()
        shown = rows
        if search or query.kind or query.range is not None:
            shown = [each for each in rows if _matches(each, query, search)]
        found = {
            "reading": self._table.pending,
            "totals": _totals(rows),
            "charts": {column: _chart(shown, column) for column in _CHARTS},
            "nodes": _page(shown, query),
            "matching": len(shown),
        }
        self._cached = key, found
        return found

    def _pods(self, query: StateQuery) -> dict[str, Any]:
        """The part of the reply about waiting pods and decisions."""
        search, first = query.search.lower(), query.pods_offset
        waiting = [each for each in self._queue.pods() if search in each.title]
        decisions = [
            each
            for each in reversed(tuple(self._decisions))
            if search in each.pod.title or search in each.node
        ]
        return {
            "pods": [self._pod_row(each) for each in waiting[first : first + MAX_PODS]],
            "waiting": len(waiting),
            "decisions": [self._decision_row(each) for each in decisions[:MAX_DECISIONS]],
            "decided": len(decisions),
        }

    def detail(self, body: bytes) -> Reply:
        """One node, waiting pod or decision; 404 if it does not exist."""
        query = decode_detail_query(body)
        if (refused := self._refusal(query.lease_holder)) is not None:
            return refused
        found: dict[str, Any] | None = None
        if query.node:
            found = self._node(query.node)
        elif query.decision:
            found = self._decision(lambda each: each.number == query.decision)
        elif query.pod:
            found = self._pod(query.pod, explain=query.explain)
            found = found or self._decision(lambda each: each.pod.title == query.pod)
        if found is None:
            return text_reply(404, "this node, pod or decision does not exist, or no longer exists")
        return _json(found)

    def _refusal(self, named_holder: str) -> Reply | None:
        return endpoint.refusal(self._lease_holder, named_holder, self._unavailable)

    def _stamp(self, at: float) -> str:
        """Formats a time of the monotonic clock by the wall clock. The offset of the clocks is kept
        while it changes little, so that one time has the same text in all replies."""
        offset = time.time() - time.monotonic()
        if abs(offset - self._offset) > _CLOCK_SECONDS:
            self._offset = offset
        return audit.stamp(self._offset + at)

    def _pod_row(self, queued: QueuedPod) -> dict[str, Any]:
        request = queued.requirements.pod_request if queued.requirements else None
        return {
            "uid": queued.uid,
            "title": queued.title,
            "since": self._stamp(queued.since),
            "priority": queued.priority,
            "class": request.resources.qos if request else "",
            "requests": dict(request.requests) if request else {},
            "reasons": queued.reasons,
            "group": queued.group.title if queued.group else "",
            "nominated": queued.nominated,
        }

    def _decision_row(self, decision: BindDecision) -> dict[str, Any]:
        node_offer = decision.node_offer
        facts = offer_facts(node_offer) if node_offer else None
        return {
            "number": decision.number,
            "time": self._stamp(decision.at),
            "title": decision.pod.title,
            "node": decision.node,
            "error": decision.error,
            "class": node_offer.pod_request.resources.qos if node_offer else "",
            "cpus": facts.cpus if facts else "",
            "numa_nodes": sorted(facts.amounts) if facts else (),
            "devices": facts.devices if facts else {},
            "score": facts.score if facts else None,
        }

    def _decision(self, selects: Callable[[BindDecision], bool]) -> dict[str, Any] | None:
        """The last decision that is selected."""
        decision = next(filter(selects, reversed(tuple(self._decisions))), None)
        if decision is None:
            return None
        node_offer = decision.node_offer
        lines = []
        if node_offer is not None:
            facts = offer_facts(node_offer)
            lines = explanation.offer_lines(decision.node, facts, wins=True, width=_WIDTH)
        return {
            "decision": self._decision_row(decision),
            "requests": dict(node_offer.pod_request.requests) if node_offer else {},
            "lines": [each.strip() for each in lines],
        }

    def _pod(self, title: str, *, explain: bool) -> dict[str, Any] | None:
        queued = next((each for each in self._queue.pods() if each.title == title), None)
        if queued is None:
            return None
        found: dict[str, Any] = {"pod": self._pod_row(queued)}
        if explain and (info := queued.info) is not None:
            found["explanation"] = self._explained(info)
        return found

    def _explained(self, info: PodInfo) -> dict[str, Any]:
        """One explanation is made at a time, because each reads every node."""
        with self._explaining:
            until = time.monotonic() + EXPLAIN_SECONDS
            explained = self._explainer.explain_waiting(info, until=until)
        examples: dict[str, tuple[str, str]] = {}
        counts: Counter[str] = Counter()
        for verdict in explained.nodes:
            for cause in verdict.causes[:1]:
                counts[cause.summary] += 1
                examples.setdefault(cause.summary, (verdict.node, cause.message))
        return {
            "time": self._stamp(time.monotonic()),
            "note": explanation.note(explained) if not explained.winner else "",
            "winner": explained.winner,
            "left_out": explained.nodes_left_out,
            "causes": [
                {
                    "summary": text,
                    "nodes": count,
                    "example": examples[text][0],
                    "message": examples[text][1],
                }
                for text, count in counts.most_common(MAX_CAUSES)
            ],
        }

    def _node(self, name: str) -> dict[str, Any] | None:
        with self._cluster.lock:
            node = self._cluster.node(name)
            if node is None:
                return None
            allocator = node.allocator
            free, cpus = allocator.free_cpus(), allocator.properties.cpus
            areas = cpus.layout.nodes if cpus is not None and cpus.layout is not None else ()
            numa_nodes = [
                {
                    "id": each.id,
                    "cpus": each.cpus.bit_count(),
                    "free_cpus": (each.cpus & free).bit_count(),
                }
                for each in areas
            ]
            left = allocator.free.gpu_milli if allocator.properties.inventory is not None else {}
            assigned_pods = tuple(allocator.assigned_pods.values())
        holding = sorted(filter(_holds, assigned_pods), key=lambda each: each.title)
        row = next((each for each in self._table.rows() if each.name == name), NodeRow(name))
        return {
            "node": row,
            "numa_nodes": numa_nodes,
            "gpus": [{"minor": minor, "free": milli / 1000} for minor, milli in left.items()],
            "pods": [_holding(each) for each in holding[:MAX_HOLDINGS]],
            "holding": len(holding),
        }


def _holds(pod: AssignedPod) -> bool:
    """Whether the pod owns CPUs or devices, or is bound to NUMA nodes."""
    return bool(pod.allocation.cpus or pod.allocation.amounts or pod.kinds)


def _holding(pod: AssignedPod) -> dict[str, Any]:
    devices: dict[str, list[int]] = {}
    for kind, minor in sorted({*pod.devices, *pod.functions}):
        devices.setdefault(kind, []).append(minor)
    return {
        "title": pod.title,
        "cpus": str(pod.allocation.cpus),
        "numa_nodes": sorted(pod.allocation.amounts),
        "devices": devices,
        "reservation": pod.reservation,
    }


def _matches(row: NodeRow, query: StateQuery, search: str) -> bool:
    """`search`: in lower case."""
    within = query.range
    if within is not None and not within.low <= getattr(row, within.column) < within.high:
        return False
    if not _KINDS[query.kind](row):
        return False
    texts = row.name, row.model.lower(), row.state.lower()
    return not search or any(search in each for each in texts)


def _page(rows: Sequence[NodeRow], query: StateQuery) -> list[NodeRow]:
    """The rows of one page of the table, ordered by the column of the query, then by name."""
    ordered = sorted(rows, key=attrgetter("name"))
    ordered.sort(key=attrgetter(query.sort), reverse=query.descending)
    return ordered[query.offset : query.offset + MAX_NODES]


def _totals(rows: Sequence[NodeRow]) -> dict[str, float]:
    found: dict[str, float] = {
        name: round(sum(map(attrgetter(name), rows)), 1) for name in _AMOUNTS
    }
    return {"nodes": len(rows), "closed": sum(map(bool, map(attrgetter("state"), rows))), **found}


def _chart(rows: Iterable[NodeRow], column: str) -> list[tuple[float, float, int]]:
    """The bars of a chart: the least amount, the end of the interval (exclusive) and the number of
    nodes. The first bar has the nodes with less than one. Empty bars at the end are left out."""
    counts = [0] * len(_STEPS)
    for value, nodes in Counter(map(attrgetter(column), rows)).items():
        counts[min(math.floor(value).bit_length(), len(counts) - 1)] += nodes
    while len(counts) > 1 and not counts[-1]:
        counts.pop()
    highs = (*_STEPS[1:], 1e9)
    return list(zip(_STEPS, highs, counts, strict=False))


_state_queries: Final = msgspec.json.Decoder(StateQuery)
_detail_queries: Final = msgspec.json.Decoder(DetailQuery)


def decode_state_query(body: bytes) -> StateQuery:
    """Raises BadRequestError, which names the field."""
    return _decoded(_state_queries, body)


def decode_detail_query(body: bytes) -> DetailQuery:
    """Raises BadRequestError, which names the field."""
    return _decoded(_detail_queries, body)


def _decoded(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value:
    try:
        return bounds.decode(decoder, body)
    except JsonError as error:
        raise BadRequestError(f"page: {error}") from None


def _json(found: object) -> Reply:
    return Reply(200, msgspec.json.encode(found))
