from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.kube.store import EmbeddedStore
from agent.model.node_annotations import RESERVATION, SYSTEM_QOS, NodeReservation, SystemQos
from agent.node.configured import NodeObject, rules
from tests.builders import machine
from tests.node.world import World


def node(**annotations: Any) -> dict[str, Any]:
    metadata = {"name": "n", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


@pytest.fixture
def store(tmp_path: Path) -> EmbeddedStore:
    return EmbeddedStore(str(tmp_path))


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {"kind": "Node", "metadata": {"name": "n"}},
        node(),
        node(other="x", **{SYSTEM_QOS: 3, RESERVATION: None}),
        {"kind": "Node", "metadata": {"name": "n", "annotations": ["x"]}},
    ],
)
def test_nothing_is_set_aside_where_nobody_says_so(
    store: EmbeddedStore, stored: dict[str, Any] | None
) -> None:
    if stored:
        store.apply(stored)
    configured = NodeObject(store, "n").configured(machine())
    assert (configured.system_qos, configured.reservation) == (SystemQos(), NodeReservation())


def test_annotations_become_rules(store: EmbeddedStore) -> None:
    notes = {
        SYSTEM_QOS: '{"cpuset": "3", "cpusetExclusive": false}',
        RESERVATION: '{"resources": {"cpu": "1100m"}}',
    }
    store.apply(node(**notes))
    configured = NodeObject(store, "n").configured(machine())
    assert configured.reservation == NodeReservation({"cpu": "1100m"}, "0-1")
    made = rules(configured)
    assert (str(made.node_reserved), str(made.system), made.system_exclusive) == ("0-1", "3", False)
    assert str(made.kept) == "0-1"


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({SYSTEM_QOS: '{"cpuset": "x"}'}, "system-qos-resource: cpuset: CPU list 'x'"),
        ({SYSTEM_QOS: "{"}, "system-qos-resource: is not JSON"),
        ({RESERVATION: '{"resources": {"cpu": 9}}'}, "reservation: resources.cpu: 9 CPUs"),
    ],
)
def test_what_cannot_be_read_is_told_once_and_leaves_the_last_good_word_in_force(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture, broken: dict[str, str], text: str
) -> None:
    good = {SYSTEM_QOS: '{"cpuset": "3"}', RESERVATION: '{"reservedCPUs": "0"}'}
    store.apply(node(**good))
    node_object = NodeObject(store, "n")
    before = node_object.configured(machine())
    store.apply(node(**broken))
    for _ in range(3):
        assert node_object.configured(machine()) == before
    (record,) = caplog.records
    assert text in record.getMessage()
    store.apply(node(**{SYSTEM_QOS: '{"cpuset": "2"}', RESERVATION: ""}))
    after = node_object.configured(machine())
    assert (after.system_qos, after.reservation) == (SystemQos("2"), NodeReservation())


def test_torn_node_object_leaves_the_last_good_word_in_force(
    store: EmbeddedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.apply(node(**{SYSTEM_QOS: '{"cpuset": "3"}'}))
    node_object = NodeObject(store, "n")
    before = node_object.configured(machine())
    (tmp_path / "node" / "n.yaml").write_text("[")
    for _ in range(2):
        assert node_object.configured(machine()) == before
    assert len(caplog.records) == 1


def test_amount_is_chosen_again_on_another_machine(store: EmbeddedStore) -> None:
    store.apply(node(**{RESERVATION: '{"resources": {"cpu": 2}}'}))
    node_object = NodeObject(store, "n")
    assert str(node_object.configured(machine()).reservation.cpus()) == "0-1"
    assert str(node_object.configured(machine(offline="0")).reservation.cpus()) == "1-2"


def test_a_node_annotation_reaches_containers_report_and_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = EmbeddedStore(str(world.state / "objects"))
    store.apply(node(**{SYSTEM_QOS: '{"cpuset": "3"}', RESERVATION: '{"reservedCPUs": "0"}'}))
    for name, qos in (("sys", "SYSTEM"), ("ls", "LS"), ("be", "BE")):
        world.container(world.sandbox(name, qos))
    world.agent().look()
    assert world.cpus("kubepods/burstable/podsys/c-sys-main") == "3"
    assert world.cpus("kubepods/burstable/podls/c-ls-main") == "1-2"
    assert world.cpus("kubepods/burstable/podbe/c-be-main") == "1-2"
    assert world.snapshot().system == "3"
    stored = store.get("Node", "n")
    assert stored is not None
    assert stored["metadata"]["annotations"][SYSTEM_QOS] == '{"cpuset": "3"}'
    reported = store.get("NodeResourceTopology", "n")
    assert reported is not None
    assert reported["metadata"]["annotations"][RESERVATION] == '{"reservedCPUs":"0"}'
