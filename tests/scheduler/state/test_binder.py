from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.allocate.node_allocation import pod_allocation
from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.model.devices.device_allocation import allocated
from agent.model.pod.apiobjects import GROUP_ANNOTATION, PodGroup
from agent.scheduler.state.binder import SNAPSHOT_SECONDS, Binder, LostRaceError
from agent.scheduler.state.pod_info import PodInfoCache, PodName
from agent.scheduler.state.pods_api import BindError, BindingApi
from tests.fixtures.fleet import CARDS, SMALL, Kind, gpu_pod, gpu_share_pod, owner
from tests.fixtures.overlaps import overlaps
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler import clusters
from tests.scheduler.podserver import PodServer

EIGHT = owner(8, 8)


class Environment(clusters.Extender):
    """The extender of two small nodes and one with cards."""

    def __init__(self, server: Server, transport: Transport) -> None:
        self.server = server
        self.pods = PodServer(server)
        cluster = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS})
        super().__init__(cluster, BindingApi(transport))

    def put(self, kind: Kind, name: str, **notes: str) -> PodName:
        """Creates a pod on the API server. It is not filtered."""
        body = kind.pod(name)
        body["metadata"]["annotations"] |= notes
        self.pods.pods["default", name] = body
        return PodName("default", name, f"uid-{name}")

    def put_and_bind(self, kind: Kind, name: str, node: str = "a") -> None:
        self.binder.bind(self.put(kind, name), node)

    def held(self, node: str = "a") -> set[str]:
        state = self.cluster.node(node)
        assert state is not None
        return {uid for uid in state.allocator.assigned_pods if not uid.startswith("uid-agent")}


@pytest.fixture
def env(server: Server) -> Iterator[Environment]:
    with contextlib.closing(Transport(FileAccess(server.url), connections=32)) as transport:
        yield Environment(server, transport)


def test_a_bound_pod_has_its_allocation_in_annotations(env: Environment) -> None:
    env.put_and_bind(EIGHT, "p")
    pod = env.pods.pods["default", "p"]
    assert pod["spec"]["nodeName"] == "a"
    claim = pod_allocation("uid-p", "default/p", pod["metadata"]["annotations"])
    assert len(claim.cpus) == 8
    state = env.cluster.node("a")
    assert state is not None
    assert state.allocator.assigned_pods["uid-p"].allocation.cpus == claim.cpus


def test_a_pod_with_devices_has_them_in_its_annotations(env: Environment) -> None:
    env.put_and_bind(gpu_pod(2, 8), "p", "c")
    notes = env.pods.pods["default", "p"]["metadata"]["annotations"]
    assert len(allocated(notes)) == 2
    assert len(pod_allocation("uid-p", "default/p", notes).cpus) == 8


def test_a_pod_that_was_filtered_is_not_read_again(env: Environment) -> None:
    name = env.put(EIGHT, "p")
    env.pod_infos.of(clusters.pod(EIGHT, "p"))
    env.binder.bind(name, "a")
    assert [each.method for each in env.server.requests] == ["POST"]
    assert env.pod_infos.get("uid-p") is None, "a bound pod is not filtered again"


def test_a_refused_binding_releases_the_reservation(env: Environment) -> None:
    env.pods.intercept = lambda connection, _: reply(connection, 403, status(403, "No"))
    with pytest.raises(BindError, match="403"):
        env.put_and_bind(EIGHT, "p")
    assert env.held() == set()
    env.pods.intercept = None
    env.put_and_bind(EIGHT, "p", "b")
    assert env.held("b") == {"uid-p"}


def test_cpus_of_a_binding_with_unknown_outcome_stay_reserved(
    env: Environment,
) -> None:
    env.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        env.put_and_bind(owner(32, 8), "p")
    assert env.held() == {"uid-p"}
    reservation = env.cluster.reservation("uid-p")
    assert reservation is not None
    assert reservation.confirmed
    env.pods.intercept = None
    with pytest.raises(LostRaceError, match="node a: cpu: not enough free CPUs"):
        env.put_and_bind(EIGHT, "q")
    assert env.binder.lost_races == 1


