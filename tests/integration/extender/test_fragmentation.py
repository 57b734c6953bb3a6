"""`topolet simulate --from-cluster` on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.__main__ import main
from agent.model.pod.annotations import RESOURCE_STATUS
from tests.deploy.manifests import objects
from tests.fixtures import fleet
from tests.fixtures.fleet import CARDS, SMALL, owner
from tests.integration.apiserver.commands import kubeconfig
from tests.integration.apiserver.server import ApiServer

NODES = {"fragmented-small": SMALL, "fragmented-cards": CARDS}
GROUPS = {
    "topologies": "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
    "devices": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
}


def test_simulate_reports_the_fragmentation_of_a_cluster(
    apiserver: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in objects("crds"):
        apiserver.apply(each)
    apiserver.namespace("fragmented")
    apiserver.default_account("fragmented")
    for name, model in NODES.items():
        machine = fleet.Machine(model)
        node = machine.node(name)
        node["metadata"].pop("uid")
        status = {"status": node.pop("status")}
        apiserver.create("/api/v1/nodes", node)
        apiserver.admin.merge(f"/api/v1/nodes/{name}/status", status)
        apiserver.create(GROUPS["topologies"], machine.topology(name))
        if model.gpus:
            apiserver.create(GROUPS["devices"], machine.devices(name))
        _create(apiserver, fleet.agent(name), "fragmented")
    pod = owner(2, 2).pod("p", node="fragmented-small")
    pod["spec"].pop("priority")
    pod["metadata"]["annotations"][RESOURCE_STATUS] = json.dumps({"cpuset": "0,2"})
    _create(apiserver, pod, "fragmented")
    config, namespace = f"--kubeconfig={kubeconfig(apiserver)}", "--release-namespace=fragmented"
    assert main(["simulate", "--from-cluster", config, namespace, "-o", "json"]) == 0
    found = {each["node"]: each for each in json.loads(capsys.readouterr().out)["nodes"]}
    assert found["fragmented-small"]["cpus_on_broken_cores"] == 2
    assert found["fragmented-small"]["rebind"]["pods"] == 1
    assert found["fragmented-cards"]["free_gpus"] == 8


def _create(api: ApiServer, pod: dict[str, Any], namespace: str) -> None:
    metadata = {key: pod["metadata"][key] for key in ("name", "labels", "annotations")}
    api.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": metadata, "spec": {**pod["spec"], "automountServiceAccountToken": False}},
    )
