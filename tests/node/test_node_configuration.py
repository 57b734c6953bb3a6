from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.kube.events import Regarding
from agent.kubelet.configuration import ConfigurationError, of_object
from agent.model.nrt.node_annotations import (
    NUMA_MEMORY_POLICY,
    RESERVATION,
    SYSTEM_QOS,
    NodeConfiguration,
    NodeReservation,
    SystemQos,
)
from agent.model.pod.apiobjects import ApiNode, ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL, pool_cpus
from agent.model.settings.agent import AgentSettings
from agent.node.change_log import INVALID_LABEL, INVALID_NODE, PodEvents
from agent.node.node_configuration import NodeObject, rules, with_kubelet, with_settings
from tests.builders import machine
from tests.node.world import Recorded, World


def node(**annotations: str) -> ApiNode:
    return ApiNode(annotations=annotations)


@pytest.mark.parametrize(
    "api_node", [ApiNode(), node(other="x", **{SYSTEM_QOS: "", RESERVATION: ""})]
)
def test_nothing_is_reserved_by_default(api_node: ApiNode) -> None:
    configured = NodeObject("n").configuration(api_node, machine())
    assert (configured.system_qos, configured.reservation) == (SystemQos(), NodeReservation())


def test_annotations_become_rules() -> None:
    annotations = {
        SYSTEM_QOS: '{"cpuset": "3", "cpusetExclusive": false}',
        RESERVATION: '{"resources": {"cpu": "1100m"}}',
    }
    configured = NodeObject("n").configuration(node(**annotations), machine())
    assert configured.reservation == NodeReservation({"cpu": "1100m"}, "0-1")
    found = rules(configured)
    assert (
        str(found.node_reserved),
        str(found.dedicated["system"].cpus),
        found.dedicated["system"].exclusive,
    ) == (
        "0-1",
        "3",
        False,
    )
    assert str(found.kept) == "0-1"


@pytest.mark.parametrize(
    ("invalid", "text"),
    [
        ({SYSTEM_QOS: '{"cpuset": "x"}'}, "system-qos-resource: cpuset: CPU list 'x'"),
        ({SYSTEM_QOS: "{"}, "system-qos-resource: is not JSON"),
        ({RESERVATION: '{"resources": {"cpu": "x"}}'}, "reservation: resources.cpu: 'x' is no"),
        ({RESERVATION: '{"reservedCPUs": "x"}'}, "reservation: reservedCPUs: CPU list 'x'"),
    ],
)
def test_invalid_annotations_are_logged_once_and_leave_the_last_valid_ones(
    caplog: pytest.LogCaptureFixture, invalid: dict[str, str], text: str
) -> None:
    valid = {SYSTEM_QOS: '{"cpuset": "3"}', RESERVATION: '{"reservedCPUs": "0"}'}
    node_object = NodeObject("n")
    before = node_object.configuration(node(**valid), machine())
    for _ in range(3):
        assert node_object.configuration(node(**{**valid, **invalid}), machine()) == before
    (record,) = caplog.records
    assert text in record.getMessage()
    new = node(**{SYSTEM_QOS: '{"cpuset": "2"}'})
    after = node_object.configuration(new, machine())
    assert (after.system_qos, after.reservation) == (SystemQos("2"), NodeReservation())


@pytest.mark.parametrize(
    ("labels", "option", "bound"),
    [
        ({}, False, False),
        ({NUMA_MEMORY_POLICY: ""}, False, False),
        ({NUMA_MEMORY_POLICY: "any"}, False, False),
        ({NUMA_MEMORY_POLICY: "bind"}, False, True),
        ({NUMA_MEMORY_POLICY: "any"}, True, True),
    ],
)
def test_memory_is_bound_by_a_value_of_the_label_or_the_option(
    labels: dict[str, str], option: bool, bound: bool
) -> None:
    """With any other value the label only makes the scheduler count, as the proposal says."""
    configured = NodeObject("n").configuration(ApiNode(labels=labels), machine())
    configured = with_settings(configured, AgentSettings(bind_memory=option))
    assert rules(configured).bind_memory is bound


def test_labels_with_unknown_values_are_faults(caplog: pytest.LogCaptureFixture) -> None:
    labels = {"node.koordinator.sh/numa-allocate-strategy": "Evenly"}
    node_object = NodeObject("n")
    for _ in range(2):
        node_object.configuration(ApiNode("u", labels), machine())
    (fault,) = node_object.faults
    assert fault.startswith(
        "label node.koordinator.sh/numa-allocate-strategy: 'Evenly' is not one of"
    )
    (record,) = caplog.records
    assert record.getMessage() == f"node-object: node n: {fault}"
    node_object.configuration(ApiNode("u"), machine())
    assert node_object.faults == ()


