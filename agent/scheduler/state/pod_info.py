"""A pod to schedule: its name, request and group, and the check whether a node has room for the pod
or its group.

The result of a check is `Feasible` or a `Refusal`, until the change log of the cluster has the node
again. `PodInfoCache` keeps the pods of recent scheduling cycles, so that a pod is read once for all
verbs.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.node_states import NodeStates
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import BindPolicy, DeviceLocality
from agent.model.pod.apiobjects import ApiPod, PodGroup, group_of
from agent.model.pod_request import PodRequest, request_of
from agent.scheduler.state.node_info import NodeChange, NodeInfo


class PodName(msgspec.Struct, frozen=True):
    """The pod to bind. A later pod of the same name has another `uid`."""

    namespace: str
    name: str
    uid: str

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class BindDecision(msgspec.Struct, frozen=True):
    """A pod on its way to a node."""

    number: int
    """It counts all decisions of this process."""
    at: float
    """Seconds of a monotonic clock."""
    pod: PodName
    node: str
    node_offer: NodeOffer | None = None
    """None if there was no offer, or if the same Binding was sent again."""
    error: str = ""
    """Why the pod is not bound; "" if it is."""


class PodInfo(msgspec.Struct, frozen=True):
    """A pod, with its decoded request and group."""

    pod: PodName
    pod_request: PodRequest
    group: PodGroup | None = None

    def requirements(self, bound_members: int) -> Requirements:
        """The requirements of the pod, or of the members of its group that are not bound."""
        if self.group is None:
            return PodRequirements(self.pod_request)
        return GroupRequirements(self.pod_request, max(1, self.group.size - bound_members))


class PodDefaults(msgspec.Struct, frozen=True):
    """What the request of a pod depends on, beside the pod."""

    device_resources: frozenset[str] = frozenset()
    """The resources that the Device objects of all nodes list."""
    bind: BindPolicy = BindPolicy.FULL_PCPUS
    """The configured bind policy."""
    device_localities: Mapping[str, DeviceLocality] = {}
    """By the name of a namespace with such a label."""

    def request(self, pod: ApiPod) -> PodRequest:
        """Raises PodRequestError."""
        of_namespace = self.device_localities.get(pod.namespace)
        return request_of(pod, self.device_resources, self.bind, of_namespace)


_NO_DEFAULTS: Final = PodDefaults()


def pod_info(pod: ApiPod, defaults: PodDefaults = _NO_DEFAULTS) -> PodInfo:
    """Raises PodRequestError and GroupError, which name the pod and the field."""
    name = PodName(pod.namespace, pod.name, pod.uid)
    return PodInfo(name, defaults.request(pod), group_of(pod))


MAX_PODS: Final = 4096
"""Pods kept. A pod that was dropped is read from the API server again when it is bound."""


class _KeptPod(msgspec.Struct, frozen=True):
    """A pod of that resourceVersion, decoded with these defaults."""

    version: str
    defaults: PodDefaults
    info: PodInfo


class PodInfoCache:
    """The pods of the last requests. Safe for many threads."""

    def __init__(
        self,
        *,
        defaults: Callable[[], PodDefaults] = PodDefaults,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`defaults` returns those of the cluster."""
        self._defaults = defaults
        self._clock = clock
        self._lock = threading.Lock()
        self._by_uid: OrderedDict[str, _KeptPod] = OrderedDict()
        self._filtered_at: dict[str, float] = {}

    def of(self, pod: ApiPod) -> PodInfo:
        """Decodes the pod again if its resourceVersion or the defaults of the cluster have changed.
        Raises PodRequestError and GroupError."""
        defaults = self._defaults()
        with self._lock:
            kept = self._by_uid.get(pod.uid)
        same = (pod.resource_version, defaults)
        if kept is not None and kept.version and (kept.version, kept.defaults) == same:
            return kept.info
        info = pod_info(pod, defaults)
        with self._lock:
            self._by_uid[pod.uid] = _KeptPod(pod.resource_version, defaults, info)
            self._by_uid.move_to_end(pod.uid)
            if len(self._by_uid) > MAX_PODS:
                oldest, _ = self._by_uid.popitem(last=False)
                self._filtered_at.pop(oldest, None)
        return info

    def of_filter(self, pod: ApiPod) -> PodInfo:
        """As `of`, for a filter of the pod, whose time is kept."""
        info, now = self.of(pod), self._clock()
        with self._lock:
            if pod.uid in self._by_uid:
                self._filtered_at[pod.uid] = now
        return info

    def filtered_at(self, uid: str) -> float | None:
        """Returns the time of the pod's last filter, None if it is not known."""
        with self._lock:
            return self._filtered_at.get(uid)

    def get(self, uid: str) -> PodInfo | None:
        """Returns None for a pod that has to be decoded again."""
        defaults = self._defaults()
        with self._lock:
            kept = self._by_uid.get(uid)
        if kept is None or kept.defaults != defaults:
            return None
        return kept.info

    def forget(self, uid: str) -> None:
        """Drops a pod that is bound."""
        with self._lock:
            self._by_uid.pop(uid, None)
            self._filtered_at.pop(uid, None)


Keep = Callable[[NodeOffer], None]
"""Called with the offer of a node that has room."""


