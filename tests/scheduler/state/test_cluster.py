from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.pod.apiobjects import from_object
from agent.model.pod_request import PodRequest, request_of
from agent.model.settings import plugin_args
from agent.scheduler.state import records
from agent.scheduler.state.cluster import (
    EXPIRY_SECONDS,
    ChangedNodes,
    ChangeLog,
    ReserveError,
    SchedulerCache,
)
from agent.scheduler.state.node_info import NodeInfo
from agent.scheduler.state.pod_info import pod_info
from agent.scheduler.state.records import AgentSelector
from tests.allocate.node_allocator.builders import pod
from tests.kept import kept_bytes
from tests.kube.clock import Clock
from tests.scheduler import objects
from tests.scheduler.clusters import allocated_pods, ineligibility

ADDED, DELETED = ChangeKind.ADDED, ChangeKind.DELETED
PLAIN = objects.pod_request({"cpu": "1"})
GPU = objects.pod_request({"nvidia.com/gpu": "1"})
LSR = objects.pod_request({"cpu": "2"}, qos="LSR")


@pytest.fixture
def cluster(clock: Clock) -> SchedulerCache:
    """A cluster of nodes n1 and n2, each with all its objects and an agent."""
    cache = SchedulerCache(clock=clock)
    for name in ("n1", "n2"):
        cache.nodes_changed([objects.node_change(objects.node(name))])
        cache.topologies_changed([objects.topology_change(objects.topology(name))])
        cache.devices_changed([objects.devices_change(objects.devices(name))])
        cache.pods_changed([objects.pod_change(objects.agent(name))])
    return cache


def report_pod(cluster: SchedulerCache, *args: Any, **more: Any) -> None:
    cluster.pods_changed([objects.pod_change(objects.pod(*args, **more))])


def delete_pod(cluster: SchedulerCache, *args: Any, **more: Any) -> None:
    cluster.pods_changed([objects.pod_change(objects.pod(*args, **more), DELETED)])


def offered(name: str) -> NodeOffer:
    return NodeOffer(objects.pod_request({"cpu": "1"}, name=name))


