"""Behaviour of kube-scheduler that the extender depends on and that only its source documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.integration.kubescheduler.process import configuration, credentials, scheduling
from tests.integration.kubescheduler.stub import Stub, serving_stub
from tests.waiting import eventually

NAMESPACE, PROFILE = "stub", "stub-scheduler"
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def stub(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    """An extender of a real kube-scheduler that accepts one node, `only`."""
    objects.namespace(apiserver, NAMESPACE)
    it = Stub(apiserver, only)
    folder = tmp_path_factory.mktemp("kube-scheduler")
    kubeconfig = str(credentials(apiserver))
    with (
        serving_stub(it) as url,
        scheduling(apiserver, with_signatures(configuration(PROFILE, url, kubeconfig)), folder),
    ):
        objects.ready_node(apiserver, "only", {"cpu": "8", "memory": "8Gi"})
        yield it


def with_signatures(settings: dict[str, Any]) -> dict[str, Any]:
    """Configures PodTopologySpread without default constraints, which prevent pod signatures."""
    none = {"defaultConstraints": [], "defaultingType": "List"}
    for profile in settings["profiles"]:
        profile["pluginConfig"] = [{"name": "PodTopologySpread", "args": none}]
    return settings


def only(pod: str, node: str) -> str | None:
    """Rejects the nodes of other tests."""
    return None if node == "only" else "not of this test"


def test_equal_pods_in_a_row_are_each_filtered_on_all_nodes(
    apiserver: ApiServer, stub: Stub
) -> None:
    """kube-scheduler's opportunistic batching is off for profiles with extenders: it would filter
    one node for the second pod, and skip prioritize."""
    nodes = {f"batch-{number}" for number in range(4)}
    pods = [f"batch-{number}" for number in range(3)]
    for node in nodes:
        objects.ready_node(apiserver, node, {"cpu": "1", "memory": "8Gi"})
    stub.refusal = lambda pod, node: None if pod in pods and node in nodes else "no"
    objects.create(
        apiserver, objects.pod_manifest(NAMESPACE, "probe", {"cpu": "1"}, scheduler=PROFILE)
    )
    eventually(
        "kube-scheduler knows the nodes",
        lambda: nodes <= stub.filtered.get("probe", [set()])[-1],
        PATIENCE_SECONDS,
    )
    for pod in pods:
        objects.create(
            apiserver, objects.pod_manifest(NAMESPACE, pod, {"cpu": "1"}, scheduler=PROFILE)
        )
    for pod in pods:
        eventually(
            f"{pod} is bound",
            lambda pod=pod: objects.node_of(apiserver, NAMESPACE, pod) in nodes,
            PATIENCE_SECONDS,
        )
    taken: set[str] = set()
    prioritized = [pod for pod in stub.prioritized if pod in pods]
    for pod in prioritized:
        assert nodes - taken <= stub.filtered[pod][-1]
        taken.add(objects.node_of(apiserver, NAMESPACE, pod))
    assert sorted(prioritized) == pods
