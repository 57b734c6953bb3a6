"""Random histories of a cluster, with watch events in any order: the state of the scheduler cache
follows from the objects, no resource is allocated twice, and no reservation is lost."""

from __future__ import annotations

import collections
import json
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.kube.objects import Change, ChangeKind, Mirror, ObjectKey, WatchedMetadata
from agent.model.pod.apiobjects import from_object
from agent.model.pod_request import request_of
from agent.scheduler.state import records
from agent.scheduler.state.cluster import EXPIRY_SECONDS, ReserveError, SchedulerCache
from agent.scheduler.state.node_info import NodeChange
from agent.scheduler.state.pod_info import PodRequirements, RequirementsCheck
from tests.scheduler import objects
from tests.scheduler.objects import Object

NODES = ("n1", "n2")
TERMINAL_PHASES = ("Succeeded", "Failed")
KINDS = ("pods", "nodes", "topologies", "devices")
POLICIES = ("none", "single-numa-node", "restricted")
# Koordinator's QoS class, Kubernetes' QoS class, resource requests.
POD_SPECS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("LSR", "Guaranteed", {"cpu": "2"}),
    ("LSE", "Guaranteed", {"cpu": "1"}),
    ("LS", "Burstable", {"cpu": "500m"}),
    ("", "Burstable", {"cpu": "1", "nvidia.com/gpu": "1"}),
    ("", "Burstable", {"cpu": "1", "koordinator.sh/gpu": "50"}),
    ("LSR", "Guaranteed", {"cpu": "2", "nvidia.com/gpu": "1"}),
    ("", "Guaranteed", {"cpu": "2"}),
)
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "pods": objects.read_pod,
    "nodes": records.node,
    "topologies": records.topology,
    "devices": records.devices,
}
POD_REQUESTS = tuple(
    objects.pod_request(requests, qos, kube_class=kube_class)
    for qos, kube_class, requests in POD_SPECS
)


