"""Random histories of requests: nothing is allocated twice, no allocation of a pod is lost, and
a scheduler that reads all objects restores the same state."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.kube.errors import (
    ConflictError,
    NotFoundError,
    RejectedError,
    ServerError,
    UnreachableError,
)
from agent.kube.objects import ChangeKind
from agent.model.pod.apiobjects import GROUP_ANNOTATION, ApiPod
from agent.scheduler.state.binder import ReservationExpiry
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pods_api import BindingApi
from tests.fixtures.fleet import CARDS, NOTHING, SMALL, Model, gpu_pod, gpu_share_pod, ls_pod, owner
from tests.fixtures.overlaps import overlaps
from tests.scheduler import clusters

Object = dict[str, Any]
NODES: dict[str, Model] = {"a": SMALL, "b": SMALL, "c": CARDS}
KINDS = (
    owner(8, 8),
    owner(12, 4, "FullPCPUs"),
    ls_pod("3", 4),
    gpu_pod(2, 8),
    gpu_share_pod(50),
    NOTHING,
)
REQUEST_SECONDS = 60.0
"""The --request-timeout of kube-apiserver."""
OUTCOMES = ("bound", "bound", "bound", "refused", "lost answer", "lost request", "late", "error")
"""How a Binding request ends."""


class Api:
    """A Transport to an API server of pods. `outcome`: that of the next Binding. `events`: what the
    watch has not reported yet. `late`: Bindings that may still take effect."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.events: list[tuple[ChangeKind, Object]] = []
        self.outcome = "bound"
        self.now = 0.0
        self.late: list[tuple[float, Object]] = []

    def create(self, path: str, binding: Object) -> bytes:
        outcome, self.outcome = self.outcome, "bound"
        if outcome == "refused":
            raise RejectedError(path)
        if outcome == "error":
            raise ServerError(path)
        if outcome == "lost request":
            raise UnreachableError(path)
        if outcome == "late":
            self.late.append((self.now, binding))
            raise UnreachableError(path)
        self.bind(binding)
        if outcome == "lost answer":
            raise UnreachableError(path)
        return b"{}"

    def get(self, path: str, query: object = None) -> bytes:
        pod = self.pods.get(path.rpartition("/")[2])
        if pod is None:
            raise NotFoundError(path)
        return json.dumps(pod).encode()

    def bind(self, binding: Object) -> None:
        pod = self.pods.get(binding["metadata"]["name"])
        if pod is None:
            raise NotFoundError("deleted")
        if pod["spec"]["nodeName"] or pod["metadata"]["uid"] != binding["metadata"]["uid"]:
            raise ConflictError("bound")
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"]["annotations"] |= binding["metadata"]["annotations"]
        self.events.append((ChangeKind.MODIFIED, json.loads(json.dumps(pod))))

    def pass_time(self, now: float) -> None:
        """Late Bindings end after REQUEST_SECONDS."""
        self.now = now
        self.late = [each for each in self.late if now - each[0] <= REQUEST_SECONDS]

    def delete(self, name: str) -> None:
        pod = self.pods.pop(name)
        if pod["spec"]["nodeName"]:
            self.events.append((ChangeKind.DELETED, pod))


