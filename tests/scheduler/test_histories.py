"""Whatever happens in a cluster, in whatever order its watches report it: the state is that of the
objects, nothing is allocated twice, and no reservation is lost."""

from __future__ import annotations

import collections
import json
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.node_allocator.answer import Granted
from agent.allocate.node_allocator.pod_request import request_of
from agent.kube.objects import Change, Mirror, ObjectKey, WatchedMetadata
from agent.model.apiobjects import from_object
from agent.scheduler.state import records
from agent.scheduler.state.cluster import EXPIRY_SECONDS, ReserveError, SchedulerCache
from tests.scheduler import objects
from tests.scheduler.objects import Object

NODES = ("n1", "n2")
OVER = ("Succeeded", "Failed")
KINDS = ("pods", "nodes", "topologies", "devices")
POLICIES = ("none", "single-numa-node", "restricted")
# QoS by Koordinator, by Kubernetes, and what is requested.
ASKS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("LSR", "Guaranteed", {"cpu": "2"}),
    ("LSE", "Guaranteed", {"cpu": "1"}),
    ("LS", "Burstable", {"cpu": "500m"}),
    ("", "Burstable", {"cpu": "1", "nvidia.com/gpu": "1"}),
    ("", "Burstable", {"cpu": "1", "koordinator.sh/gpu": "50"}),
    ("LSR", "Guaranteed", {"cpu": "2", "nvidia.com/gpu": "1"}),
    ("", "Guaranteed", {"cpu": "2"}),
)
READ: dict[str, Callable[[bytes], Any]] = {
    "pods": objects.read_pod,
    "nodes": records.node,
    "topologies": records.topology,
    "devices": records.devices,
}


WISHES = tuple(
    objects.pod_request(requests, qos, kube_class=kube_class) for qos, kube_class, requests in ASKS
)


