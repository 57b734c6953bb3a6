from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from agent.allocate.node_allocation import pod_allocation
from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.model.apiobjects import GROUP_ANNOTATION, PodGroup
from agent.model.devices.device_allocation import allocated
from agent.scheduler.state.binder import SNAPSHOT_SECONDS, Binder, LostRaceError
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache, PodName
from agent.scheduler.state.pods_api import BindError, BindingApi
from tests.fixtures.fleet import CARDS, NOTHING, SMALL, Kind, carder, owner, part
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler import clusters
from tests.scheduler.podserver import PodServer

EIGHT = owner(8, 8)


class Bench(msgspec.Struct):
    """All parts that a bind uses."""

    cluster: SchedulerCache
    groups: GroupReservations
    pod_infos: PodInfoCache
    pods: PodServer
    server: Server
    binder: Binder

    def put(self, kind: Kind, name: str, **notes: str) -> PodName:
        """A pod that exists on the API server, and that was not filtered."""
        body = kind.pod(name)
        body["metadata"]["annotations"] |= notes
        self.pods.pods["default", name] = body
        return PodName("default", name, f"uid-{name}")

    def bind(self, kind: Kind, name: str, node: str = "a") -> None:
        self.binder.bind(self.put(kind, name), node)

    def held(self, node: str = "a") -> set[str]:
        state = self.cluster.node(node)
        assert state is not None
        return {uid for uid in state.allocator.holdings if not uid.startswith("uid-agent")}


@pytest.fixture
def bench() -> Iterator[Bench]:
    with fake_api_server.serving() as server:
        transport = Transport(FileAccess(server.url), connections=32)
        cluster = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS})
        groups, pod_infos = GroupReservations(cluster), PodInfoCache()
        binder = Binder(cluster, groups, BindingApi(transport), pod_infos)
        yield Bench(cluster, groups, pod_infos, PodServer(server), server, binder)
        transport.close()


def test_a_bound_pod_has_its_allocation_in_annotations(bench: Bench) -> None:
    bench.bind(EIGHT, "p")
    pod = bench.pods.pods["default", "p"]
    assert pod["spec"]["nodeName"] == "a"
    claim = pod_allocation("uid-p", "default/p", pod["metadata"]["annotations"])
    assert len(claim.cpus) == 8
    state = bench.cluster.node("a")
    assert state is not None
    assert state.allocator.holdings["uid-p"].allocation.cpus == claim.cpus


def test_a_pod_with_devices_has_them_in_its_annotations(bench: Bench) -> None:
    bench.bind(carder(2, 8), "p", "c")
    notes = bench.pods.pods["default", "p"]["metadata"]["annotations"]
    assert len(allocated(notes)) == 2
    assert len(pod_allocation("uid-p", "default/p", notes).cpus) == 8


def test_a_pod_that_needs_nothing_is_bound_too(bench: Bench) -> None:
    bench.bind(NOTHING, "p", "b")
    assert bench.pods.bindings[0]["metadata"]["annotations"] == {}


def test_a_pod_that_was_filtered_is_not_read_again(bench: Bench) -> None:
    name = bench.put(EIGHT, "p")
    bench.pod_infos.of(clusters.pod(EIGHT, "p"))
    bench.binder.bind(name, "a")
    assert [each.method for each in bench.server.requests] == ["POST"]
    assert bench.pod_infos.get("uid-p") is None, "a bound pod is not filtered any more"


def test_the_watch_reports_the_reserved_allocation(bench: Bench) -> None:
    bench.bind(EIGHT, "p")
    before = bench.cluster.changed_since(0).serial
    clusters.report_pod(bench.cluster, bench.pods.pods["default", "p"])
    assert bench.cluster.bound("uid-p") == "a"
    assert bench.cluster.reservation("uid-p") is None
    assert bench.cluster.changed_since(0).serial == before, "nothing that an answer hangs on"


@pytest.mark.parametrize("code", [403, 404, 409, 422, 429])
def test_a_refused_binding_releases_the_reservation(bench: Bench, code: int) -> None:
    bench.pods.intercept = lambda connection, _: reply(connection, code, status(code, "No"))
    with pytest.raises(BindError, match=str(code)):
        bench.bind(EIGHT, "p")
    assert bench.held() == set()
    bench.pods.intercept = None
    bench.bind(EIGHT, "p", "b")
    assert bench.held("b") == {"uid-p"}


