"""Pods on a node whose kubelet has the static CPU policy: the CPUs that the scheduler counts, and
the annotations that it corrects."""

from __future__ import annotations

import json
import socket
import urllib.parse
from typing import Any

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Refusal
from agent.kube.objects import ChangeKind
from agent.kube.transport import Transport
from agent.model.nrt.node_annotations import CPU_MANAGER_POLICY, POD_CPU_ALLOCS
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_patches import FREE_WRITES, Corrections
from tests.kube.clock import Clock
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler import objects

Object = dict[str, Any]


def topology(
    name: str = "n1", assigned: dict[str, str] | None = None, policy: str = "static"
) -> Object:
    """Two NUMA nodes with CPUs 0-3 and 4-7; 0 is reserved. `assigned`: CPUs by pod uid."""
    topology_ = objects.topology(name)
    manager = {"policy": policy, "reservedCPUs": "0"}
    allocs = [
        {"namespace": "ns", "name": uid, "uid": uid, "cpuset": cpus, "managedByKubelet": True}
        for uid, cpus in (assigned or {}).items()
    ]
    topology_["metadata"]["annotations"] |= {
        CPU_MANAGER_POLICY: json.dumps(manager),
        POD_CPU_ALLOCS: json.dumps(allocs),
    }
    return topology_


@pytest.fixture
def cluster(clock: Clock) -> SchedulerCache:
    it = SchedulerCache(clock=clock)
    it.nodes_changed([objects.node_change(objects.node("n1"))])
    it.topologies_changed([objects.topology_change(topology())])
    it.pods_changed([objects.pod_change(objects.agent("n1"))])
    return it


def report(cluster: SchedulerCache, **assigned: str) -> None:
    cluster.topologies_changed([objects.topology_change(topology(assigned=assigned))])