def test_an_unknown_value_of_a_label_is_an_event_of_the_node_and_of_the_pod(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    labels = {"node.koordinator.sh/cpu-bind-policy": "FullPCPUs"}
    body = stored()
    world.store.apply({**body, "metadata": {**body["metadata"], "labels": labels, "uid": "uid-n"}})
    world.container(world.sandbox("typo", "LSX"))
    world.cluster_objects.pods["typo"] = ApiPod(
        "typo", "ns", "typo", "n", Phase.RUNNING, {QOS_LABEL: "LSX"}, {}, "burstable", 1
    )
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    for _ in range(2):
        agent.reconcile()
    pod_event, node_event = recorded.events
    assert pod_event[:2] == (Regarding("ns", "typo", "typo"), INVALID_LABEL)
    assert (
        pod_event[2]
        == "label koordinator.sh/qosClass: 'LSX' is not one of LSE, LSR, LS, BE, SYSTEM"
    )
    about, reason, note = node_event
    assert (about.namespace, about.name, about.kind, reason) == ("", "n", "Node", INVALID_NODE)
    assert note.startswith("label node.koordinator.sh/cpu-bind-policy: 'FullPCPUs' is not one of ")


def test_reserved_cpus_are_chosen_again_on_another_machine() -> None:
    api_node = node(**{RESERVATION: '{"resources": {"cpu": 2}}'})
    node_object = NodeObject("n")
    assert str(node_object.configuration(api_node, machine()).reservation.cpus()) == "0-1"
    assert (
        str(node_object.configuration(api_node, machine(offline="0")).reservation.cpus()) == "1-2"
    )


def stored(**annotations: str) -> dict[str, Any]:
    metadata = {"name": "n", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def test_a_node_annotation_reaches_containers_report_and_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = world.store
    store.apply(stored(**{SYSTEM_QOS: '{"cpuset": "3"}', RESERVATION: '{"reservedCPUs": "0"}'}))
    for name, qos in (("sys", "SYSTEM"), ("ls", "LS"), ("be", "BE")):
        world.container(world.sandbox(name, qos))
    world.agent().reconcile()
    assert world.cpus("kubepods/burstable/podsys/c-sys-main") == "3"
    assert world.cpus("kubepods/burstable/podls/c-ls-main") == "1-2"
    assert world.cpus("kubepods/burstable/podbe/c-be-main") == "1-2"
    assert str(pool_cpus(world.snapshot().pools["system"])) == "3"
    found = store.get("Node", "n")
    assert found is not None
    assert found["metadata"]["annotations"][SYSTEM_QOS] == '{"cpuset": "3"}'
    reported = store.get("NodeResourceTopology", "n")
    assert reported is not None
    assert reported["metadata"]["annotations"][RESERVATION] == '{"reservedCPUs":"0"}'


@pytest.mark.parametrize(
    ("content", "reserved"),
    [
        ({"cpuManagerPolicy": "static", "reservedSystemCPUs": "2"}, "2"),
        (
            {
                "cpuManagerPolicy": "static",
                "kubeReserved": {"cpu": "600m"},
                "systemReserved": {"cpu": "500m"},
            },
            "0-1",
        ),
        ({"cpuManagerPolicy": "static"}, ""),
        ({"cpuManagerPolicy": "none", "reservedSystemCPUs": "2"}, "2"),
        ({"reservedSystemCPUs": "2", "kubeReserved": {"cpu": "2"}}, "2"),
        ({"cpuManagerPolicy": "none", "kubeReserved": {"cpu": "600m"}}, ""),
    ],
)
def test_the_kubelets_reserved_cpus_count_under_every_policy_and_amounts_under_static_alone(
    content: dict[str, Any], reserved: str
) -> None:
    kubelet = of_object({**content, "topologyManagerPolicy": "restricted"}, "kubelet 1")
    configured = with_kubelet(NodeConfiguration(system_qos=SystemQos("3")), kubelet, machine())
    assert str(configured.kubelet_reserved) == reserved
    assert configured.topology_policy == "restricted"
    assert configured.system_qos == SystemQos("3")
    assert str(rules(configured).kubelet_reserved) == reserved


def test_reservation_beyond_the_machine_is_refused_with_its_source() -> None:
    content = {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": 5}}
    with pytest.raises(ConfigurationError, match=r"^kubelet 1: kubeReserved and .* 5 CPUs were"):
        with_kubelet(NodeConfiguration(), of_object(content, "kubelet 1"), machine())


def test_amount_beyond_the_machine_reserves_nothing_and_is_reported_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api_node = node(**{RESERVATION: '{"resources": {"cpu": 9}}'})
    node_object = NodeObject("n")
    for _ in range(2):
        assert node_object.configuration(api_node, machine()).reservation == NodeReservation(
            {"cpu": 9}
        )
    (record,) = caplog.records
    assert "resources.cpu: 9 CPUs were requested and 4 are free" in record.getMessage()