def test_cpus_of_a_binding_with_unknown_outcome_stay_reserved(
    bench: Bench,
) -> None:
    bench.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        bench.bind(owner(32, 8), "p")
    assert bench.held() == {"uid-p"}
    reservation = bench.cluster.reservation("uid-p")
    assert reservation is not None
    assert reservation.sent
    bench.pods.intercept = None
    with pytest.raises(LostRaceError, match="node a: cpu: not enough free CPUs"):
        bench.bind(EIGHT, "q")
    assert bench.binder.lost_races == 1


def test_after_an_internal_error_the_outcome_is_unknown_and_no_bind_is_in_progress(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(BindingApi, "bind", fails)
        with pytest.raises(ZeroDivisionError):
            bench.bind(EIGHT, "p")
    reservation = bench.cluster.reservation("uid-p")
    assert reservation is not None
    assert reservation.until is not None, "it would be kept forever"
    bench.bind(EIGHT, "p")


def test_a_binding_with_unknown_outcome_may_be_sent_again(bench: Bench) -> None:
    bench.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        bench.bind(owner(32, 8), "p")
    bench.pods.intercept = None
    with pytest.raises(BindError, match="an earlier Binding of pod default/p to a may take effect"):
        bench.bind(owner(32, 8), "p", "b")
    bench.bind(owner(32, 8), "p")
    assert bench.held() == {"uid-p"}
    assert bench.held("b") == set()
    sent = [json.loads(each.body) for each in bench.server.requests if each.method == "POST"]
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_a_reservation_does_not_expire_while_its_binding_is_sent_again(bench: Bench) -> None:
    """The first Binding has timed out, and the pod had no node a moment ago."""
    bench.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        bench.bind(EIGHT, "p")
    overdue = bench.cluster.reservation("uid-p")
    assert overdue is not None
    ended: list[bool] = []
    bench.pods.intercept = lambda *_: ended.append(bench.cluster.expire(overdue))
    bench.bind(EIGHT, "p")
    assert ended == [False]
    assert bench.held() == {"uid-p"}


def test_a_refusal_does_not_determine_the_outcome_of_an_earlier_binding(bench: Bench) -> None:
    bench.pods.intercept = lambda *_: False
    with pytest.raises(BindError):
        bench.bind(EIGHT, "p")
    bench.pods.intercept = lambda connection, _: reply(connection, 403, status(403, "No"))
    with pytest.raises(BindError, match="403"):
        bench.bind(EIGHT, "p")
    assert bench.held() == {"uid-p"}


def test_a_binding_that_took_effect_late_is_not_sent_twice(bench: Bench) -> None:
    late: list[Request] = []

    def silent(_: socket.socket, request: Request) -> bool:
        late.append(request)
        return False

    bench.pods.intercept = silent
    with pytest.raises(BindError):
        bench.bind(EIGHT, "p")
    bench.pods.bind(late[0])
    bench.pods.intercept = None
    bench.binder.bind(PodName("default", "p", "uid-p"), "a")
    assert bench.held() == {"uid-p"}
    assert len(bench.pods.bindings) == 1


def test_a_lost_answer_is_found_to_be_a_bound_pod(bench: Bench) -> None:
    def silent(_: socket.socket, request: Request) -> bool:
        bench.pods.bind(request)
        return False

    bench.pods.intercept = silent
    bench.bind(EIGHT, "p")
    assert bench.held() == {"uid-p"}


def test_a_pod_is_bound_by_one_call_at_a_time(bench: Bench) -> None:
    """The first Binding is in progress when kube-scheduler, after its timeout, sends another."""
    arrived, leave = threading.Event(), threading.Event()

    def slow(_: socket.socket, __: Request) -> None:
        arrived.set()
        leave.wait(10)

    name = bench.put(EIGHT, "p")
    bench.pods.intercept = slow
    transport = Transport(FileAccess(bench.server.url))
    binder = Binder(bench.cluster, bench.groups, BindingApi(transport), bench.pod_infos)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(binder.bind, name, "a")
        assert arrived.wait(10)
        with pytest.raises(BindError, match="pod default/p is being bound already"):
            binder.bind(name, "b")
        leave.set()
        first.result()
    transport.close()
    assert bench.held() == {"uid-p"}
    assert bench.held("b") == set()


def test_the_lock_is_free_during_an_api_call(bench: Bench) -> None:
    arrived, leave = threading.Event(), threading.Event()

    def slow(_: socket.socket, __: Request) -> None:
        arrived.set()
        leave.wait(10)

    bench.pods.intercept = slow
    transport = Transport(FileAccess(bench.server.url))
    binder = Binder(bench.cluster, bench.groups, BindingApi(transport), bench.pod_infos)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(binder.bind, bench.put(EIGHT, "p"), "a")
        assert arrived.wait(10)
        assert bench.cluster.lock.acquire(timeout=5)
        bench.cluster.lock.release()
        leave.set()
        first.result()
    transport.close()


def test_a_pod_that_is_already_bound_there_is_not_changed(bench: Bench) -> None:
    """kube-scheduler timed out, and calls again; at first the watch has not reported the pod
    yet."""
    bench.bind(EIGHT, "p")
    pod, name = bench.pods.pods["default", "p"], PodName("default", "p", "uid-p")
    for _ in range(2):
        bench.binder.bind(name, "a")
        with pytest.raises(BindError, match="pod default/p is bound to node a"):
            bench.binder.bind(name, "b")
        clusters.report_pod(bench.cluster, pod)
    assert len(bench.pods.bindings) == 1
    assert bench.held() == {"uid-p"}
    assert bench.held("b") == set()


def test_a_deleted_pod_is_reported_as_missing(bench: Bench) -> None:
    with pytest.raises(BindError, match="pod default/q no longer exists"):
        bench.binder.bind(PodName("default", "q", "uid-q"), "a")


def test_an_invalid_pod_is_not_bound(bench: Bench) -> None:
    odd = bench.put(EIGHT, "p", **{GROUP_ANNOTATION: "many"})
    with pytest.raises(BindError, match=r"group: 'many' is not NAME/SIZE"):
        bench.binder.bind(odd, "a")
    assert not bench.pods.bindings


def test_a_node_that_cannot_hold_the_pod_is_named(bench: Bench) -> None:
    with pytest.raises(BindError, match="node x: "):
        bench.bind(EIGHT, "p", "x")
    clusters.add_node(bench.cluster, "d", SMALL, agent=False)
    with pytest.raises(BindError, match=r"node d: .*agent"):
        bench.bind(EIGHT, "p", "d")
    assert not bench.pods.bindings


def test_a_former_leader_sends_no_binding(bench: Bench) -> None:
    """The read of a pod that was not filtered takes long: another process leads by then."""
    leads, answer = [True], bench.server.answer

    def slow(server: Server, connection: socket.socket, request: Request) -> bool:
        leads[:] = [False]
        return bool(answer and answer(server, connection, request))

    bench.server.answer = slow
    transport = Transport(FileAccess(bench.server.url))
    binder = Binder(
        bench.cluster,
        bench.groups,
        BindingApi(transport),
        bench.pod_infos,
        lambda: None if leads == [True] else "s2 leads",
    )
    with pytest.raises(BindError, match="s2 leads"):
        binder.bind(bench.put(EIGHT, "p"), "a")
    transport.close()
    assert [each.method for each in bench.server.requests] == ["GET"]
    assert bench.held() == set()


def test_members_of_a_group_take_their_parts(bench: Bench) -> None:
    group = PodGroup("default", "g", 2)
    names = [bench.put(EIGHT, name, **{GROUP_ANNOTATION: "g/2"}) for name in ("p", "q")]
    with bench.cluster.lock:
        assert bench.groups.reserve(group, clusters.pod_request(EIGHT, "p"), "a") is None
    assert len(bench.held()) == 2
    with pytest.raises(BindError, match="group default/g is assigned to node a"):
        bench.binder.bind(names[0], "b")
    for name in names:
        bench.binder.bind(name, "a")
    assert bench.held() == {"uid-p", "uid-q"}


def test_a_member_that_is_not_bound_releases_its_part(bench: Bench) -> None:
    name = bench.put(EIGHT, "p", **{GROUP_ANNOTATION: "g/2"})
    bench.pods.intercept = lambda connection, _: reply(connection, 422, status(422, "No"))
    with pytest.raises(BindError):
        bench.binder.bind(name, "a")
    assert bench.held() == {"default/g/0", "default/g/1"}


@pytest.mark.parametrize(
    ("kind", "nodes", "each"),
    [(owner(2, 1), ["a"], 16), (owner(2, 1), ["a", "b"], 16), (part(50), ["c"], 16)],
    ids=["CPUs of one node", "CPUs of two nodes", "halves of cards"],
)
def test_32_parallel_callers_get_different_cpus(
    bench: Bench, kind: Kind, nodes: list[str], each: int
) -> None:
    """More pods are bound to a node than it has room for: the others get an error."""
    names = [bench.put(kind, f"p{place}") for place in range(40)]

    def one(place: int) -> bool:
        try:
            bench.binder.bind(names[place], nodes[place % len(nodes)])
        except LostRaceError:
            return False
        return True

    with ThreadPoolExecutor(32) as pool:
        bound = sum(pool.map(one, range(len(names))))
    assert bound == min(len(names), each * len(nodes))
    assert bench.binder.lost_races == len(names) - bound
    for node in nodes:
        state = bench.cluster.node(node)
        assert state is not None
        assert state.allocator.overlaps() == ()
    written = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS})
    for pod in bench.pods.pods.values():
        clusters.report_pod(written, pod)
    for node in nodes:
        state = written.node(node)
        assert state is not None
        assert state.allocator.overlaps() == (), "the CPUs of the pods' annotations"