def test_after_an_internal_error_the_outcome_is_unknown_and_no_bind_is_in_progress(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(BindingApi, "bind", fails)
        with pytest.raises(ZeroDivisionError):
            env.put_and_bind(EIGHT, "p")
    reservation = env.cluster.reservation("uid-p")
    assert reservation is not None
    assert reservation.until is not None, "otherwise it would never expire"
    env.put_and_bind(EIGHT, "p")


def test_a_binding_with_unknown_outcome_may_be_sent_again(env: Environment) -> None:
    env.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        env.put_and_bind(owner(32, 8), "p")
    env.pods.intercept = None
    with pytest.raises(BindError, match="an earlier Binding of pod default/p to a may take effect"):
        env.put_and_bind(owner(32, 8), "p", "b")
    env.put_and_bind(owner(32, 8), "p")
    assert env.held() == {"uid-p"}
    assert env.held("b") == set()
    sent = [json.loads(each.body) for each in env.server.requests if each.method == "POST"]
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_a_reservation_does_not_expire_while_its_binding_is_sent_again(env: Environment) -> None:
    """The first Binding has timed out, and the pod had no node a moment ago."""
    env.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        env.put_and_bind(EIGHT, "p")
    overdue = env.cluster.reservation("uid-p")
    assert overdue is not None
    expired: list[bool] = []
    env.pods.intercept = lambda *_: expired.append(env.cluster.expire(overdue))
    env.put_and_bind(EIGHT, "p")
    assert expired == [False]
    assert env.held() == {"uid-p"}


def test_a_refusal_does_not_determine_the_outcome_of_an_earlier_binding(env: Environment) -> None:
    env.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        env.put_and_bind(EIGHT, "p")
    env.pods.intercept = lambda connection, _: reply(connection, 403, status(403, "No"))
    with pytest.raises(BindError, match="403"):
        env.put_and_bind(EIGHT, "p")
    assert env.held() == {"uid-p"}


def test_a_binding_that_took_effect_late_is_not_sent_twice(env: Environment) -> None:
    late: list[Request] = []

    def no_answer(_: socket.socket, request: Request) -> bool:
        late.append(request)
        return False

    env.pods.intercept = no_answer
    with pytest.raises(BindError):
        env.put_and_bind(EIGHT, "p")
    env.pods.bind(late[0])
    env.pods.intercept = None
    env.binder.bind(PodName("default", "p", "uid-p"), "a")
    assert env.held() == {"uid-p"}
    assert len(env.pods.bindings) == 1


def test_a_pod_is_bound_by_one_call_at_a_time(env: Environment) -> None:
    """The first Binding is in progress when kube-scheduler, after its timeout, sends another."""
    started, may_end = threading.Event(), threading.Event()

    def slow(_: socket.socket, __: Request) -> None:
        started.set()
        may_end.wait(10)

    name = env.put(EIGHT, "p")
    env.pods.intercept = slow
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(env.binder.bind, name, "a")
        assert started.wait(10)
        with pytest.raises(BindError, match="pod default/p is being bound already"):
            env.binder.bind(name, "b")
        may_end.set()
        first.result()
    assert env.held() == {"uid-p"}
    assert env.held("b") == set()


def test_a_pod_that_is_already_bound_there_is_not_changed(env: Environment) -> None:
    """kube-scheduler calls again after its timeout, before and after the watch reports the pod."""
    env.put_and_bind(EIGHT, "p")
    pod, name = env.pods.pods["default", "p"], PodName("default", "p", "uid-p")
    for _ in range(2):
        env.binder.bind(name, "a")
        with pytest.raises(BindError, match="pod default/p is bound to node a"):
            env.binder.bind(name, "b")
        clusters.report_pod(env.cluster, pod)
    assert len(env.pods.bindings) == 1
    assert env.held() == {"uid-p"}
    assert env.held("b") == set()


def test_a_deleted_pod_is_reported_as_missing(env: Environment) -> None:
    with pytest.raises(BindError, match="pod default/q no longer exists"):
        env.binder.bind(PodName("default", "q", "uid-q"), "a")


def test_an_invalid_pod_is_not_bound(env: Environment) -> None:
    invalid = env.put(EIGHT, "p", **{GROUP_ANNOTATION: "many"})
    with pytest.raises(BindError, match=r"group: 'many' is not NAME/SIZE"):
        env.binder.bind(invalid, "a")
    assert not env.pods.bindings


def test_a_node_that_cannot_run_the_pod_is_named(env: Environment) -> None:
    with pytest.raises(BindError, match="node x: "):
        env.put_and_bind(EIGHT, "p", "x")
    clusters.add_node(env.cluster, "d", SMALL, agent=False)
    with pytest.raises(BindError, match=r"node d: .*agent"):
        env.put_and_bind(EIGHT, "p", "d")
    assert not env.pods.bindings


def test_a_process_that_lost_the_lease_sends_no_binding(
    env: Environment, transport: Transport
) -> None:
    """While it reads a pod that was not filtered, another process becomes the leader."""
    leads, answer = [True], env.server.answer

    def slow(server: Server, connection: socket.socket, request: Request) -> bool:
        leads[:] = [False]
        return bool(answer and answer(server, connection, request))

    env.server.answer = slow
    binder = Binder(
        env.cluster,
        env.groups,
        BindingApi(transport),
        env.pod_infos,
        lambda: None if leads == [True] else "s2 leads",
    )
    with pytest.raises(BindError, match="s2 leads"):
        binder.bind(env.put(EIGHT, "p"), "a")
    assert [each.method for each in env.server.requests] == ["GET"]
    assert env.held() == set()


def test_members_of_a_group_are_bound_with_their_parts(env: Environment) -> None:
    group = PodGroup("default", "g", 2)
    names = [env.put(EIGHT, name, **{GROUP_ANNOTATION: "g/2"}) for name in ("p", "q")]
    with env.cluster.lock:
        assert env.groups.reserve(group, clusters.pod_request(EIGHT, "p"), "a") is None
    assert len(env.held()) == 2
    with pytest.raises(BindError, match="group default/g is assigned to node a"):
        env.binder.bind(names[0], "b")
    for name in names:
        env.binder.bind(name, "a")
    assert env.held() == {"uid-p", "uid-q"}


def test_a_member_that_is_not_bound_releases_its_part(env: Environment) -> None:
    name = env.put(EIGHT, "p", **{GROUP_ANNOTATION: "g/2"})
    env.pods.intercept = lambda connection, _: reply(connection, 422, status(422, "No"))
    with pytest.raises(BindError):
        env.binder.bind(name, "a")
    assert env.held() == {"default/g/0", "default/g/1"}


@pytest.mark.parametrize(
    ("kind", "nodes", "each"),
    [(owner(2, 1), ["a"], 16), (owner(2, 1), ["a", "b"], 16), (gpu_share_pod(50), ["c"], 16)],
    ids=["CPUs of one node", "CPUs of two nodes", "halves of cards"],
)
def test_32_parallel_callers_get_different_cpus(
    env: Environment, kind: Kind, nodes: list[str], each: int
) -> None:
    """There are more pods than the nodes have room for: the others get an error."""
    names = [env.put(kind, f"p{place}") for place in range(40)]

    def one(place: int) -> bool:
        try:
            env.binder.bind(names[place], nodes[place % len(nodes)])
        except LostRaceError:
            return False
        return True

    with ThreadPoolExecutor(32) as pool:
        bound = sum(pool.map(one, range(len(names))))
    assert bound == min(len(names), each * len(nodes))
    assert env.binder.lost_races == len(names) - bound
    for node in nodes:
        state = env.cluster.node(node)
        assert state is not None
        assert overlaps(state.allocator) == ()
    restored = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS})
    for pod in env.pods.pods.values():
        clusters.report_pod(restored, pod)
    for node in nodes:
        state = restored.node(node)
        assert state is not None
        assert overlaps(state.allocator) == (), "the CPUs of the pods' annotations"