class Api:
    """An API server of pods. A merge patch with another resourceVersion or uid is a conflict."""

    def __init__(self, server: Server) -> None:
        self.pods: dict[str, Object] = {}
        self.patches: list[Object] = []
        self.refusals: list[int] = []
        server.answer = self._answer

    def put(self, name: str, cpus: str, text: str = "") -> Object:
        body = objects.pod(name, "n1", uid=name, cpus=cpus, kube_class="Guaranteed")
        body["metadata"]["resourceVersion"] = "1"
        if text:
            body["metadata"]["annotations"][RESOURCE_STATUS] = text
        self.pods[name] = body
        return body

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        name = urllib.parse.unquote(request.path.rpartition("/")[2])
        pod = self.pods.get(name)
        if pod is None:
            return reply(connection, 404, status(404, "NotFound"))
        if request.method == "GET":
            return reply(connection, 200, pod)
        patch = json.loads(request.body)
        self.patches.append(patch)
        if self.refusals and (code := self.refusals.pop(0)):
            return reply(connection, code, status(code, "Refused"))
        changed, metadata = patch["metadata"], pod["metadata"]
        if (changed["uid"], changed["resourceVersion"]) != (
            metadata["uid"],
            metadata["resourceVersion"],
        ):
            return reply(connection, 409, status(409, "Conflict"))
        metadata["annotations"] |= changed["annotations"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return reply(connection, 200, pod)


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


@pytest.fixture
def corrections(transport: Transport, cluster: SchedulerCache, clock: Clock) -> Corrections:
    return Corrections(transport, cluster, lambda: True, clock=clock)


def report_pod(
    cluster: SchedulerCache, body: Object, kind: ChangeKind = ChangeKind.MODIFIED
) -> None:
    cluster.pods_changed([objects.pod_change(body, kind)])


def cpus_of(body: Object) -> str:
    cpuset: str = json.loads(body["metadata"]["annotations"][RESOURCE_STATUS])["cpuset"]
    return cpuset


def test_an_annotation_is_corrected_once(
    cluster: SchedulerCache, api: Api, corrections: Corrections
) -> None:
    body = api.put("lse", "2-3")
    report_pod(cluster, body)
    corrections.step()
    assert api.patches == [], "the kubelet's CPUs are not reported yet"
    report(cluster, lse="4-5")
    for _ in range(3):
        corrections.step()
    assert cpus_of(body) == "4-5"
    assert (len(api.patches), corrections.written, corrections.open) == (1, 1, 0)
    report_pod(cluster, body)
    corrections.step()
    assert len(api.patches) == 1
    assert cluster.cpu_mismatches("n1") == ()


def test_an_old_value_that_another_client_restores_stays(
    cluster: SchedulerCache, api: Api, corrections: Corrections
) -> None:
    body = api.put("lse", "2-3")
    report_pod(cluster, body)
    report(cluster, lse="4-5")
    corrections.step()
    for cpus in ("4-5", "2-3"):
        body["metadata"]["annotations"][RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
        report_pod(cluster, body)
        corrections.step()
    assert len(api.patches) == 1
    report(cluster, lse="6-7")
    corrections.step()
    assert cpus_of(body) == "6-7", "the kubelet's CPUs have changed"


def test_a_refused_write_is_repeated_and_counted(
    cluster: SchedulerCache, api: Api, corrections: Corrections, clock: Clock
) -> None:
    body = api.put("lse", "2-3")
    report_pod(cluster, body)
    report(cluster, lse="4-5")
    api.refusals = [409, 503]
    corrections.step()
    corrections.step()
    assert (len(api.patches), corrections.failed, corrections.open) == (1, 1, 1)
    clock.now += 60
    corrections.step()
    clock.now += 60
    corrections.step()
    assert (len(api.patches), corrections.failed, corrections.written) == (3, 2, 1)
    assert cpus_of(body) == "4-5"


def test_a_step_ends_if_the_server_does_not_answer(
    cluster: SchedulerCache, api: Api, corrections: Corrections, server: Server, clock: Clock
) -> None:
    """After a request has timed out, the step sends no further request."""
    names = [f"lse-{number}" for number in range(3)]
    for name in names:
        report_pod(cluster, api.put(name, "2-3"))
    report(cluster, **dict.fromkeys(names, "4-5"))
    answers, server.answer = server.answer, lambda server, connection, request: False
    corrections.step()
    assert (len(server.requests), corrections.failed, corrections.open) == (1, 1, 3)
    server.answer = answers
    clock.now += 60
    corrections.step()
    assert (corrections.written, corrections.open) == (3, 0)


def test_a_pod_with_the_same_name_and_another_uid_is_not_changed(
    cluster: SchedulerCache, api: Api, corrections: Corrections
) -> None:
    report_pod(cluster, api.put("lse", "2-3"))
    report(cluster, lse="4-5")
    api.put("lse", "2-3")["metadata"]["uid"] = "another"
    corrections.step()
    assert api.patches == []
    assert corrections.open == 0


def test_only_the_report_of_a_static_kubelet_is_used(
    cluster: SchedulerCache, api: Api, corrections: Corrections
) -> None:
    report_pod(cluster, api.put("lse", "2-3"))
    topology_ = topology(assigned={"lse": "4-5"}, policy="none")
    cluster.topologies_changed([objects.topology_change(topology_)])
    corrections.step()
    assert api.patches == []


def offer_of(cluster: SchedulerCache, count: int) -> NodeOffer | Refusal:
    """The node's offer to an LSE pod to which the kubelet would assign this number of CPUs."""
    state = cluster.node("n1")
    assert state is not None
    labels = {"koordinator.sh/qosClass": "LSE"}
    requests = {"cpu": str(count)}
    body = objects.pod("new", requests=requests, labels=labels, kube_class="Guaranteed")
    return state.allocator.offer(objects.request_of(objects.from_object(body)))


def test_the_cpus_of_report_and_annotation_count_until_they_are_equal(
    cluster: SchedulerCache, api: Api
) -> None:
    assert isinstance(offer_of(cluster, 6), NodeOffer), (
        "0 is reserved, one core of 7 CPUs is broken"
    )
    body = api.put("lse", "2-3")
    report_pod(cluster, body)
    assert isinstance(offer_of(cluster, 4), NodeOffer)
    report(cluster, lse="4-5")
    assert isinstance(offer_of(cluster, 4), Refusal), "2-3 and 4-5 are allocated"
    assert isinstance(offer_of(cluster, 2), NodeOffer)
    body["metadata"]["annotations"][RESOURCE_STATUS] = json.dumps({"cpuset": "4-5"})
    report_pod(cluster, body)
    offer = offer_of(cluster, 4)
    assert isinstance(offer, NodeOffer)
    assert offer.cpus is not None
    assert str(offer.cpus.allocation.cpus) == "2-3,6-7"
    state = cluster.node("n1")
    assert state is not None
    cpus = state.allocator.properties.cpus
    assert cpus is not None
    assert str(cpus.kept) == "0", "the pod's CPUs are counted once, as the pod's"
    report_pod(cluster, body, ChangeKind.DELETED)
    assert isinstance(offer_of(cluster, 4), NodeOffer)
    assert isinstance(offer_of(cluster, 6), Refusal), "the report still has its CPUs"
    report(cluster)
    assert isinstance(offer_of(cluster, 6), NodeOffer)


def test_reported_cpus_stay_allocated_after_the_reservation_ends(cluster: SchedulerCache) -> None:
    """The report may arrive before the watch reports the pod as bound."""
    offer = offer_of(cluster, 2)
    assert isinstance(offer, NodeOffer)
    assert offer.cpus is not None
    cluster.reserve("n1", offer)
    report(cluster, **{offer.uid: str(offer.cpus.allocation.cpus)})
    assert isinstance(offer_of(cluster, 4), NodeOffer), "its CPUs are counted once"
    assert cluster.release(offer.uid)
    assert isinstance(offer_of(cluster, 6), Refusal)


MAIN = {"main": "2"}
NO_CPUS = "the kubelet's static CPU policy assigns it no CPUs: "


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
@pytest.mark.parametrize(
    ("containers", "more", "reason"),
    [
        (MAIN, {}, ""),
        (MAIN, {"kube_class": "Burstable"}, "the pod is not Guaranteed"),
        ({"main": "1", "one": "500m", "two": "500m"}, {}, "container one requests 500m CPU"),
        (MAIN, {"pod_cpus": "2"}, "the pod has resources as a whole (spec.resources)"),
        ({"main": "1500m", "envoy": "500m"}, {}, "container main requests 1500m CPU"),
        ({"main": "2", "envoy": "0"}, {}, ""),
    ],
)
def test_a_pod_to_which_a_static_kubelet_assigns_no_cpus_is_rejected(
    cluster: SchedulerCache, containers: dict[str, str], more: dict[str, str], reason: str, qos: str
) -> None:
    """Container envoy has shared CPUs."""
    body = objects.pod(
        "new",
        labels={"koordinator.sh/qosClass": qos},
        annotations={"topolet.io/shared-containers": "envoy"},
        kube_class=more.get("kube_class", "Guaranteed"),
    )
    body["spec"]["containers"] = [
        {"name": name, "resources": amounts(cpu)} for name, cpu in containers.items()
    ]
    if "pod_cpus" in more:
        body["spec"]["resources"] = amounts(more["pod_cpus"])
    pod_request = objects.request_of(objects.from_object(body))
    state = cluster.node("n1")
    assert state is not None
    offer = state.allocator.offer(pod_request)
    if not reason:
        assert isinstance(offer, NodeOffer)
        return
    assert isinstance(offer, Refusal)
    assert (offer.unresolvable, offer.text) == (True, NO_CPUS + reason)
    cluster.topologies_changed([objects.topology_change(topology(policy="none"))])
    assert isinstance(state.allocator.offer(pod_request), NodeOffer)


def amounts(cpu: str) -> Object:
    return {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}


def test_a_report_that_changes_again_and_again_causes_few_writes_and_is_not_remembered(
    cluster: SchedulerCache, api: Api, corrections: Corrections, clock: Clock
) -> None:
    body = api.put("lse", "2-3")
    report_pod(cluster, body)
    for number in range(600):
        report(cluster, lse=f"{1 + number % 3}-{4 + number // 3 % 4}")
        corrections.step()
        report_pod(cluster, body)
        clock.now += 1
    assert FREE_WRITES < len(api.patches) < 20
    assert all(len(each) <= FREE_WRITES for each in corrections._sent.values())
    report_pod(cluster, body, ChangeKind.DELETED)
    report(cluster)
    corrections.step()
    assert not corrections._sent
    assert not corrections._paces
