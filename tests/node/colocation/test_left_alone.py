"""Strategies that the agent does not have are said, and change nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.cgroup.hierarchy import Controllers
from agent.model.node_slo import NetworkQos, NodeSlo, QosClass, ResourceQos, System
from agent.model.pod.annotations import NETWORK_QOS
from agent.node.colocation.left_alone import LeftAloneNetwork, LeftAloneSystem
from agent.node.sources import SourceName
from agent.usage.strategies import Strategies, with_pods
from tests.node.colocation.colocated import ColocatedNode, FileGroups

ENABLED = QosClass(network_qos=NetworkQos(enable=True))


@pytest.fixture
def node(tmp_path: Path) -> ColocatedNode:
    groups = FileGroups(tmp_path / "cgroup", {})
    node = ColocatedNode(tmp_path, groups, Controllers(str(groups.root)))
    node.strategies = Strategies()
    return node


def problem(node: ColocatedNode, name: str) -> str:
    node.strategies = with_pods(node.strategies, node.api_pods.values())
    node.colocation.step()
    wanted = node.colocation.state.wanted[name]
    assert not wanted.files
    assert node.problems.get(SourceName.COLOCATION.value, 0) == bool(wanted.problem)
    return wanted.problem


@pytest.mark.parametrize("field", ["lsr_class", "ls_class", "be_class", "system_class"])
def test_bandwidth_of_a_class_is_left_alone(node: ColocatedNode, field: str) -> None:
    assert not problem(node, LeftAloneNetwork.name)
    qos = msgspec.structs.replace(ResourceQos(), **{field: ENABLED})
    node.strategies = Strategies(NodeSlo(resource_qos_strategy=qos))
    assert problem(node, LeftAloneNetwork.name).startswith(
        "networkQOS is left alone: bandwidth belongs to the network plugin"
    )


def test_bandwidth_of_a_pod_is_left_alone(node: ColocatedNode) -> None:
    node.run("api", "burstable", annotations={NETWORK_QOS: '{"egressLimit":"10M"}'})
    assert problem(node, LeftAloneNetwork.name).startswith("networkQOS (pod ns/api) is left alone")


def test_settings_of_the_host_are_left_alone(node: ColocatedNode) -> None:
    node.strategies = Strategies(NodeSlo(system_strategy=System(total_network_bandwidth="10G")))
    assert not problem(node, LeftAloneSystem.name), "nothing but networkQOS uses the bandwidth"
    system = System(min_free_kbytes_factor=100, watermark_scale_factor=150)
    node.strategies = Strategies(NodeSlo(system_strategy=system))
    assert problem(node, LeftAloneSystem.name).startswith(
        "systemStrategy (minFreeKbytesFactor, watermarkScaleFactor) is left alone: settings of the "
        "whole host"
    )