class Server:
    """The stored objects, and for each kind the queue of events that its watch has not sent yet."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[ObjectKey, Object]] = {kind: {} for kind in KINDS}
        self.queues: dict[str, deque[tuple[ChangeKind, Object]]] = {kind: deque() for kind in KINDS}
        self._version = 0

    def put(self, kind: str, body: Object) -> None:
        self._version += 1
        stored = json.loads(json.dumps(body))
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind][_key(stored)] = stored
        self.queues[kind].append((ChangeKind.MODIFIED, stored))

    def delete(self, kind: str, key: ObjectKey) -> None:
        if (deleted := self.objects[kind].pop(key, None)) is not None:
            self.queues[kind].append((ChangeKind.DELETED, deleted))

    def pod(self, name: str) -> Object | None:
        return self.objects["pods"].get(ObjectKey("ns", name))


class Scheduler:
    """A SchedulerCache behind a watch of each kind."""

    def __init__(self, server: Server) -> None:
        self.now = 0.0
        self.cluster = SchedulerCache(clock=lambda: self.now)
        self.mirrors: dict[str, Mirror[Any]] = {
            kind: Mirror(decode) for kind, decode in DECODERS.items()
        }
        self._server = server
        self._changed: dict[str, Callable[[list[Change[Any]]], None]] = {
            "pods": self.cluster.pods_changed,
            "nodes": self.cluster.nodes_changed,
            "topologies": self.cluster.topologies_changed,
            "devices": self.cluster.devices_changed,
        }

    def deliver(self, kind: str, *, twice: bool = False) -> None:
        """Delivers the next event of the watch; `twice`: a reconnected watch sends it again."""
        if self._server.queues[kind]:
            change_kind, body = self._server.queues[kind].popleft()
            for _ in range(1 + twice):
                self._apply(kind, change_kind, body)

    def deliver_all(self, kind: str) -> None:
        while self._server.queues[kind]:
            self.deliver(kind)

    def relist(self, kind: str) -> None:
        self._server.queues[kind].clear()
        mirror = self.mirrors[kind]
        listed = [
            (key, mirror.decoded(_metadata(body), json.dumps(body).encode()))
            for key, body in self._server.objects[kind].items()
        ]
        self._changed[kind](mirror.replace(listed))

    def _apply(self, kind: str, change_kind: ChangeKind, body: Object) -> None:
        mirror = self.mirrors[kind]
        if change_kind is ChangeKind.DELETED:
            changes = mirror.drop(_key(body))
        else:
            changes = mirror.put(_metadata(body), json.dumps(body).encode())
        self._changed[kind](changes)


class World:
    """One server, one scheduler, and the binds in progress: by uid, the node and the offer."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.server = Server()
        self.scheduler = Scheduler(self.server)
        self.cluster = self.scheduler.cluster
        self.binding: dict[str, tuple[str, NodeOffer]] = {}
        self.uids = {f"uid-agent-{name}" for name in NODES}
        self._created = 0
        for name in NODES:
            self.server.put("nodes", objects.node(name))
            self._put_topology(name, self.rng.choice(POLICIES))
            self.server.put("devices", objects.devices(name))
            self.server.put("pods", objects.agent(name))

    # actions of other clients
    def create_pod(self) -> None:
        self._created += 1
        qos, kube_class, requests = self.rng.choice(POD_SPECS)
        labels = {"koordinator.sh/qosClass": qos} if qos else {}
        # Names are reused for later pods.
        name = f"p{self.rng.randrange(12)}"
        if self.server.pod(name) is None:
            uid = f"uid-{name}-{self._created}"
            self.uids.add(uid)
            self.server.put(
                "pods",
                objects.pod(name, uid=uid, requests=requests, labels=labels, kube_class=kube_class),
            )

    def delete_pod(self) -> None:
        if (pod := self._some_pod()) is not None:
            self.server.delete("pods", _key(pod))

    def terminate_pod(self) -> None:
        if (pod := self._some_pod()) is not None:
            status = {**pod["status"], "phase": self.rng.choice(TERMINAL_PHASES)}
            self.server.put("pods", {**pod, "status": status})

    def start_pod(self) -> None:
        pod = self._some_pod()
        if pod is None or not pod["spec"]["nodeName"]:
            return
        if pod["status"]["phase"] == "Pending":
            started = f"2026-01-01T00:00:{self.rng.randrange(60):02}Z"
            status = {**pod["status"], "phase": "Running", "startTime": started}
            self.server.put("pods", {**pod, "status": status})

    def annotate_pod(self) -> None:
        if (pod := self._some_pod()) is not None:
            self.server.put("pods", _annotated(pod, {"other": str(self._created)}))

    def bind_by_another_scheduler(self) -> None:
        pod = self._some_pod()
        if self.binding and self.rng.random() < 0.5:
            _, node_offer = self.rng.choice(list(self.binding.values()))
            pod = self.server.pod(node_offer.pod_request.title.removeprefix("ns/"))
        if pod is not None and not pod["spec"]["nodeName"]:
            self.server.put("pods", _bound(pod, self.rng.choice(NODES), {}))

    def put_or_delete_object(self) -> None:
        kind, name = self.rng.choice(KINDS[1:]), self.rng.choice(NODES)
        if self.rng.random() < 0.4:
            self.server.delete(kind, ObjectKey("", name))
        elif kind == "nodes":
            self.server.put(kind, objects.node(name, labels={"a": str(self.rng.randrange(3))}))
        elif kind == "topologies":
            self._put_topology(name, self.rng.choice(POLICIES))
        else:
            self.server.put(kind, objects.devices(name, self.rng.randrange(1, 4)))

    def change_agent(self) -> None:
        name = self.rng.choice(NODES)
        if self.rng.random() < 0.3:
            self.server.delete("pods", ObjectKey("ns", f"agent-{name}"))
        else:
            self.server.put("pods", objects.agent(name, self.rng.random() < 0.7))

    def report_topology(self) -> None:
        name = self.rng.choice(NODES)
        topology = self.server.objects["topologies"].get(ObjectKey("", name))
        if topology is not None:
            self._put_topology(name, _policy(topology), omit_pods=self.rng.random() < 0.1)

    def _put_topology(self, name: str, policy: str, *, omit_pods: bool = False) -> None:
        """A report that counts the started pods of the node, with a random number of available
        CPUs; `omit_pods`: without a pod fingerprint."""
        started = [
            (key.namespace, key.name)
            for key, each in self.server.objects["pods"].items()
            if each["spec"]["nodeName"] == name and each["status"]["phase"] != "Pending"
        ]
        pods = None if omit_pods else started
        available = self.rng.choice((1000, 2000, 3000, 4000))
        self.server.put("topologies", objects.topology(name, 2, available, policy, pods))

    # actions of the scheduler
    def deliver_events(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.scheduler.deliver(self.rng.choice(KINDS), twice=self.rng.random() < 0.2)

    def relist(self) -> None:
        self.scheduler.relist(self.rng.choice(KINDS))

    def start_bind(self) -> None:
        pod, name = self._some_pod(), self.rng.choice(NODES)
        if pod is None or pod["spec"]["nodeName"]:
            return
        pod_request = request_of(from_object(pod))
        state = self.cluster.node(name)
        if state is None or self.cluster.ineligibility(name, pod_request) is not None:
            return
        answer = state.allocator.offer(pod_request)
        if isinstance(answer, NodeOffer):
            try:
                self.cluster.reserve(name, answer)
            except ReserveError:
                return
            self.binding[pod_request.uid] = name, answer

    def finish_bind(self) -> None:
        """The API server accepts the Binding of a pod that exists and is not bound."""
        if not self.binding:
            return
        uid = self.rng.choice(sorted(self.binding))
        name, node_offer = self.binding.pop(uid)
        pod = self._pod_of(node_offer)
        if pod is None or pod["spec"]["nodeName"]:
            self.cluster.release(uid)
            return
        if self.rng.random() < 0.2:  # rejected, for example by an admission policy
            self.cluster.release(uid)
            return
        self.server.put("pods", _bound(pod, name, node_offer.annotations()))
        self.cluster.confirm(uid)

    ACTIONS = (
        (create_pod, 6),
        (delete_pod, 2),
        (terminate_pod, 1),
        (start_pod, 4),
        (report_topology, 3),
        (annotate_pod, 1),
        (bind_by_another_scheduler, 1),
        (put_or_delete_object, 1),
        (change_agent, 1),
        (deliver_events, 8),
        (relist, 1),
        (start_bind, 8),
        (finish_bind, 6),
    )

    def step(self) -> None:
        actions, weights = zip(*self.ACTIONS, strict=True)
        self.rng.choices(actions, weights)[0](self)

    def settle(self) -> None:
        """Finishes all binds, delivers all events, and expires the overdue reservations."""
        while self.binding:
            self.finish_bind()
        # The results for plain pods depend on the order of pods, until a report counts all.
        for key, topology in list(self.server.objects["topologies"].items()):
            self._put_topology(key.name, _policy(topology))
        for kind in KINDS:
            self.scheduler.deliver_all(kind)
        self.scheduler.now += EXPIRY_SECONDS
        existing = {each["metadata"]["uid"] for each in self.server.objects["pods"].values()}
        for reservation in self.cluster.overdue():
            assert reservation.confirmed
            assert reservation.uid not in existing
            assert self.cluster.expire(reservation)

    def restore_nodes(self) -> None:
        """Creates the Node objects that were deleted."""
        for name in NODES:
            if ObjectKey("", name) not in self.server.objects["nodes"]:
                self.server.put("nodes", objects.node(name))
        self.scheduler.deliver_all("nodes")

    def check(self) -> None:
        for name in NODES:
            assigned = self._assigned(name)
            state = self.cluster.node(name)
            if state is not None:
                assert state.allocator.assigned_pods == assigned
            cpus = collections.Counter(
                cpu for each in assigned.values() for cpu in each.allocation.cpus
            )
            gpu_percent: collections.Counter[tuple[str, int]] = collections.Counter()
            for each in assigned.values():
                for device, amounts in each.devices.items():
                    gpu_percent[device] += amounts["koordinator.sh/gpu-core"]
            assert max(cpus.values(), default=0) <= 1
            assert max(gpu_percent.values(), default=0) <= 100
        reported = {
            each.uid for each in self.scheduler.mirrors["pods"].values().values() if each.node
        }
        for uid, (name, node_offer) in self.binding.items():
            reservation = self.cluster.reservation(uid)
            if reservation is None:
                # A watch has reported the outcome: bound by another client, terminated, or deleted.
                pod = self._pod_of(node_offer)
                assert uid in reported or pod is None or pod["status"]["phase"] in TERMINAL_PHASES
                continue
            assert (reservation.node, reservation.assigned) == (name, node_offer.assigned_pod())

    def _assigned(self, node: str) -> dict[str, AssignedPod]:
        """The allocations of the pods and the reservations on a node, which may be deleted."""
        found = {}
        for uid in self.uids:
            pod, reservation = self.cluster.pod(uid), self.cluster.reservation(uid)
            if pod is not None and pod.node == node and pod.assigned is not None:
                found[uid] = pod.assigned
            if reservation is not None and reservation.node == node:
                found[uid] = reservation.assigned
        return found

    def _pod_of(self, node_offer: NodeOffer) -> Object | None:
        """The stored pod of an offer; None if it was deleted."""
        pod = self.server.pod(node_offer.pod_request.title.removeprefix("ns/"))
        return pod if pod is not None and pod["metadata"]["uid"] == node_offer.uid else None

    def _some_pod(self) -> Object | None:
        pods = self.server.objects["pods"]
        names = sorted(key.name for key in pods if not key.name.startswith("agent-"))
        return pods[ObjectKey("ns", self.rng.choice(names))] if names else None


def state_of(cluster: SchedulerCache, uids: Collection[str]) -> dict[str, object]:
    """The state of the cache, as the extender and the pages read it: of the cluster, of each node,
    and of the pods with these uids."""
    nodes = {
        state.name: (
            state.node,
            state.topology,
            state.devices,
            state.agent_ready,
            dict(state.allocator.assigned_pods),
            state.allocator.properties,
            [state.allocator.offer(each) for each in POD_REQUESTS],
        )
        for state in cluster.nodes()
    }
    # The reasons are different for a node without a Node object and an unknown node.
    reasons = {name: [cluster.ineligibility(name, each) for each in POD_REQUESTS] for name in NODES}
    return {
        "nodes": nodes,
        "ineligibility": reasons,
        "device resources": cluster.pod_defaults.device_resources,
        "pods": {uid: cluster.pod(uid) for uid in uids},
        "reservations": {uid: cluster.reservation(uid) for uid in uids},
    }


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 120))
def test_the_state_after_any_history_follows_from_the_objects(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    for _ in range(steps):
        world.step()
        world.check()
    world.settle()
    world.check()
    rebuilt = Scheduler(world.server)
    for kind in world.rng.sample(KINDS, len(KINDS)):
        rebuilt.relist(kind)
    assert state_of(world.cluster, world.uids) == state_of(rebuilt.cluster, world.uids)
    # A node shows the state that was kept for it once its Node object exists again.
    world.restore_nodes()
    rebuilt.relist("nodes")
    world.check()
    assert state_of(world.cluster, world.uids) == state_of(rebuilt.cluster, world.uids)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 80))