class World:
    """An API server, a scheduler, and the actions of other clients."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.api = Api()
        self.now = 0.0
        self.created = 0
        self.start()

    def step(self) -> None:
        """A random action; an action that is listed more often is more likely."""
        self.rng.choice(
            (
                *(self.create_pod,) * 5,
                *(self.schedule_pod,) * 9,
                *(self.delete_pod,) * 2,
                *(self.report_events,) * 4,
                self.bind_without_filter,
                self.apply_late_binding,
                self.pass_time,
                self.recreate_node,
                self.start,
            )
        )()

    def start(self) -> None:
        """Starts another process, after the Bindings of the previous one have ended."""
        self.api.late.clear()
        self.cluster = SchedulerCache(clock=lambda: self.now)
        for name, model in NODES.items():
            clusters.add_node(self.cluster, name, model)
        for pod in self.api.pods.values():
            clusters.report_pod(self.cluster, pod, ChangeKind.ADDED)
        self.api.events.clear()
        transport: Any = self.api
        bindings = BindingApi(transport)
        self.extender = clusters.Extender(self.cluster, bindings, clock=lambda: self.now)
        self.expiry = ReservationExpiry(self.cluster, self.extender.groups, bindings)

    def create_pod(self) -> None:
        self.created += 1
        body = self.rng.choice(KINDS).pod(f"p{self.created}")
        if group := self.rng.choice(("", "", "", "g/2", "h/3")):
            body["metadata"]["annotations"][GROUP_ANNOTATION] = group
        self.api.pods[f"p{self.created}"] = body

    def schedule_pod(self) -> None:
        """Filters the pod, and binds it unless another client interferes."""
        pod = self.pending_pod()
        if pod is None:
            return
        names = self.rng.sample(sorted(NODES), self.rng.randint(1, len(NODES)))
        fits = self.extender.fits(pod, names)
        assert self.extender.scores(pod, fits).keys() <= set(fits) <= set(names)
        if not fits or self.rng.random() < 0.1:
            return
        outcome = self.api.outcome = self.rng.choice(OUTCOMES)
        node = self.rng.choice(fits)
        error = self.extender.bind(pod, node)
        self.api.outcome = "bound"
        if not error:
            assert outcome in ("bound", "lost answer")
            assert self.api.pods[pod.name]["spec"]["nodeName"] == node

    def bind_without_filter(self) -> None:
        """Binds a pod that the previous leader filtered."""
        pod = self.pending_pod()
        if pod is not None:
            self.extender.bind(pod, self.rng.choice(sorted(NODES)))

    def delete_pod(self) -> None:
        if self.api.pods:
            self.api.delete(self.rng.choice(sorted(self.api.pods)))

    def apply_late_binding(self) -> None:
        if self.api.late:
            with contextlib.suppress(ConflictError, NotFoundError):
                self.api.bind(self.api.late.pop(0)[1])

    def report_events(self, count: int = 2) -> None:
        for kind, pod in self.api.events[:count]:
            clusters.report_pod(self.cluster, pod, kind)
        del self.api.events[:count]

    def pass_time(self, seconds: int | None = None) -> None:
        """The API server ends each request after REQUEST_SECONDS."""
        seconds = seconds or self.rng.choice((1, 30, 70))
        self.now += seconds
        self.api.pass_time(self.now)
        self.expiry.step()

    def recreate_node(self) -> None:
        name = self.rng.choice(sorted(NODES))
        clusters.remove_node(self.cluster, name)
        clusters.add_node(self.cluster, name, NODES[name])

    def pending_pod(self) -> ApiPod | None:
        names = [name for name, each in self.api.pods.items() if not each["spec"]["nodeName"]]
        return clusters.api_pod(self.api.pods[self.rng.choice(names)]) if names else None

    def check(self) -> None:
        """Nothing is allocated twice, and no allocation of a pod is lost."""
        stored = restored(self.api)
        for name in NODES:
            in_annotations, shared = assigned_pods(stored, name)
            assert shared == ()
            in_cache, shared = assigned_pods(self.cluster, name)
            # A watch that lags still reports deleted pods, whose CPUs other pods already have.
            alive = {each["metadata"]["uid"] for each in self.api.pods.values()}
            assert not [each for each in shared if len(alive & {*each.uids}) > 1]
            for uid, assigned in in_annotations.items():
                assert in_cache.get(uid) == assigned, f"{uid} on {name}"

    def settle(self) -> None:
        """All requests in progress end."""
        for _ in range(3):
            self.report_events(len(self.api.events))
            self.pass_time(70)
        self.extender.filter(clusters.pod(KINDS[0], "last"), sorted(NODES))
        stored = restored(self.api)
        for name in NODES:
            assert assigned_pods(self.cluster, name) == assigned_pods(stored, name)


@given(st.integers(0, 2**32))
@example(seed=591)  # a Binding that ends just before the API server cancels it
@settings(max_examples=40)
def test_no_history_allocates_twice_or_loses_an_allocation(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(60):
        world.step()
        world.check()
    world.settle()


def restored(api: Api) -> SchedulerCache:
    """The cache of a scheduler that reads all objects."""
    cluster = clusters.cluster(NODES)
    for pod in api.pods.values():
        clusters.report_pod(cluster, pod, ChangeKind.ADDED)
    return cluster


def assigned_pods(cluster: SchedulerCache, name: str) -> tuple[dict[str, Any], Any]:
    state = cluster.node(name)
    assert state is not None
    return dict(state.allocator.assigned_pods), overlaps(state.allocator)
