"""The CPUs of a static kubelet in the cluster, with a real API server and the manifests' roles."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kube import events
from agent.kube.errors import ForbiddenError
from agent.kube.events import Recorder, Regarding
from agent.kube.transport import Transport
from agent.model.nrt.node_annotations import CPU_MANAGER_POLICY, POD_CPU_ALLOCS
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.node.change_log import CLAIM_NOT_HONORED
from agent.node.cluster_view import EVENT_ACTION, EVENT_CONTROLLER
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_patches import Corrections
from agent.scheduler.state.watches import Watches
from tests.deploy.manifests import objects as manifests
from tests.deploy.manifests import of_kind
from tests.integration.apiserver.server import ApiServer
from tests.scheduler import objects
from tests.waiting import eventually

TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

_numbers = itertools.count(1)


@pytest.fixture
def node_name(apiserver: ApiServer) -> str:
    """The name of a namespace and of a node."""
    name = f"static-{next(_numbers)}"
    for each in manifests("crds"):
        apiserver.apply(each)
    apiserver.namespace(name)
    apiserver.default_account(name)
    apiserver.node(name)
    return name


Access = Callable[[str], Transport]


@pytest.fixture
def access(apiserver: ApiServer, node_name: str, tmp_path: Path) -> Iterator[Access]:
    """A function that returns the access of an account with a role of the manifests."""
    made = []

    def access(role: str) -> Transport:
        apiserver.account(node_name, role, of_kind("ClusterRole")[role]["rules"])
        token = tmp_path / role
        token.write_text(apiserver.token(node_name, role))
        made.append(Transport(apiserver.access(str(token))))
        return made[-1]

    yield access
    for each in made:
        each.close()


def test_event_of_a_pod_with_the_agents_role(
    monkeypatch: pytest.MonkeyPatch, apiserver: ApiServer, node_name: str, access: Access
) -> None:
    monkeypatch.setattr(events, "AGAIN_SECONDS", 0.0)
    pod = apiserver.pod(node_name, "lse", node_name)
    about = Regarding(node_name, "lse", pod["metadata"]["uid"])
    results: list[str] = []
    transport = access("topolet-agent")
    recorder = Recorder(transport, EVENT_CONTROLLER, node_name, EVENT_ACTION, results.append)
    recorder.record(about, CLAIM_NOT_HONORED, "it has no CPUs of its own")
    eventually("it is written", lambda: results == ["written"])
    recorder.record(about, CLAIM_NOT_HONORED, "it has no CPUs of its own")
    eventually("its series is updated", lambda: results == ["written", "written"])
    recorder.close()
    (event,) = json.loads(apiserver.admin.get(f"/api/v1/namespaces/{node_name}/events"))["items"]
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"], "kubectl describe shows it"
    assert (event["type"], event["reason"]) == ("Warning", CLAIM_NOT_HONORED)
    assert event["message"] == "it has no CPUs of its own"
    assert event["series"]["count"] == 2
    with pytest.raises(ForbiddenError):
        transport.get(f"/apis/events.k8s.io/v1/namespaces/{node_name}/events")
    with pytest.raises(ForbiddenError):
        transport.merge(
            f"/api/v1/namespaces/{node_name}/pods/lse", {"metadata": {"labels": {"a": ""}}}
        )


def topology(name: str, **assigned: str) -> dict[str, Any]:
    """The NodeResourceTopology of a node whose static kubelet assigned these CPUs, by pod uid."""
    body = objects.topology(name)
    allocs = [
        {"namespace": name, "name": "lse", "uid": uid, "cpuset": cpus, "managedByKubelet": True}
        for uid, cpus in assigned.items()
    ]
    body["metadata"]["annotations"] |= {
        CPU_MANAGER_POLICY: '{"policy": "static", "reservedCPUs": "0"}',
        POD_CPU_ALLOCS: json.dumps(allocs),
    }
    return body


def test_annotation_is_corrected_with_the_schedulers_role(
    apiserver: ApiServer, node_name: str, access: Access
) -> None:
    parts = [{"node": 0, "resources": {"cpu": "2", "memory": "1Gi"}}]
    status = json.dumps({"cpuset": "2-3", "numaNodeResources": parts})
    pod = apiserver.pod(node_name, "lse", node_name, annotations={RESOURCE_STATUS: status})
    uid = pod["metadata"]["uid"]
    apiserver.create(TOPOLOGIES, topology(node_name, **{uid: "4-5"}))
    transport = access("topolet-scheduler")
    cluster = SchedulerCache()
    watches = Watches(transport, cluster, stale_seconds=30)
    corrections = Corrections(transport, cluster, lambda: watches.synced, clock=time.monotonic)
    watches.start()

    def stored() -> dict[str, Any]:
        body = json.loads(apiserver.admin.get(f"/api/v1/namespaces/{node_name}/pods/lse"))
        found: dict[str, Any] = body["metadata"]
        return found

    def corrected() -> bool:
        corrections.step()
        return corrections.written == 1

    try:
        eventually("it is corrected", corrected)
        found = json.loads(stored()["annotations"][RESOURCE_STATUS])
        assert found["cpuset"] == "4-5"
        assert found["numaNodeResources"] == [
            {"node": 1, "resources": {"cpu": "2", "memory": "1Gi"}}
        ]
        version = stored()["resourceVersion"]
        eventually("the watch shows it", lambda: not cluster.cpu_mismatches(node_name))
        corrections.step()
        assert stored()["resourceVersion"] == version, "the annotation is written once"
        assert corrections.failed == 0
    finally:
        watches.stop()
