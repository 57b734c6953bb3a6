"""Random histories of requests: nothing is allocated twice, no allocation of a pod is lost, and
another scheduler that reads the objects has the same state."""

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
from agent.model.apiobjects import GROUP_ANNOTATION, ApiPod
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
)
from agent.scheduler.state.binder import Binder, ReservationExpiry
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache
from agent.scheduler.state.pods_api import BindingApi
from tests.fixtures.fleet import CARDS, NOTHING, SMALL, Model, carder, owner, part, sharer
from tests.scheduler import clusters

Object = dict[str, Any]
NODES: dict[str, Model] = {"a": SMALL, "b": SMALL, "c": CARDS}
KINDS = (owner(8, 8), owner(12, 4, "FullPCPUs"), sharer("3", 4), carder(2, 8), part(50), NOTHING)
REQUEST_SECONDS = 60.0
"""The --request-timeout of kube-apiserver."""
ENDS = ("well", "well", "well", "refused", "silent, done", "silent, not done", "late", "trouble")


class Api:
    """A Transport to an API server of pods; `end` determines how a request ends."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.told: list[tuple[ChangeKind, Object]] = []
        self.end = "well"
        self.now = 0.0
        self.late: list[tuple[float, Object]] = []

    def create(self, path: str, binding: Object) -> bytes:
        end, self.end = self.end, "well"
        if end == "refused":
            raise RejectedError(path)
        if end == "trouble":
            raise ServerError(path)
        if end == "silent, not done":
            raise UnreachableError(path)
        if end == "late":
            self.late.append((self.now, binding))
            raise UnreachableError(path)
        self.bind(binding)
        if end == "silent, done":
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
            raise NotFoundError("gone")
        if pod["spec"]["nodeName"] or pod["metadata"]["uid"] != binding["metadata"]["uid"]:
            raise ConflictError("bound")
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"]["annotations"] |= binding["metadata"]["annotations"]
        self.told.append((ChangeKind.MODIFIED, json.loads(json.dumps(pod))))

    def pass_time(self, now: float) -> None:
        """Requests end after REQUEST_SECONDS."""
        self.now = now
        self.late = [each for each in self.late if now - each[0] <= REQUEST_SECONDS]

    def delete(self, name: str) -> None:
        pod = self.pods.pop(name)
        if pod["spec"]["nodeName"]:
            self.told.append((ChangeKind.DELETED, pod))


class World:
    """One API server, one scheduler, and the actions of other clients."""

    def __init__(self, luck: random.Random) -> None:
        self.luck = luck
        self.api = Api()
        self.now = 0.0
        self.made = 0
        self.bound = 0
        self.start()

    def step(self) -> None:
        """A random event; an event that is listed more often is more likely."""
        self.luck.choice(
            (
                *(self.pod_comes,) * 5,
                *(self.pod_is_scheduled,) * 9,
                *(self.pod_goes,) * 2,
                *(self.watch_tells,) * 4,
                self.pod_is_bound_unasked,
                self.binding_comes_true_late,
                self.time_passes,
                self.node_is_made_anew,
                self.start,
            )
        )()

    def start(self) -> None:
        """Another process starts, after the Bindings of the previous one have ended."""
        self.api.late.clear()
        self.cluster = SchedulerCache(clock=lambda: self.now)
        for name, model in NODES.items():
            clusters.add(self.cluster, name, model)
        for pod in self.api.pods.values():
            clusters.tell(self.cluster, pod, ChangeKind.ADDED)
        self.api.told.clear()
        transport: Any = self.api
        groups, pod_infos = GroupReservations(self.cluster, clock=lambda: self.now), PodInfoCache()
        binder = Binder(self.cluster, groups, BindingApi(transport), pod_infos)
        self.verbs = clusters.handlers(self.cluster, groups, binder.bind, pod_infos)
        self.expiry = ReservationExpiry(self.cluster, groups, BindingApi(transport))

    def pod_comes(self) -> None:
        self.made += 1
        body = self.luck.choice(KINDS).pod(f"p{self.made}")
        if group := self.luck.choice(("", "", "", "g/2", "h/3")):
            body["metadata"]["annotations"][GROUP_ANNOTATION] = group
        self.api.pods[f"p{self.made}"] = body

    def pod_is_scheduled(self) -> None:
        """Filters the pod, and binds it unless another client interferes."""
        pod = self.waiting()
        if pod is None:
            return
        names = self.luck.sample(sorted(NODES), self.luck.randint(1, len(NODES)))
        fits = self.verbs.filter(ExtenderArgs(pod, names)).node_names
        scores = self.verbs.prioritize(ExtenderArgs(pod, fits))
        entries = json.loads(bytes(scores))
        assert {each["Host"] for each in entries} <= set(fits) <= set(names)
        if not fits or self.luck.random() < 0.1:
            return
        end = self.api.end = self.luck.choice(ENDS)
        node = self.luck.choice(list(fits))
        error = self.verbs.bind(ExtenderBindingArgs(pod.name, pod.namespace, pod.uid, node)).error
        self.api.end = "well"
        if not error:
            assert end in ("well", "silent, done")
            assert self.api.pods[pod.name]["spec"]["nodeName"] == node
            self.bound += 1

    def pod_is_bound_unasked(self) -> None:
        """Binds a pod that the previous leader filtered."""
        pod = self.waiting()
        if pod is not None:
            node = self.luck.choice(sorted(NODES))
            self.verbs.bind(ExtenderBindingArgs(pod.name, pod.namespace, pod.uid, node))

    def pod_goes(self) -> None:
        if self.api.pods:
            self.api.delete(self.luck.choice(sorted(self.api.pods)))

    def binding_comes_true_late(self) -> None:
        if self.api.late:
            with contextlib.suppress(ConflictError, NotFoundError):
                self.api.bind(self.api.late.pop(0)[1])

    def watch_tells(self, count: int = 2) -> None:
        for kind, pod in self.api.told[:count]:
            clusters.tell(self.cluster, pod, kind)
        del self.api.told[:count]

    def time_passes(self, seconds: int | None = None) -> None:
        """The API server ends each request after REQUEST_SECONDS."""
        seconds = seconds or self.luck.choice((1, 30, 70))
        self.now += seconds
        self.api.pass_time(self.now)
        self.expiry.step()

    def node_is_made_anew(self) -> None:
        name = self.luck.choice(sorted(NODES))
        clusters.remove(self.cluster, name)
        clusters.add(self.cluster, name, NODES[name])

    def waiting(self) -> ApiPod | None:
        names = [name for name, each in self.api.pods.items() if not each["spec"]["nodeName"]]
        return clusters.read(self.api.pods[self.luck.choice(names)]) if names else None

    def check(self) -> None:
        """Nothing is allocated twice, and no allocation of a pod is lost."""
        written = rebuilt(self.api)
        for name in NODES:
            there, overlaps = holdings(written, name)
            assert overlaps == ()
            here, overlaps = holdings(self.cluster, name)
            # A watch that lags reports deleted pods, whose CPUs are allocated to others already.
            alive = {each["metadata"]["uid"] for each in self.api.pods.values()}
            assert not [each for each in overlaps if len(alive & {*each.uids}) > 1]
            for uid, holding in there.items():
                assert here.get(uid) == holding, f"{uid} on {name}"

    def settle(self) -> None:
        """All requests in progress end."""
        for _ in range(3):
            self.watch_tells(len(self.api.told))
            self.time_passes(70)
        self.verbs.filter(ExtenderArgs(clusters.pod(KINDS[0], "last"), sorted(NODES)))
        written = rebuilt(self.api)
        for name in NODES:
            assert holdings(self.cluster, name) == holdings(written, name)


@given(st.integers(0, 2**32))
@example(seed=591)  # a Binding that ends just before the API server cancels it
@settings(max_examples=40)
def test_nothing_overlaps_and_nothing_is_lost_in_any_history(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(60):
        world.step()
        world.check()
    world.settle()


def test_histories_bind_enough_pods() -> None:
    """Otherwise the test above proves nothing."""
    world = World(random.Random(7))
    for _ in range(400):
        world.step()
    assert world.bound > 25


def rebuilt(api: Api) -> SchedulerCache:
    """The state that another scheduler reads."""
    cluster = clusters.cluster(NODES)
    for pod in api.pods.values():
        clusters.tell(cluster, pod, ChangeKind.ADDED)
    return cluster


def holdings(cluster: SchedulerCache, name: str) -> tuple[dict[str, Any], Any]:
    state = cluster.node(name)
    assert state is not None
    return dict(state.allocator.holdings), state.allocator.overlaps()