def test_the_change_log_contains_every_node_whose_result_changed(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    cluster = world.cluster

    def results(name: str, least: NodeChange) -> list[Any]:
        state = cluster.node(name)
        return [
            (cluster.ineligibility(name, each), state and state.allocator.offer(each))
            for each in POD_REQUESTS
            if RequirementsCheck(cluster, PodRequirements(each)).least_change is least
        ]

    for least, log in (
        (NodeChange.DEVICE_ZONES, cluster.changed_since),
        (NodeChange.ZONE_REPORT, cluster.zones_changed_since),
        (NodeChange.ALL, cluster.placement_changed_since),
    ):
        before, serial = {name: results(name, least) for name in NODES}, log(0).serial
        for _ in range(steps):
            world.step()
            changes = log(serial)
            now, serial = {name: results(name, least) for name in NODES}, changes.serial
            assert changes.names is not None
            assert {name for name in NODES if now[name] != before[name]} <= changes.names
            before = now


def _policy(topology: Object) -> str:
    attributes = {each["name"]: each["value"] for each in topology["attributes"]}
    return str(attributes["topologyManagerPolicy"])


def _key(body: Object) -> ObjectKey:
    return ObjectKey(body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _metadata(body: Object) -> WatchedMetadata:
    metadata = body["metadata"]
    key = _key(body)
    uid = metadata.get("uid", key.name)
    return WatchedMetadata(
        name=key.name,
        namespace=key.namespace,
        uid=uid,
        resource_version=metadata["resourceVersion"],
    )


def _annotated(pod: Object, annotations: dict[str, str]) -> Object:
    metadata = pod["metadata"]
    return {
        **pod,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], **annotations}},
    }


def _bound(pod: Object, node: str, annotations: dict[str, str]) -> Object:
    pod = _annotated(pod, annotations)
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}