class Server:
    """The objects, and for each kind the events that its watch has not sent yet."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[ObjectKey, Object]] = {kind: {} for kind in KINDS}
        self.queues: dict[str, deque[tuple[str, Object]]] = {kind: deque() for kind in KINDS}
        self._version = 0

    def put(self, kind: str, told: Object) -> None:
        self._version += 1
        told = json.loads(json.dumps(told))
        told["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind][_key(told)] = told
        self.queues[kind].append(("put", told))

    def drop(self, kind: str, key: ObjectKey) -> None:
        if (gone := self.objects[kind].pop(key, None)) is not None:
            self.queues[kind].append(("drop", gone))

    def pod(self, name: str) -> Object | None:
        return self.objects["pods"].get(ObjectKey("ns", name))


class Scheduler:
    """A SchedulerCache behind a watch of each kind."""

    def __init__(self, server: Server) -> None:
        self.now = 0.0
        self.cluster = SchedulerCache(clock=lambda: self.now)
        self.mirrors: dict[str, Mirror[Any]] = {kind: Mirror(READ[kind]) for kind in KINDS}
        self._server = server
        self._changed: dict[str, Callable[[list[Change[Any]]], None]] = {
            "pods": self.cluster.pods_changed,
            "nodes": self.cluster.nodes_changed,
            "topologies": self.cluster.topologies_changed,
            "devices": self.cluster.devices_changed,
        }

    def hear(self, kind: str, *, twice: bool = False) -> None:
        """The next event of its watch; `twice`: after a reconnect it is sent again."""
        if self._server.queues[kind]:
            event, told = self._server.queues[kind].popleft()
            for _ in range(1 + twice):
                self._take(kind, event, told)

    def relist(self, kind: str) -> None:
        self._server.queues[kind].clear()
        mirror = self.mirrors[kind]
        found = [
            (key, mirror.decoded(_metadata(told), json.dumps(told).encode()))
            for key, told in self._server.objects[kind].items()
        ]
        self._changed[kind](mirror.replace(found))

    def _take(self, kind: str, event: str, told: Object) -> None:
        mirror = self.mirrors[kind]
        if event == "drop":
            self._changed[kind](mirror.drop(_key(told)))
        else:
            self._changed[kind](mirror.put(_metadata(told), json.dumps(told).encode()))


class World:
    """One server, one scheduler, and the binds in progress (by uid: node and pod)."""

    def __init__(self, luck: random.Random) -> None:
        self.luck = luck
        self.server = Server()
        self.scheduler = Scheduler(self.server)
        self.cluster = self.scheduler.cluster
        self.binding: dict[str, tuple[str, Granted]] = {}
        self._made = 0
        for name in NODES:
            self.server.put("nodes", objects.node(name))
            self._node_tells(name, self.luck.choice(POLICIES))
            self.server.put("devices", objects.devices(name))
            self.server.put("pods", objects.agent(name))

    # actions of other clients
    def pod_is_made(self) -> None:
        self._made += 1
        qos, kube_class, requests = self.luck.choice(ASKS)
        labels = {"koordinator.sh/qosClass": qos} if qos else {}
        # Names are reused for other pods.
        name = f"p{self.luck.randrange(12)}"
        if self.server.pod(name) is None:
            uid = f"uid-{name}-{self._made}"
            told = objects.pod(
                name, uid=uid, requests=requests, labels=labels, kube_class=kube_class
            )
            self.server.put("pods", told)

    def pod_is_dropped(self) -> None:
        if (told := self._some_pod()) is not None:
            self.server.drop("pods", _key(told))

    def pod_ends(self) -> None:
        if (told := self._some_pod()) is not None:
            status = {**told["status"], "phase": self.luck.choice(OVER)}
            self.server.put("pods", {**told, "status": status})

    def pod_begins(self) -> None:
        told = self._some_pod()
        if told is not None and told["spec"]["nodeName"] and told["status"]["phase"] == "Pending":
            started = f"2026-01-01T00:00:{self.luck.randrange(60):02}Z"
            status = {**told["status"], "phase": "Running", "startTime": started}
            self.server.put("pods", {**told, "status": status})

    def pod_is_annotated(self) -> None:
        if (told := self._some_pod()) is not None:
            self.server.put("pods", _annotated(told, {"other": str(self._made)}))

    def another_scheduler_binds(self) -> None:
        told = self._some_pod()
        if self.binding and self.luck.random() < 0.5:
            _, granted = self.luck.choice(list(self.binding.values()))
            told = self.server.pod(granted.pod_request.title.removeprefix("ns/"))
        if told is not None and not told["spec"]["nodeName"]:
            self.server.put("pods", _bound(told, self.luck.choice(NODES), {}))

    def object_comes_or_goes(self) -> None:
        kind, name = self.luck.choice(KINDS[1:]), self.luck.choice(NODES)
        if self.luck.random() < 0.4:
            self.server.drop(kind, ObjectKey("", name))
        elif kind == "nodes":
            self.server.put(kind, objects.node(name, labels={"a": str(self.luck.randrange(3))}))
        elif kind == "topologies":
            self._node_tells(name, self.luck.choice(POLICIES))
        else:
            self.server.put(kind, objects.devices(name, self.luck.randrange(1, 4)))

    def agent_changes(self) -> None:
        name = self.luck.choice(NODES)
        if self.luck.random() < 0.3:
            self.server.drop("pods", ObjectKey("ns", f"agent-{name}"))
        else:
            self.server.put("pods", objects.agent(name, self.luck.random() < 0.7))

    def node_tells(self) -> None:
        name = self.luck.choice(NODES)
        told = self.server.objects["topologies"].get(ObjectKey("", name))
        if told is not None:
            self._node_tells(name, _policy(told), untold=self.luck.random() < 0.1)

    def _node_tells(self, name: str, policy: str, *, untold: bool = False) -> None:
        """The amounts that the started pods leave free; `untold`: the report does not name these
        pods."""
        pods = [
            (key.namespace, key.name)
            for key, each in self.server.objects["pods"].items()
            if each["spec"]["nodeName"] == name and each["status"]["phase"] != "Pending"
        ]
        beside = None if untold else pods
        left = self.luck.choice((1000, 2000, 3000, 4000))
        self.server.put("topologies", objects.topology(name, 2, left, policy, beside))

    # actions of the scheduler
    def event_comes(self) -> None:
        for _ in range(self.luck.randrange(1, 4)):
            self.scheduler.hear(self.luck.choice(KINDS), twice=self.luck.random() < 0.2)

    def watch_lists_anew(self) -> None:
        self.scheduler.relist(self.luck.choice(KINDS))

    def bind_begins(self) -> None:
        told, name = self._some_pod(), self.luck.choice(NODES)
        if told is None or told["spec"]["nodeName"]:
            return
        pod_request = request_of(from_object(told))
        state = self.cluster.node(name)
        if state is None or self.cluster.eligible(name, pod_request) is not None:
            return
        found = state.allocator.offer(pod_request)
        if isinstance(found, Granted):
            try:
                self.cluster.reserve(name, found)
            except ReserveError:
                return
            self.binding[pod_request.uid] = name, found

    def bind_ends(self) -> None:
        """The API server binds a pod that exists and is not bound; its answer may be lost."""
        if not self.binding:
            return
        uid = self.luck.choice(sorted(self.binding))
        name, granted = self.binding.pop(uid)
        told = self.server.pod(granted.pod_request.title.removeprefix("ns/"))
        there = told is not None and told["metadata"]["uid"] == uid
        if told is None or not there or told["spec"]["nodeName"]:
            self.cluster.release(uid)
            return
        if self.luck.random() < 0.2:  # refused, for example by a policy
            self.cluster.release(uid)
            return
        self.server.put("pods", _bound(told, name, granted.annotations()))
        self.cluster.confirm(uid)

    ACTS = (
        (pod_is_made, 6),
        (pod_is_dropped, 2),
        (pod_ends, 1),
        (pod_begins, 4),
        (node_tells, 3),
        (pod_is_annotated, 1),
        (another_scheduler_binds, 1),
        (object_comes_or_goes, 1),
        (agent_changes, 1),
        (event_comes, 8),
        (watch_lists_anew, 1),
        (bind_begins, 8),
        (bind_ends, 6),
    )

    def act(self) -> None:
        acts, weights = zip(*self.ACTS, strict=True)
        self.luck.choices(acts, weights)[0](self)

    def settle(self) -> None:
        """All binds end, the watches send all events, and time passes: overdue reservations are
        checked."""
        while self.binding:
            self.bind_ends()
        # The results for plain pods depend on the order of pods, until a report counts all.
        for key, told in list(self.server.objects["topologies"].items()):
            self._node_tells(key.name, _policy(told))
        for kind in KINDS:
            while self.server.queues[kind]:
                self.scheduler.hear(kind)
        self.scheduler.now += EXPIRY_SECONDS
        there = {each["metadata"]["uid"] for each in self.server.objects["pods"].values()}
        for reservation in self.cluster.overdue():
            assert reservation.sent
            assert reservation.uid not in there
            assert self.cluster.expire(reservation)

    def check(self) -> None:
        for state in self.cluster._states.values():
            held = state.allocator.holdings.values()
            cpus = collections.Counter(cpu for each in held for cpu in each.allocation.cpus)
            parts: collections.Counter[tuple[str, int]] = collections.Counter()
            for each in held:
                for device, amounts in each.devices.items():
                    parts[device] += amounts["koordinator.sh/gpu-core"]
            assert max(cpus.values(), default=0) <= 1
            assert max(parts.values(), default=0) <= 100
        shown = {
            each.value.uid: each.value
            for each in self.scheduler.mirrors["pods"]._known.values()
            if each.value.node
        }
        for uid, (name, granted) in self.binding.items():
            reservation = self.cluster.reservation(uid)
            if reservation is None:
                # A watch has reported the outcome: bound by another client, terminated, or deleted.
                told = self.server.pod(granted.pod_request.title.removeprefix("ns/"))
                there = told is not None and told["metadata"]["uid"] == uid
                assert uid in shown or not there or told["status"]["phase"] in OVER
            else:
                state = self.cluster._states[name]
                assert state.allocator.holdings[uid] == granted.holding()

    def _some_pod(self) -> Object | None:
        pods = self.server.objects["pods"]
        names = sorted(key.name for key in pods if not key.name.startswith("agent-"))
        return pods[ObjectKey("ns", self.luck.choice(names))] if names else None


def state_of(cluster: SchedulerCache) -> dict[str, Any]:
    return {
        name: (
            state.node,
            state.topology,
            state.devices,
            state.agent_ready,
            dict(state.allocator.holdings),
            state.allocator.properties,
            [state.allocator.offer(each) for each in WISHES],
        )
        for name, state in cluster._states.items()
    }


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 120))
def test_any_history_leads_to_the_state_of_its_objects(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    for _ in range(steps):
        world.act()
        world.check()
    world.settle()
    world.check()
    rebuilt = Scheduler(world.server)
    for kind in world.luck.sample(KINDS, len(KINDS)):
        rebuilt.relist(kind)
    assert state_of(world.cluster) == state_of(rebuilt.cluster)
    assert world.cluster._pods == rebuilt.cluster._pods


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 80))
def test_a_node_whose_result_changed_is_in_the_log(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    cluster = world.cluster

    def answers(name: str, *, reads_zone_report: bool) -> list[Any]:
        state = cluster.node(name)
        return [
            (cluster.eligible(name, each), state and state.allocator.offer(each))
            for each in WISHES
            if each.zoned.indifferent is not reads_zone_report
        ]

    def all_answers(*, reads_zone_report: bool) -> dict[str, Any]:
        return {name: answers(name, reads_zone_report=reads_zone_report) for name in NODES}

    for reads_zone_report, log in (
        (True, cluster.changed_since),
        (False, cluster.placement_changed_since),
    ):
        before, serial = all_answers(reads_zone_report=reads_zone_report), log(0).serial
        for _ in range(steps):
            world.act()
            changes = log(serial)
            now, serial = all_answers(reads_zone_report=reads_zone_report), changes.serial
            assert changes.names is not None
            assert {name for name in NODES if now[name] != before[name]} <= changes.names
            before = now


def _policy(topology: Object) -> str:
    attributes = {each["name"]: each["value"] for each in topology["attributes"]}
    return str(attributes["topologyManagerPolicy"])


def _key(told: Object) -> ObjectKey:
    return ObjectKey(told["metadata"].get("namespace", ""), told["metadata"]["name"])


def _metadata(told: Object) -> WatchedMetadata:
    metadata = told["metadata"]
    key = _key(told)
    uid = metadata.get("uid", key.name)
    return WatchedMetadata(
        name=key.name,
        namespace=key.namespace,
        uid=uid,
        resource_version=metadata["resourceVersion"],
    )


def _annotated(told: Object, notes: dict[str, str]) -> Object:
    metadata = told["metadata"]
    return {
        **told,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], **notes}},
    }


def _bound(told: Object, node: str, notes: dict[str, str]) -> Object:
    told = _annotated(told, notes)
    return {**told, "spec": {**told["spec"], "nodeName": node}}