class Race:
    """A bind of a pod while another scheduler binds pods to the same node. `now` is the time."""

    def __init__(self, server: Server) -> None:
        self.now = 100.0
        self.pods = PodServer(server)
        self.transport = Transport(FileAccess(server.url))
        self.cluster = clusters.cluster({"a": SMALL}, lambda: self.now)
        self.now += 10.0  # the agent's pod is there for long
        self.pod_infos = PodInfoCache(clock=lambda: self.now)
        groups = GroupReservations(self.cluster)
        bindings = BindingApi(self.transport)
        self.binder = Binder(self.cluster, groups, bindings, self.pod_infos)

    def filtered(self, name: str, cpu: str) -> PodName:
        """A pod without needs that kube-scheduler has just filtered."""
        kind = Kind({"cpu": cpu})
        self.pods.pods["default", name] = kind.pod(name)
        self.pod_infos.of_filter(clusters.pod(kind, name))
        return PodName("default", name, f"uid-{name}")

    def foreign(self, name: str, cpu: str) -> None:
        """The watch reports a pod that another scheduler bound."""
        clusters.report_pod(self.cluster, Kind({"cpu": cpu}).pod(name, node="a"))

    def holds(self, name: str) -> bool:
        state = self.cluster.node("a")
        assert state is not None
        return f"uid-{name}" in state.allocator.holdings


