"""`topolet uninstall-node` with a real API server removes only what the agent has written."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from agent.allocate.dra.slices import slice_name, slices
from agent.install.proxy import ProxyInstallation
from agent.install.uninstall import NodeRemoval
from agent.kube.cluster import Cluster
from agent.model.devices.device_object import Device
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.settings.agent import UninstallSettings
from agent.node import node_resource_topology as report
from agent.node.node_resource_topology import DeviceReport, ReportValues, Reserved
from agent.node.outbox import deliver
from tests.builders import machine
from tests.deploy.api import Api
from tests.deploy.manifests import DEPLOY
from tests.integration import deployed
from tests.integration.apiserver.server import ApiServer

GPU = Device("gpu", "GPU-0", 0, {"koordinator.sh/gpu-core": 100})
KINDS = {
    "Node": "/api/v1/nodes",
    "NodeResourceTopology": "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
}
_numbers = itertools.count(1)
_OF_THE_SERVER = ("managedFields", "resourceVersion", "generation", "creationTimestamp", "uid")


class ReportedNode(NamedTuple):
    """A node, with clients of its agent and of an administrator."""

    node: str
    cluster: Cluster
    api: Api

    def change(self, kind: str, change: dict[str, Any], subresource: str = "") -> None:
        """Patches the node's object as an administrator."""
        self.api.merge(f"{KINDS[kind]}/{self.node}{subresource}", change)


@pytest.fixture
def reported_node(apiserver: ApiServer) -> Iterator[ReportedNode]:
    for name in ("noderesourcetopologies", "devices"):
        apiserver.apply(yaml.safe_load((DEPLOY / "crds" / f"{name}.yaml").read_text()))
    node = f"removed-{next(_numbers)}"
    apiserver.node(node)
    api = deployed.administrator(apiserver, f"administrator-of-{node}")
    cluster = Cluster(apiserver.admin, node, spread_seconds=0, recheck_seconds=0)
    made = ReportedNode(node, cluster, api)
    status = {"capacity": {"example.com/fpga": "2"}, "allocatable": {"example.com/fpga": "2"}}
    made.change("Node", {"metadata": {"labels": {"zone": "a"}}})
    made.change("Node", {"status": status}, "/status")
    yield made
    for kind in KINDS:
        cluster.delete(kind, node)


def objects(reported_node: ReportedNode) -> dict[str, Any]:
    """The node's objects without fields that only the server writes."""
    found = {
        kind: copy.deepcopy(reported_node.cluster.get(kind, reported_node.node)) for kind in KINDS
    }
    for each in found.values():
        for name in _OF_THE_SERVER:
            if each is not None:
                each["metadata"].pop(name, None)
    return found


def write_reports(reported_node: ReportedNode) -> None:
    """Writes reports as the agent does."""
    values = ReportValues(
        reported_node.node,
        machine(1, 4),
        {},
        (),
        (),
        Reserved(),
        NodeConfiguration(),
        DeviceReport((GPU,)),
    )
    deliver(reported_node.cluster, report.build(values))


def removal(node: str, cluster: Cluster, tmp_path: Path) -> NodeRemoval:
    """A removal on an empty root folder."""
    settings = UninstallSettings(
        root=str(tmp_path), state_dir=str(tmp_path / "state"), node_name=node
    )
    output: list[str] = []
    installation = ProxyInstallation(settings, output.append)
    (tmp_path / "run").mkdir(exist_ok=True)
    return NodeRemoval(settings, node, cluster, installation, output.append)


def test_all_objects_are_as_before(reported_node: ReportedNode, tmp_path: Path) -> None:
    before = objects(reported_node)
    write_reports(reported_node)
    written = objects(reported_node)
    assert written["Node"]["metadata"]["labels"]["topology.topolet.io/cpus"]
    assert written["Node"]["status"]["capacity"]["koordinator.sh/gpu-core"] == "100"
    assert written["NodeResourceTopology"]
    assert written["Device"]
    for part in slices(reported_node.node, "", [{"name": "numa-node-0", "attributes": {}}], 1):
        reported_node.cluster.apply(part)
    for _ in range(2):
        it = removal(reported_node.node, reported_node.cluster, tmp_path)
        assert it.run(), it.left
        assert objects(reported_node) == before
    assert reported_node.cluster.get("ResourceSlice", slice_name(reported_node.node, 0)) is None


def test_fields_of_other_clients_in_the_agents_objects_stay(
    reported_node: ReportedNode, tmp_path: Path
) -> None:
    write_reports(reported_node)
    reported_node.change(
        "NodeResourceTopology", {"metadata": {"annotations": {"example.com/a": "1"}}}
    )
    reported_node.change("Device", {"metadata": {"labels": {"example.com/a": "1"}}})
    reported_node.change("Node", {"metadata": {"labels": {"topology.topolet.io/note": "mine"}}})
    it = removal(reported_node.node, reported_node.cluster, tmp_path)
    assert not it.run()
    assert it.left == [
        "NodeResourceTopology: others wrote in it, and the API server accepts no object without "
        "zones: delete it if nobody needs it"
    ]
    after = objects(reported_node)
    topology = after["NodeResourceTopology"]["metadata"]
    assert topology["annotations"]["example.com/a"] == "1"
    assert after["Device"]["metadata"]["labels"] == {"example.com/a": "1"}
    assert not after["Device"]["spec"].get("devices")
    labels = after["Node"]["metadata"]["labels"]
    assert labels["topology.topolet.io/note"] == "mine"
    assert "topology.topolet.io/cpus" not in labels