def test_nodes_without_a_ready_agent_have_a_reason(cluster: SchedulerCache) -> None:
    assert cluster.unable_nodes() == {}
    agent = objects.agent("n1")
    agent["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    cluster.pods_changed([objects.pod_change(agent)])
    assert cluster.unable_nodes() == {"n1": "agent-not-ready"}
    cluster.pods_changed([objects.pod_change(agent, DELETED)])
    assert cluster.unable_nodes() == {"n1": "no-agent"}
    cluster.topologies_changed([objects.topology_change(objects.topology("n1"), DELETED)])
    assert cluster.unable_nodes() == {"n1": "no-report"}
    other = objects.node("n3")
    other["metadata"]["labels"] = {"kubernetes.io/os": "windows"}
    cluster.nodes_changed([objects.node_change(other)])
    assert cluster.unable_nodes() == {"n1": "no-report"}


def test_pods_that_kube_scheduler_has_not_tried_are_counted(cluster: SchedulerCache) -> None:
    read = records.pods(AgentSelector(), scheduler="ours")

    def change(reason: str | None, kind: ChangeKind = ADDED, **more: Any) -> None:
        body = objects.pod("a", **more)
        body["spec"]["schedulerName"] = "ours"
        if reason is not None:
            condition = {"type": "PodScheduled", "status": "False", "reason": reason}
            body["status"]["conditions"] = [condition]
        key = ObjectKey("ns", "a")
        cluster.pods_changed([Change(kind, key, read(json.dumps(body).encode()))])

    for reason, untried in (
        (None, 1),
        ("Unschedulable", 0),
        ("SchedulerError", 1),
        ("SchedulingGated", 0),
    ):
        change(reason)
        assert cluster.untried == untried, reason
    change(None)
    change(None, node="n1")
    assert cluster.untried == 0
    change(None)
    change(None, DELETED)
    assert cluster.untried == 0


# Pods
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_counts_while_it_is_bound_and_has_not_ended(
    cluster: SchedulerCache, phase: str
) -> None:
    report_pod(cluster, "a")
    assert not allocated_pods(cluster)
    report_pod(cluster, "a", "n1")
    assert allocated_pods(cluster) == {"a"}
    assert cluster.node_of("uid-a") == "n1"
    report_pod(cluster, "a", "n1", phase=phase)
    assert not allocated_pods(cluster)
    assert cluster.node_of("uid-a") is None
    delete_pod(cluster, "a", "n1", phase=phase)
    assert not allocated_pods(cluster)


def test_a_pod_deleted_in_an_old_state_has_no_allocation(cluster: SchedulerCache) -> None:
    cluster.topologies_changed(
        [objects.topology_change(objects.topology("n1", policy="single-numa-node", pods=()))]
    )
    body = objects.pod("a", "n1", cpus="0-1", phase="Running")
    cluster.pods_changed([objects.pod_change(body)])
    cluster.pods_changed([objects.pod_change(objects.pod("a"), DELETED)])
    assert allocated_pods(cluster) == set()
    state = cluster.node("n1")
    assert state is not None
    assert isinstance(state.allocator.offer(PLAIN), NodeOffer)


def test_pods_are_kept_without_their_node(cluster: SchedulerCache) -> None:
    report_pod(cluster, "a", "n1")
    cluster.nodes_changed([objects.node_change(objects.node("n1"), DELETED)])
    assert cluster.node("n1") is None
    cluster.nodes_changed([objects.node_change(objects.node("n1"))])
    assert allocated_pods(cluster) == {"a"}


def test_no_memory_is_kept_for_deleted_nodes() -> None:
    cache = SchedulerCache()

    def add_and_delete(node: str) -> None:
        cache.nodes_changed([objects.node_change(objects.node(node))])
        cache.topologies_changed([objects.topology_change(objects.topology(node))])
        cache.devices_changed([objects.devices_change(objects.devices(node))])
        report_pod(cache, f"a-{node}", node)
        cache.pods_changed([objects.pod_change(objects.agent(node))])
        cache.reserve(node, offered(f"b-{node}"))
        cache.pods_changed([objects.pod_change(objects.agent(node, phase="Failed"))])
        cache.topologies_changed([objects.topology_change(objects.topology(node), DELETED)])
        cache.devices_changed([objects.devices_change(objects.devices(node), DELETED)])
        cache.nodes_changed([objects.node_change(objects.node(node), DELETED)])
        delete_pod(cache, f"a-{node}", node)
        cache.release(f"uid-b-{node}")
        cache.pods_changed([objects.pod_change(objects.agent(node, phase="Failed"), DELETED)])

    add_and_delete("first")
    nodes = [f"n{number}" for number in range(50)]
    assert kept_bytes(lambda: [add_and_delete(each) for each in nodes]) < 500 * len(nodes)


# Reservations
def test_a_reservation_stays_until_the_pod_is_reported_as_bound(
    cluster: SchedulerCache, clock: Clock
) -> None:
    cluster.reserve("n1", offered("a"))
    assert allocated_pods(cluster) == {"a"}
    report_pod(cluster, "a")
    clock.now = 1e6
    assert not cluster.overdue()
    cluster.confirm("uid-a")
    report_pod(cluster, "a")
    assert allocated_pods(cluster) == {"a"}
    report_pod(cluster, "a", "n1", requests={"cpu": "1"})
    assert cluster.reservation("uid-a") is None
    assert allocated_pods(cluster) == {"a"}


def test_a_pod_that_another_client_bound_elsewhere_releases_its_reservation(
    cluster: SchedulerCache,
) -> None:
    cluster.reserve("n1", offered("a"))
    report_pod(cluster, "a", "n2")
    assert (allocated_pods(cluster), allocated_pods(cluster, "n2")) == (set(), {"a"})


def test_annotations_override_the_reservation(cluster: SchedulerCache) -> None:
    cluster.reserve("n1", offered("a"))
    report_pod(cluster, "a", "n1", requests={"cpu": "1"}, cpus="5")
    state = cluster.node("n1")
    assert state is not None
    assert str(state.allocator.assigned_pods["uid-a"].allocation.cpus) == "5"


def test_a_confirmed_reservation_is_overdue_after_its_time(
    cluster: SchedulerCache, clock: Clock
) -> None:
    cluster.reserve("n1", offered("a"))
    cluster.confirm("uid-a")
    clock.now = EXPIRY_SECONDS - 0.1
    assert not cluster.overdue()
    clock.now = EXPIRY_SECONDS
    (overdue,) = cluster.overdue()
    assert (overdue.title, overdue.node, overdue.confirmed) == ("ns/a", "n1", True)
    assert allocated_pods(cluster) == {"a"}
    assert cluster.expire(overdue)
    assert not allocated_pods(cluster)


def test_a_reservation_that_was_confirmed_again_does_not_expire(
    cluster: SchedulerCache, clock: Clock
) -> None:
    cluster.reserve("n1", offered("a"))
    cluster.confirm("uid-a")
    clock.now = EXPIRY_SECONDS
    (overdue,) = cluster.overdue()
    cluster.confirm("uid-a")
    assert not cluster.expire(overdue)
    assert allocated_pods(cluster) == {"a"}
    assert not cluster.overdue()


@pytest.mark.parametrize("sent", [False, True])
def test_a_second_concurrent_bind_of_a_pod_is_refused(cluster: SchedulerCache, sent: bool) -> None:
    cluster.reserve("n1", offered("a"))
    if sent:
        cluster.confirm("uid-a")
    with pytest.raises(ReserveError, match="a bind of pod ns/a to n1 is in progress"):
        cluster.reserve("n2", offered("a"))
    assert (allocated_pods(cluster), allocated_pods(cluster, "n2")) == ({"a"}, set())


def test_nothing_is_reserved_for_a_bound_pod(cluster: SchedulerCache) -> None:
    report_pod(cluster, "a", "n1")
    with pytest.raises(ReserveError, match="pod ns/a is bound to n1"):
        cluster.reserve("n2", offered("a"))


def test_nothing_is_reserved_on_a_missing_node(cluster: SchedulerCache) -> None:
    with pytest.raises(ReserveError, match="node n3 is not known"):
        cluster.reserve("n3", offered("a"))


# Eligibility
XPU = "example.com/xpu"
LISTED = request_of(from_object(objects.pod("new", requests={XPU: "1"})), {XPU})


def xpu_devices(node: str, *resources: str, kind: ChangeKind = ADDED) -> Change[Any]:
    devices = [Device("xpu", name, at, {name: 100}) for at, name in enumerate(resources)]
    return objects.devices_change(device_object.encode(node, devices), kind)


def unreadable_devices(node: str) -> Change[Any]:
    body = device_object.encode(node, [])
    body["spec"]["devices"] = [{"type": "xpu", "resources": {XPU: "x"}}]
    return objects.devices_change(body)


def without_node(cluster: SchedulerCache) -> None:
    cluster.nodes_changed([objects.node_change(objects.node("n1"), DELETED)])


def without_topology(cluster: SchedulerCache) -> None:
    cluster.topologies_changed([objects.topology_change(objects.topology("n1"), DELETED)])


def with_invalid_topology(cluster: SchedulerCache) -> None:
    body = objects.topology("n1")
    body["zones"][0]["resources"][0]["capacity"] = "x"
    cluster.topologies_changed([objects.topology_change(body)])


def without_devices(cluster: SchedulerCache) -> None:
    cluster.devices_changed([objects.devices_change(objects.devices("n1"), DELETED)])


def with_invalid_devices(cluster: SchedulerCache) -> None:
    cluster.devices_changed([unreadable_devices("n1")])


INVALID_TOPOLOGY = "NodeResourceTopology n1: zones[0].resources['cpu'].capacity"
INVALID_DEVICES = "Device n1: spec.devices[0].resources['example.com/xpu']"


@pytest.mark.parametrize(
    ("change", "plain", "lsr", "gpu", "listed"),
    [
        pytest.param(lambda cluster: None, "", "", "", "", id="complete"),
        pytest.param(without_node, *["the node is not known"] * 4, id="no Node"),
        pytest.param(
            without_topology, "", "it has no NodeResourceTopology", "", "", id="no topology"
        ),
        pytest.param(with_invalid_topology, "", INVALID_TOPOLOGY, "", "", id="invalid topology"),
        pytest.param(without_devices, "", "", "it has no Device", "", id="no Device"),
        pytest.param(with_invalid_devices, "", "", *[INVALID_DEVICES] * 2, id="invalid Device"),
    ],
)
def test_a_node_is_ineligible_for_pods_that_need_a_missing_object(
    cluster: SchedulerCache,
    change: Callable[[SchedulerCache], None],
    plain: str,
    lsr: str,
    gpu: str,
    listed: str,
) -> None:
    report_pod(cluster, "a", "n1")
    change(cluster)
    for pod_request, reason in ((PLAIN, plain), (LSR, lsr), (GPU, gpu), (LISTED, listed)):
        shown = ineligibility(cluster, "n1", pod_request)
        assert reason in shown
        assert bool(reason) is bool(shown)


def test_a_fault_of_a_node_is_logged_once(
    cluster: SchedulerCache, caplog: pytest.LogCaptureFixture
) -> None:
    label = {"node.koordinator.sh/cpu-bind-policy": "Odd"}
    for capacity in ("8", "16"):
        body = objects.node("n1", labels=label)
        body["status"]["allocatable"]["memory"] = capacity
        cluster.nodes_changed([objects.node_change(body)])
        state = cluster.node("n1")
        assert state is not None
        assert state.allocator.properties.faults
    assert caplog.text.count("node n1: ") == 1


@pytest.mark.parametrize("pod_request", [LSR, GPU])
def test_pods_that_need_an_agent_wait_until_it_is_ready(
    cluster: SchedulerCache, pod_request: PodRequest
) -> None:
    cluster.pods_changed([objects.pod_change(objects.agent("n1", ready=False))])
    assert ineligibility(cluster, "n1", pod_request) == "its agent is not Ready"
    assert cluster.ineligibility("n1", PLAIN) is None
    cluster.pods_changed([objects.pod_change(objects.agent("n1"))])
    assert cluster.ineligibility("n1", pod_request) is None
    cluster.pods_changed([objects.pod_change(objects.agent("n1"), DELETED)])
    assert ineligibility(cluster, "n1", pod_request) == "it has no agent"


def test_one_ready_agent_of_two_is_enough(cluster: SchedulerCache) -> None:
    cluster.pods_changed([objects.pod_change(objects.agent("n1", ready=False))])
    cluster.pods_changed([objects.pod_change(objects.agent("n1", uid="new"))])
    assert cluster.ineligibility("n1", LSR) is None
    cluster.pods_changed([objects.pod_change(objects.agent("n1", ready=False), DELETED)])
    assert cluster.ineligibility("n1", LSR) is None


def test_without_a_selector_no_agent_is_required() -> None:
    cache = SchedulerCache(agents=False)
    cache.nodes_changed([objects.node_change(objects.node("n1"))])
    cache.topologies_changed([objects.topology_change(objects.topology("n1"))])
    assert cache.ineligibility("n1", LSR) is None


# Changes
def changes(cluster: SchedulerCache, *actions: Any) -> list[set[str]]:
    """The nodes that each of the actions changed."""
    found = []
    for action in actions:
        serial = cluster.changed_since(0).serial
        action()
        names = cluster.changed_since(serial).names
        assert names is not None
        found.append(set(names))
    return found


def test_every_change_that_matters_is_logged(cluster: SchedulerCache) -> None:
    assert changes(
        cluster,
        lambda: report_pod(cluster, "a", "n1"),
        lambda: report_pod(cluster, "a", "n1", cpus="0"),
        lambda: delete_pod(cluster, "a", "n1"),
        lambda: cluster.reserve("n2", offered("b")),
        lambda: cluster.release("uid-b"),
        lambda: cluster.nodes_changed([objects.node_change(objects.node("n1", labels={"a": "b"}))]),
        lambda: cluster.topologies_changed([objects.topology_change(objects.topology("n2", 4))]),
        lambda: cluster.devices_changed([objects.devices_change(objects.devices("n1"), DELETED)]),
        lambda: cluster.pods_changed([objects.pod_change(objects.agent("n1", ready=False))]),
    ) == [{"n1"}, {"n1"}, {"n1"}, {"n2"}, {"n2"}, {"n1"}, {"n2"}, {"n1"}, {"n1"}]


def test_irrelevant_changes_are_not_logged(cluster: SchedulerCache) -> None:
    report_pod(cluster, "a", "n1")
    cluster.reserve("n2", offered("b"))
    heartbeat = objects.node("n1", annotations={"other": "new"})
    heartbeat["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "now"}]
    assert (
        changes(
            cluster,
            lambda: cluster.nodes_changed([objects.node_change(heartbeat)]),
            lambda: cluster.topologies_changed([objects.topology_change(objects.topology("n1"))]),
            lambda: cluster.devices_changed([objects.devices_change(objects.devices("n1"))]),
            lambda: report_pod(cluster, "a", "n1", phase="Running", annotations={"other": "new"}),
            lambda: report_pod(cluster, "c"),
            lambda: report_pod(cluster, "done", "n1", phase="Succeeded"),
            lambda: cluster.pods_changed([objects.pod_change(objects.agent("n1"))]),
            lambda: cluster.confirm("uid-b"),
        )
        == [set()] * 8
    )


def test_a_pod_reported_as_bound_to_its_reservation_changes_nothing(
    cluster: SchedulerCache,
) -> None:
    cluster.reserve("n1", offered("a"))
    assert changes(cluster, lambda: report_pod(cluster, "a", "n1", requests={"cpu": "1"})) == [
        set()
    ]


def test_two_threads_never_reserve_the_same_pod(cluster: SchedulerCache) -> None:
    start, reserved = threading.Barrier(8), []

    def race(number: int) -> None:
        start.wait()
        for each in range(50):
            try:
                cluster.reserve(f"n{number % 2 + 1}", offered(f"p{each}"))
            except ReserveError:
                continue
            reserved.append(each)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(reserved) == list(range(50))
    assert allocated_pods(cluster) | allocated_pods(cluster, "n2") == {
        f"p{each}" for each in range(50)
    }
    assert not allocated_pods(cluster) & allocated_pods(cluster, "n2")


def node_with_rules(**settings: Any) -> tuple[SchedulerCache, NodeInfo]:
    """A cache of one node, whose rules have these settings."""
    args = plugin_args.decode({"kind": "CPUOrchestrationPluginArgs", **settings})
    cache = SchedulerCache(rules=AllocatorRules(scoring=args))
    cache.nodes_changed([objects.node_change(objects.node("n1"))])
    cache.topologies_changed([objects.topology_change(objects.topology("n1"))])
    state = cache.node("n1")
    assert state is not None
    return cache, state


def test_every_node_uses_the_rules_of_the_cache() -> None:
    """The default policy is single-numa-node, and only CPUs are scored."""
    strategy = {"measures": ["Resources"], "resources": [{"name": "cpu"}]}
    _, state = node_with_rules(
        numaTopologyAlignmentPolicy="SingleNUMANode", scoringStrategy=strategy
    )
    offer = state.allocator.offer(LSR)
    assert isinstance(offer, NodeOffer)
    assert offer.score == 50
    assert offer.assigned_pod().allocation.amounts == {0: {"cpu": 2000}}
    assert state.allocator.properties.allocatable["cpu"] == 8000


def test_the_rules_of_the_cache_have_the_default_bind_policy() -> None:
    cache, state = node_with_rules(
        defaultCPUBindPolicy="ConstrainedBurst", numaTopologyAlignmentPolicy="None"
    )
    shares = pod("s", {"cpu": 1}, "LS", limits={"cpu": 2})
    request = pod_info(shares, cache.pod_defaults).pod_request
    offer = state.allocator.offer(request)
    assert isinstance(offer, NodeOffer)
    assert offer.assigned_pod().allocation.amounts == {0: {"cpu": 1000}}


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        ([], set()),
        ([xpu_devices("n1", XPU)], {XPU}),
        ([xpu_devices("n1", XPU), xpu_devices("n2", XPU, "a.b/c")], {XPU, "a.b/c"}),
        ([xpu_devices("n1", XPU), xpu_devices("n2", XPU), xpu_devices("n1")], {XPU}),
        ([xpu_devices("n1", XPU), xpu_devices("n1", XPU, kind=DELETED)], set()),
        ([xpu_devices("n1", XPU), xpu_devices("n1", "a.b/c")], {"a.b/c"}),
        # Pods must not get the devices of n1 as plain resources.
        ([xpu_devices("n1", XPU), unreadable_devices("n1")], {XPU}),
        ([xpu_devices("n1", XPU), unreadable_devices("n1"), xpu_devices("n1")], set()),
    ],
)
def test_the_device_resources_are_those_of_all_device_objects(
    changes: list[Change[Any]], listed: set[str]
) -> None:
    cache = SchedulerCache()
    for change in changes:
        cache.devices_changed([change])
    assert cache.pod_defaults.device_resources == listed


@given(names=st.lists(st.sampled_from("abcdef"), max_size=30), serial=st.integers(0, 30))
def test_the_log_has_every_change_after_a_serial(names: list[str], serial: int) -> None:
    log = ChangeLog()
    for name in names:
        log.add(name)
    assert log.since(serial) == ChangedNodes(len(names), frozenset(names[serial:]))


@given(names=st.lists(st.sampled_from("abcdef"), max_size=30), serial=st.integers(0, 30))
def test_dropped_changes_count_as_all_nodes(names: list[str], serial: int) -> None:
    log = ChangeLog(max_names=3)
    for name in names:
        log.add(name)
    changes = log.since(serial)
    if changes.names is None:
        assert len(set(names[serial:])) > 3
    else:
        assert changes.names == set(names[serial:])


def test_the_log_has_one_entry_for_each_name() -> None:
    log = ChangeLog()
    for number in range(1000):
        log.add(f"n{number % 5}")
    assert log.since(0).names == {f"n{number}" for number in range(5)}