class Race(clusters.Extender):
    """A bind of a pod while another scheduler binds pods to the same node. `now` is the time."""

    def __init__(self, server: Server, transport: Transport) -> None:
        self.now = 100.0
        self.pods = PodServer(server)
        cluster = clusters.cluster({"a": SMALL}, lambda: self.now)
        self.now += 10.0  # long after the agent's pod was reported
        pod_infos = PodInfoCache(clock=lambda: self.now)
        super().__init__(cluster, BindingApi(transport), pod_infos=pod_infos)

    def filtered(self, name: str, cpu: str) -> PodName:
        """A pod without Koordinator resources that kube-scheduler has just filtered."""
        kind = Kind({"cpu": cpu})
        self.pods.pods["default", name] = kind.pod(name)
        self.pod_infos.of_filter(clusters.pod(kind, name))
        return PodName("default", name, f"uid-{name}")

    def bind_by_other(self, name: str, cpu: str) -> None:
        """The watch reports a pod that another scheduler bound."""
        clusters.report_pod(self.cluster, Kind({"cpu": cpu}).pod(name, node="a"))

    def holds(self, name: str) -> bool:
        state = self.cluster.node("a")
        assert state is not None
        return f"uid-{name}" in state.allocator.assigned_pods


@pytest.fixture
def race(server: Server, transport: Transport) -> Race:
    return Race(server, transport)


