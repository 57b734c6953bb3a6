"""The cluster state of schedulers, and their leader election, with a real API server."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.kube.errors import KubeError
from agent.kube.transport import Transport
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESERVATION_ALLOCATED, RESOURCE_STATUS
from agent.model.pod.apiobjects import from_object
from agent.model.pod_request import request_of
from agent.scheduler.leader import election
from agent.scheduler.leader.election import Leader, LeaseTimes
from agent.scheduler.leader.gate import LeaderGate
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.watches import Watches
from tests.deploy.manifests import objects as manifests
from tests.integration.apiserver.server import ApiServer
from tests.scheduler import objects
from tests.scheduler.clusters import ineligibility
from tests.waiting import eventually

PATIENCE_SECONDS = 60.0
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
TIMES = LeaseTimes(6, 4, 0.5)
ROOT = Path(__file__).resolve().parents[3]

_numbers = itertools.count(1)


@pytest.fixture
def node_name(apiserver: ApiServer) -> str:
    """Creates a namespace, and a node with all its objects. Returns their common name."""
    name = f"state-{next(_numbers)}"
    for each in manifests("crds"):
        apiserver.apply(each)
    apiserver.namespace(name)
    apiserver.create(
        f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}
    )
    apiserver.node(name)
    set_allocatable(apiserver, name)
    eventually("kinds are served", lambda: served(apiserver, DEVICES, TOPOLOGIES))
    apiserver.create(TOPOLOGIES, objects.topology(name))
    apiserver.create(DEVICES, objects.devices(name))
    return name


def set_allocatable(apiserver: ApiServer, name: str) -> None:
    """Writes the status of the node as its kubelet would."""
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    status = {"status": {"capacity": allocatable, "allocatable": allocatable}}
    apiserver.admin.merge(f"/api/v1/nodes/{name}/status", status)


def served(apiserver: ApiServer, *paths: str) -> bool:
    for path in paths:
        try:
            apiserver.admin.get(path)
        except KubeError:  # it does not exist, or its storage is just being created
            return False
    return True


def make_pod(apiserver: ApiServer, namespace: str, name: str, qos: str = "LSR") -> dict[str, Any]:
    """Creates a pod with two exclusive CPUs, which is not bound."""
    amounts = {"cpu": "2", "memory": "1Gi"}
    return apiserver.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {
            "metadata": {"name": name, "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {
                "schedulerName": "none",
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "c",
                        "image": "none",
                        "resources": {"requests": amounts, "limits": amounts},
                    }
                ],
            },
        },
    )


def bind(apiserver: ApiServer, pod: dict[str, Any], node: str, notes: dict[str, str]) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    named = {"name": metadata["name"], "uid": metadata["uid"], "annotations": notes}
    apiserver.create(path, {"metadata": named, "target": target})


def delete(apiserver: ApiServer, pod: dict[str, Any]) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    apiserver.admin.request("DELETE", path, {"gracePeriodSeconds": 0})


@contextlib.contextmanager
def watching(apiserver: ApiServer) -> Iterator[tuple[SchedulerCache, Watches]]:
    """Runs watches. Waits until they have reported all objects."""
    cluster = SchedulerCache(agents=False)
    it = Watches(apiserver.admin, cluster, stale_seconds=30, check_seconds=0.2)
    it.start()
    try:
        eventually("synced", lambda: it.synced, PATIENCE_SECONDS)
        yield cluster, it
    finally:
        it.stop()


def holders(cluster: SchedulerCache, name: str) -> dict[str, CpuSet]:
    with cluster.lock:
        state = cluster.node(name)
        held = state.allocator.holdings.values() if state else ()
        return {each.title.rpartition("/")[2]: each.allocation.cpus for each in held}


def reserve(cluster: SchedulerCache, name: str, pod: dict[str, Any]) -> NodeOffer:
    pod_request = request_of(from_object(pod))
    with cluster.lock:
        state = cluster.node(name)
        assert state is not None
        assert cluster.eligible(name, pod_request) is None
        found = state.allocator.offer(pod_request)
        assert isinstance(found, NodeOffer)
        cluster.reserve(name, found)
        return found


def test_a_bound_pod_keeps_its_allocation_after_a_restart(
    apiserver: ApiServer, node_name: str
) -> None:
    with watching(apiserver) as (cluster, _):
        pods = [make_pod(apiserver, node_name, f"p{number}") for number in range(4)]
        for each in pods[:3]:
            node_offer = reserve(cluster, node_name, each)
            bind(apiserver, each, node_name, node_offer.annotations())
            cluster.confirm(node_offer.uid)
            serial = cluster.changed_since(0).serial
            eventually("the watch reports it", lambda uid=node_offer.uid: cluster.bound(uid))
            # It invalidates no cached result.
            assert node_name not in (cluster.changed_since(serial).names or ())
            with cluster.lock:
                state = cluster.node(node_name)
                assert state is not None
                assert state.allocator.holdings[node_offer.uid] == node_offer.holding()
        delete(apiserver, pods[0])
        eventually(
            "the deleted pod has no allocation",
            lambda: set(holders(cluster, node_name)) == {"p1", "p2"},
        )
        reserved = reserve(cluster, node_name, pods[3])
        held = holders(cluster, node_name)
        assert sum(len(cpus) for cpus in held.values()) == 6
        with watching(apiserver) as (restarted, _):
            del held["p3"]
            assert holders(restarted, node_name) == held
        cluster.release(reserved.uid)
        assert holders(cluster, node_name) == held


def test_a_kind_that_is_installed_later_is_watched(apiserver: ApiServer, node_name: str) -> None:
    (definition,) = [
        each for each in manifests("crds") if each["metadata"]["name"].startswith("devices.")
    ]
    path = f"{CRDS}/{definition['metadata']['name']}"
    apiserver.admin.delete(path)
    eventually(
        "the watch reports the deletion", lambda: not served(apiserver, DEVICES), PATIENCE_SECONDS
    )
    gpu = objects.pod_request({"cpu": "1", "nvidia.com/gpu": "1"})
    try:
        with watching(apiserver) as (cluster, it):
            assert ineligibility(cluster, node_name, gpu) == "it has no Device"
            apiserver.apply(definition)
            eventually("served", lambda: served(apiserver, DEVICES), PATIENCE_SECONDS)
            apiserver.create(DEVICES, objects.devices(node_name))
            eventually(
                "the watch reports it",
                lambda: cluster.eligible(node_name, gpu) is None,
                PATIENCE_SECONDS,
            )
            assert not it.problems
            apiserver.admin.delete(path)
            eventually(
                "the watch reports the removal",
                lambda: ineligibility(cluster, node_name, gpu) == "it has no Device",
                PATIENCE_SECONDS,
            )
    finally:
        apiserver.apply(definition)


# Leaders
@pytest.fixture
def candidates(apiserver: ApiServer, node_name: str) -> Iterator[Any]:
    """Starts processes with these identities and lease times; all end with the test."""
    pki = apiserver.folder
    files = [str(pki / name) for name in ("ca.crt", "admin.crt", "admin.key")]
    times = [str(each) for each in (TIMES.lease_seconds, TIMES.renew_seconds, TIMES.retry_seconds)]
    with contextlib.ExitStack() as started:

        def start(identity: str) -> subprocess.Popen[str]:
            who = [node_name, "topolet-scheduler", identity]
            words = [sys.executable, "-m", "tests.scheduler.candidate", apiserver.url, *files]
            process = started.enter_context(
                subprocess.Popen([*words, *who, *times], cwd=ROOT, stdout=PIPE, text=True)
            )
            started.callback(process.kill)
            return process

        yield start


def test_the_next_leader_answers_when_it_has_the_bindings_of_the_last_one(
    apiserver: ApiServer, node_name: str, candidates: Any
) -> None:
    first = candidates("first")
    assert first.stdout.readline() == "leads\n"
    pods = [make_pod(apiserver, node_name, f"p{number}") for number in range(3)]
    transport = Transport(apiserver.access(), limits=election.limits(TIMES))
    with watching(apiserver) as (cluster, it):
        second = Leader(
            transport,
            node_name,
            "topolet-scheduler",
            "second",
            times=TIMES,
            acquired=lambda: gate.begin(),
        )
        gate = LeaderGate(second, it)
        second.start()
        gate.start()
        eventually("it follows", lambda: gate.reason() == "the leader is first", PATIENCE_SECONDS)
        for number, each in enumerate(pods):
            notes = {RESOURCE_STATUS: json.dumps({"cpuset": f"{2 * number}-{2 * number + 1}"})}
            bind(apiserver, each, node_name, notes)
        first.kill()
        eventually("it answers", lambda: gate.reason() is None, PATIENCE_SECONDS)
        assert {name: str(cpus) for name, cpus in holders(cluster, node_name).items()} == {
            "p0": "0-1",
            "p1": "2-3",
            "p2": "4-5",
        }
        gate.stop()
        second.stop()
        assert gate.reason() is not None
    transport.close()


def test_leadership_ends_while_the_api_server_is_down(apiserver: ApiServer, node_name: str) -> None:
    transport = Transport(apiserver.access(), limits=election.limits(TIMES))
    it = Leader(transport, node_name, "topolet-scheduler", "only", times=TIMES)
    it.start()
    eventually("leads", lambda: it.leading, PATIENCE_SECONDS)
    apiserver.kill_server()
    try:
        eventually("does not lead", lambda: not it.leading, PATIENCE_SECONDS)
        assert it.problem.text
    finally:
        apiserver.start_server()
    eventually("leads again", lambda: it.leading, PATIENCE_SECONDS)
    assert (it.term, it.problem.text) == (2, None)
    it.stop()
    transport.close()


RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
RESERVATION_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "reservations.scheduling.koordinator.sh"},
    "spec": {
        "group": "scheduling.koordinator.sh",
        "scope": "Cluster",
        "names": {
            "kind": "Reservation",
            "listKind": "ReservationList",
            "plural": "reservations",
            "singular": "reservation",
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def test_a_koordinator_reservation_is_counted_until_it_ends(
    apiserver: ApiServer, node_name: str
) -> None:
    """Koordinator installs its CRD, before or after Topolet's scheduler starts."""
    with watching(apiserver) as (cluster, it):
        apiserver.apply(RESERVATION_CRD)
        try:
            eventually("served", lambda: served(apiserver, RESERVATIONS), PATIENCE_SECONDS)
            notes = {RESOURCE_STATUS: '{"cpuset":"0-3"}'}
            made = {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Reservation",
                "metadata": {"name": node_name, "annotations": notes},
                "spec": {"template": {"spec": {"containers": []}}, "owners": []},
            }
            uid = apiserver.create(RESERVATIONS, made)["metadata"]["uid"]
            path = f"{RESERVATIONS}/{node_name}/status"
            status = {"phase": "Available", "nodeName": node_name}
            apiserver.admin.merge(path, {"status": status})
            title = f"Reservation {node_name}"
            held = {title: CpuSet(range(4))}
            eventually("held", lambda: holders(cluster, node_name) == held, PATIENCE_SECONDS)
            pod = make_pod(apiserver, node_name, "p")
            named = json.dumps({"name": node_name, "uid": uid})
            part = {RESOURCE_STATUS: '{"cpuset":"0-1"}', RESERVATION_ALLOCATED: named}
            bind(apiserver, pod, node_name, part)
            held = {title: CpuSet((2, 3)), "p": CpuSet((0, 1))}
            eventually(
                "the pod has its part",
                lambda: holders(cluster, node_name) == held,
                PATIENCE_SECONDS,
            )
            with watching(apiserver) as (restarted, _):
                assert holders(restarted, node_name) == held
            apiserver.admin.merge(path, {"status": {"phase": "Succeeded"}})
            del held[title]
            eventually("ended", lambda: holders(cluster, node_name) == held, PATIENCE_SECONDS)
            assert not it.problems
        finally:
            apiserver.admin.delete(f"{CRDS}/reservations.scheduling.koordinator.sh")
