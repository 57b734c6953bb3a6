"""The values of the scheduler's page for the cluster: nodes by what is free on them, pods that find
no node with the reasons, and the last decisions.

The process loads this module when somebody looks, and drops it when nobody does. As for
`explain.endpoint`, a request has to name the holder of the leader's Lease, so it comes from
somebody whom the API server lets read the Lease; and its client has a loopback address, so it was
let forward a port to the scheduler's pod. The page names pods of all namespaces.

Replies are bounded: sorting, filtering and paging are done here. Texts are made of the decisions
and the pods that are asked for, and not before."""

from __future__ import annotations

import hashlib
import hmac
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, get_args

import msgspec

from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.http.requests import BadRequestError, Reply
from agent.http.routes import text_reply
from agent.model import audit, bounds
from agent.model.bounds import JsonError
from agent.model.explanation import Explanation
from agent.scheduler.explain.causes import offer_facts
from agent.scheduler.node_table import NodeRow, NodeTable
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import BindDecision, PodInfo, PodName
from agent.scheduler.unschedulable.queue import QueuedPod, UnschedulableQueue
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
"""The first amount of each bar of a chart."""
_CHARTS: Final = ("free_cores", "free_numa_nodes", "free_gpus", "lost_cpus", "lost_gpus")
_TEXTS: Final = ("name", "model", "state")
_AMOUNTS: Final = tuple(name for name in get_args(_Column) if name not in _TEXTS)


class _Range(msgspec.Struct, frozen=True):
    """Nodes whose column is at least `low` and less than `high`."""

    column: _Column
    low: _Amount
    high: _Amount = 1e9


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a viewer looks at. `search`: a part of names of nodes and pods. `revision`: of the
    viewer's last reply to the same question."""

    lease_holder: str = ""
    revision: Annotated[str, msgspec.Meta(max_length=64)] = ""
    search: _Text = ""
    kind: _Kind = ""
    range: _Range | None = None
    sort: _Column = "free_cores"
    descending: bool = True
    offset: _Offset = 0
    pods_offset: _Offset = 0


class DetailQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pod`: its namespace and name. `explain`: also why each node has no room for it now."""

    lease_holder: str = ""
    node: _Text = ""
    pod: Annotated[str, msgspec.Meta(max_length=507)] = ""
    decision: _Offset = 0
    explain: bool = False


class WaitingExplainer(Protocol):
    """What an `Explainer` does for waiting pods."""

    def explain_waiting(self, info: PodInfo, *, until: float) -> Explanation: ...


class ClusterPage:
    """Safe for many threads."""

    def __init__(
        self,
        cluster: SchedulerCache,
        queue: UnschedulableQueue,
        decisions: Iterable[BindDecision],
        explainer: WaitingExplainer,
        unavailable: Callable[[], str | None],
        lease_holder: str,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`unavailable`: why this process does not know the cluster now, None if it does.
        `lease_holder`: its name in the leader's Lease, "" without a Lease: all viewers are
        answered."""
        self._cluster = cluster
        self._queue = queue
        self._decisions = decisions
        self._explainer = explainer
        self._unavailable = unavailable
        self._holder = lease_holder.encode()
        self._wall_clock = wall_clock
        self._table = NodeTable(cluster)
        self._explaining = threading.Lock()
        self._offset = 0.0
        self._kept: tuple[object, dict[str, Any]] = None, {}

    def state(self, body: bytes) -> Reply:
        """The tables as `Question` asks for them."""
        question = decode_question(body)
        if (refusal := self._refusal(question.lease_holder)) is not None:
            return refusal
        self._table.step()
        found = {**self._nodes(question), **self._pods(question)}
        text = msgspec.json.encode(found)
        revision = hashlib.blake2b(text, digest_size=8).hexdigest()
        now = self._stamp(time.monotonic())
        if revision == question.revision:
            return _json({"same": True, "time": now})
        return _json(
            {"revision": revision, "time": now, "page": MAX_NODES, "pods_page": MAX_PODS, **found}
        )

    def _nodes(self, question: Question) -> dict[str, Any]:
        """Kept for the next viewer that asks the same before a node changes."""
        asked = msgspec.structs.replace(question, revision="", lease_holder="", pods_offset=0)
        key = (asked, self._table.revision, self._table.pending)
        kept, found = self._kept
        if kept == key:
            return found
        rows = self._table.rows()
        search = question.search.lower()
        shown = rows
        if search or question.kind or question.range is not None:
            shown = [each for each in rows if _matches(each, question, search)]
        found = {
            "reading": self._table.pending,
            "totals": _totals(rows),
            "charts": {column: _chart(shown, column) for column in _CHARTS},
            "nodes": _page(shown, question),
            "matching": len(shown),
        }
        self._kept = key, found
        return found

    def _pods(self, question: Question) -> dict[str, Any]:
        search, first = question.search.lower(), question.pods_offset
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
        """One node, waiting pod or decision; 404 for one that is not there."""
        question = decode_detail_question(body)
        if (refusal := self._refusal(question.lease_holder)) is not None:
            return refusal
        found: dict[str, Any] | None = None
        if question.node:
            found = self._node(question.node)
        elif question.decision:
            found = self._decision(lambda each: each.number == question.decision)
        elif question.pod:
            found = self._pod(question.pod, explain=question.explain)
            found = found or self._decision(lambda each: each.pod.title == question.pod)
        if found is None:
            return text_reply(404, "it does not exist, or not any more")
        return _json(found)

    def _refusal(self, named_holder: str) -> Reply | None:
        if self._holder and not hmac.compare_digest(named_holder.encode(), self._holder):
            return text_reply(403, "the request does not name the holder of the leader's Lease")
        if (reason := self._unavailable()) is not None:
            return text_reply(503, reason)
        return None

    def _stamp(self, at: float) -> str:
        """The time of the wall clock for one of the monotonic clock: the same text each time, also
        if the clocks run a little apart."""
        offset = self._wall_clock() - time.monotonic()
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
        granted = decision.granted
        facts = offer_facts(granted) if granted else None
        return {
            "number": decision.number,
            "time": self._stamp(decision.at),
            "title": decision.pod.title,
            "node": decision.node,
            "error": decision.error,
            "class": granted.pod_request.resources.qos if granted else "",
            "cpus": facts.cpus if facts else "",
            "numa_nodes": sorted(facts.amounts) if facts else (),
            "devices": facts.devices if facts else {},
            "score": facts.score if facts else None,
        }

    def _decision(self, is_it: Callable[[BindDecision], bool]) -> dict[str, Any] | None:
        decision = next(filter(is_it, reversed(tuple(self._decisions))), None)
        if decision is None:
            return None
        granted = decision.granted
        lines = []
        if granted is not None:
            facts = offer_facts(granted)
            lines = explanation.offer_lines(decision.node, facts, wins=True, width=_WIDTH)
        return {
            "decision": self._decision_row(decision),
            "requests": dict(granted.pod_request.requests) if granted else {},
            "lines": [each.strip() for each in lines],
        }

    def _pod(self, title: str, *, explain: bool) -> dict[str, Any] | None:
        queued = next((each for each in self._queue.pods() if each.title == title), None)
        if queued is None:
            return None
        found: dict[str, Any] = {"pod": self._pod_row(queued)}
        if explain and queued.requirements is not None:
            name = PodName(queued.namespace, queued.name, queued.uid)
            info = PodInfo(name, queued.requirements.pod_request, queued.group)
            found["explanation"] = self._explained(info)
        return found

    def _explained(self, info: PodInfo) -> dict[str, Any]:
        """One at a time: an explanation reads every node."""
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
            left = allocator.room.left if allocator.properties.inventory is not None else {}
            holdings = tuple(allocator.holdings.values())
        holding = sorted(filter(_holds, holdings), key=lambda each: each.title)
        row = next((each for each in self._table.rows() if each.name == name), NodeRow(name))
        return {
            "node": row,
            "numa_nodes": numa_nodes,
            "gpus": [{"minor": minor, "free": milli / 1000} for minor, milli in left.items()],
            "pods": [_holding(each) for each in holding[:MAX_HOLDINGS]],
            "holding": len(holding),
        }


def _holds(pod: AssignedPod) -> bool:
    """Whether the pod has CPUs, NUMA nodes or devices of its own."""
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


def _matches(row: NodeRow, question: Question, search: str) -> bool:
    within = question.range
    if within is not None and not within.low <= getattr(row, within.column) < within.high:
        return False
    if not _KINDS[question.kind](row):
        return False
    return not search or search in row.name or search in row.model.lower() or search in row.state


def _page(rows: Sequence[NodeRow], question: Question) -> list[NodeRow]:
    """The rows that the viewer sees: in the order of the column, equal ones by name."""
    ordered = sorted(rows, key=attrgetter("name"))
    ordered.sort(key=attrgetter(question.sort), reverse=question.descending)
    return ordered[question.offset : question.offset + MAX_NODES]


def _totals(rows: Sequence[NodeRow]) -> dict[str, float]:
    found: dict[str, float] = {
        name: round(sum(map(attrgetter(name), rows)), 1) for name in _AMOUNTS
    }
    return {"nodes": len(rows), "closed": sum(map(bool, map(attrgetter("state"), rows))), **found}


def _chart(rows: Iterable[NodeRow], column: str) -> list[tuple[float, float, int]]:
    """Bars: from, to (exclusive) and the number of nodes, without empty ones at the end. The first
    bar has the nodes with nothing, or with less than one."""
    counts = [0] * len(_STEPS)
    for value, nodes in Counter(map(attrgetter(column), rows)).items():
        counts[min(math.floor(value).bit_length(), len(counts) - 1)] += nodes
    while len(counts) > 1 and not counts[-1]:
        counts.pop()
    highs = (*_STEPS[1:], 1e9)
    return list(zip(_STEPS, highs, counts, strict=False))


_questions: Final = msgspec.json.Decoder(Question)
_detail_questions: Final = msgspec.json.Decoder(DetailQuestion)


def decode_question(body: bytes) -> Question:
    """Raises BadRequestError, which names the field."""
    return _decoded(_questions, body)


def decode_detail_question(body: bytes) -> DetailQuestion:
    """Raises BadRequestError, which names the field."""
    return _decoded(_detail_questions, body)


def _decoded(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value:
    try:
        return bounds.decode(decoder, body)
    except JsonError as error:
        raise BadRequestError(f"page: {error}") from None


def _json(found: object) -> Reply:
    return Reply(200, msgspec.json.encode(found))