def test_a_bind_fails_if_another_scheduler_bound_a_pod_after_the_filter(
    race: Race,
) -> None:
    pod = race.filtered("p", "4")
    race.bind_by_other("other", "30")
    with pytest.raises(
        LostRaceError, match=r"node a: another scheduler bound a pod to it.* milli-CPU"
    ):
        race.binder.bind(pod, "a")
    assert not race.holds("p"), "the reservation is released"
    assert race.binder.lost_races == 1
    assert race.pods.bindings == []


def test_a_bind_succeeds_if_the_pod_of_another_scheduler_leaves_enough(race: Race) -> None:
    pod = race.filtered("p", "4")
    race.bind_by_other("other", "8")
    race.binder.bind(pod, "a")
    assert race.holds("p")


def test_a_pod_in_the_snapshot_of_kube_scheduler_does_not_fail_the_bind(race: Race) -> None:
    """kube-scheduler counts resized and terminating pods by other rules: a bind must not fail every
    time because Topolet counts more."""
    race.bind_by_other("other", "30")
    race.now += SNAPSHOT_SECONDS
    race.binder.bind(race.filtered("p", "4"), "a")
    assert race.holds("p")


def test_a_pod_reported_just_before_the_filter_may_not_be_in_the_snapshot(race: Race) -> None:
    race.bind_by_other("other", "30")
    race.now += SNAPSHOT_SECONDS / 2
    with pytest.raises(LostRaceError):
        race.binder.bind(race.filtered("p", "4"), "a")


def test_a_pod_bound_by_topolet_does_not_fail_the_next_bind(race: Race) -> None:
    first, second = race.filtered("first", "30"), race.filtered("second", "4")
    race.binder.bind(first, "a")
    clusters.report_pod(race.cluster, race.pods.pods["default", "first"])
    race.binder.bind(second, "a")
    assert race.holds("second"), "kube-scheduler assumes the first pod as soon as it is bound"


def test_a_bind_fails_if_the_node_has_its_maximum_of_pods(race: Race) -> None:
    pod = race.filtered("p", "1m")
    for number in range(256):
        race.bind_by_other(f"other-{number}", "0")
    with pytest.raises(LostRaceError, match="of 256 pods"):
        race.binder.bind(pod, "a")