class PodRequirements(msgspec.Struct, frozen=True):
    """The requirements of one pod. `pods` is the number of pods, `requests` their sum."""

    pod_request: PodRequest

    @property
    def pods(self) -> int:
        return 1

    @property
    def requests(self) -> Mapping[str, int]:
        return self.pod_request.requests

    @property
    def equivalence_class(self) -> Hashable:
        """Equal for pods with equal results on every node."""
        return self.pod_request.equivalence_key

    def check(self, allocator: NodeAllocator, keep: Keep | None = None) -> Feasibility:
        # The pod's own allocation on the node must not count as free for other pods of its class.
        resources = msgspec.structs.replace(self.pod_request.resources, uid="")
        found = allocator.offer(msgspec.structs.replace(self.pod_request, resources=resources))
        if isinstance(found, Refusal):
            return found
        if keep is not None:
            keep(found)
        return Feasible(found.score, found.order)


_NO_ROOM: Final = "no room for the whole group"
_ANY: Final = PodGroup("", "", 0)


class GroupRequirements(msgspec.Struct, frozen=True):
    """The requirements of several equal pods of one group. What the group has reserved already
    counts as used."""

    pod_request: PodRequest
    pods: int

    @property
    def requests(self) -> Mapping[str, int]:
        return {name: amount * self.pods for name, amount in self.pod_request.requests.items()}

    @property
    def equivalence_class(self) -> Hashable:
        return self.pod_request.equivalence_key, self.pods

    def check(self, allocator: NodeAllocator, keep: Keep | None = None) -> Feasibility:
        """The offers to a group are not kept."""
        found = allocator.offer_all(parts(_ANY, self.pod_request, self.pods))
        if isinstance(found, Refusal):
            return Refusal(Reason.GROUP, detail=_NO_ROOM, others=found.reasons)
        return Feasible(
            sum(each.score for each in found) // len(found), max(each.order for each in found)
        )


Requirements: TypeAlias = PodRequirements | GroupRequirements


def parts(group: PodGroup, pod_request: PodRequest, size: int) -> list[PodRequest]:
    """Returns the same request for each of `size` members."""
    return [
        msgspec.structs.replace(
            pod_request,
            resources=msgspec.structs.replace(
                pod_request.resources, uid=group.part(number), title=f"{group.title}, part {number}"
            ),
        )
        for number in range(size)
    ]


class Feasible(msgspec.Struct, frozen=True, eq=False):
    """A node with room. `score` is 0 to 100. Of two nodes with equal scores the one with the
    smaller `order` is better, then the one with the smaller name."""

    score: int
    order: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Smaller is better."""
        return -self.score, self.order


Feasibility = Feasible | Refusal
UNKNOWN_NODE: Final = Refusal(Reason.NODE_UNKNOWN, detail="the node is not known to the scheduler")


class Undecided(msgspec.Struct, frozen=True):
    """A node without a result yet. `number`: of its state, None if no other node can have it."""

    allocator: NodeAllocator
    number: int | None


class CheckedNodes(Protocol):
    """What a `SchedulerCache` has of the nodes."""

    node_states: NodeStates

    def node(self, name: str) -> NodeInfo | None: ...

    def ineligibility(self, name: str, pod_request: PodRequest) -> Refusal | None: ...

    def keep_offer(self, name: str, node_offer: NodeOffer) -> None: ...


class RequirementsCheck(msgspec.Struct, frozen=True):
    """Checks whether a node is eligible and has room, once for all nodes in the same state
    (`node_states`)."""

    cluster: CheckedNodes
    requirements: Requirements

    @property
    def equivalence_class(self) -> Hashable:
        return self.requirements.equivalence_class

    @property
    def least_change(self) -> NodeChange:
        """The least change of a node on which the result depends."""
        numa_request = self.requirements.pod_request.numa_request
        if numa_request.devices:
            return NodeChange.DEVICE_ZONES
        return NodeChange.ALL if numa_request.indifferent else NodeChange.ZONE_REPORT

    def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
        """Returns UNKNOWN_NODE for a node that does not exist. `by_state`: the results of this
        equivalence class by the number of the node's state, which a new one is added to. The caller
        holds the cluster's lock."""
        known = self.known(node, by_state)
        if not isinstance(known, Undecided):
            return known
        keep = partial(self.cluster.keep_offer, node)
        result = self.requirements.check(known.allocator, keep)
        if known.number is not None:
            by_state[known.number] = result
        return result

    def apart(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility | Undecided:
        """The result if it is known, else a copy of the node, for a check that takes too long for
        the cluster's lock. The caller holds the lock."""
        known = self.known(node, by_state)
        if not isinstance(known, Undecided):
            return known
        return msgspec.structs.replace(known, allocator=known.allocator.without(()))

    def decided(self, node: Undecided) -> Feasibility:
        """The result. A copy needs no lock."""
        return self.requirements.check(node.allocator)

    def bound(self, node: Undecided) -> int:
        """A score that the result does not exceed, of a single pod; negative if the node is surely
        not feasible. The caller holds the cluster's lock."""
        return node.allocator.score_bound(self.requirements.pod_request)

    def known(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility | Undecided:
        """The result if it is known. The caller holds the cluster's lock."""
        pod_request, state = self.requirements.pod_request, self.cluster.node(node)
        if state is None:
            return UNKNOWN_NODE
        if (ineligibility := self.cluster.ineligibility(node, pod_request)) is not None:
            return ineligibility
        allocator = state.allocator
        number = state.state_number(
            self.cluster.node_states, pod_request.reads(allocator.properties)
        )
        known = None if number is None else by_state.get(number)
        return Undecided(allocator, number) if known is None else known