@pytest.fixture
def race() -> Iterator[Race]:
    with fake_api_server.serving() as server:
        it = Race(server)
        yield it
        it.transport.close()


def test_a_pod_of_another_scheduler_that_took_the_cpu_after_the_filter_fails_the_bind(
    race: Race,
) -> None:
    pod = race.filtered("p", "4")
    race.foreign("other", "30")
    with pytest.raises(
        LostRaceError, match=r"node a: another scheduler bound a pod to it.* milli-CPU"
    ):
        race.binder.bind(pod, "a")
    assert not race.holds("p"), "the reservation is released"
    assert race.binder.lost_races == 1
    assert race.pods.bindings == []


def test_a_pod_of_another_scheduler_that_leaves_enough_does_not_matter(race: Race) -> None:
    pod = race.filtered("p", "4")
    race.foreign("other", "8")
    race.binder.bind(pod, "a")
    assert race.holds("p")


def test_a_pod_that_kube_scheduler_knew_at_the_filter_does_not_matter(race: Race) -> None:
    """kube-scheduler counts resized and terminating pods by rules of its own: a bind must not fail
    for ever because Topolet counts more."""
    race.foreign("other", "30")
    race.now += SNAPSHOT_SECONDS
    race.binder.bind(race.filtered("p", "4"), "a")
    assert race.holds("p")


def test_a_pod_that_came_just_before_the_filter_may_not_be_in_its_snapshot(race: Race) -> None:
    race.foreign("other", "30")
    race.now += SNAPSHOT_SECONDS / 2
    with pytest.raises(LostRaceError):
        race.binder.bind(race.filtered("p", "4"), "a")


def test_our_own_binding_is_not_one_of_another_scheduler(race: Race) -> None:
    first, second = race.filtered("first", "30"), race.filtered("second", "4")
    race.binder.bind(first, "a")
    clusters.report_pod(race.cluster, race.pods.pods["default", "first"])
    race.binder.bind(second, "a")
    assert race.holds("second"), "kube-scheduler has assumed the first pod"


def test_the_number_of_pods_of_a_node_counts_too(race: Race) -> None:
    pod = race.filtered("p", "1m")
    for number in range(256):
        race.foreign(f"other-{number}", "0")
    with pytest.raises(LostRaceError, match="of 256 pods"):
        race.binder.bind(pod, "a")
