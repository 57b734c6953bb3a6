"""The values of a node that pages and terminals show."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import LocalOwner, Owner, PodWanted, Snapshot, Wanted
from agent.view.devices import ShownDevice
from agent.view.live import (
    UNKNOWN,
    Attention,
    LiveNode,
    LivePart,
    LivePod,
    live,
    loads,
)
from tests.builders import machine
from tests.conftest import DATA

TOPOLOGY = machine(2, 4)
"""Two nodes with four CPUs each."""


def decided(
    pods: dict[str, PodWanted],
    owners: tuple[Owner, ...] = (),
    local: tuple[LocalOwner, ...] = (),
) -> Snapshot:
    pools = (Pool(0, 0, "0-1"), Pool(1, 1, "4-7"))
    return Snapshot(
        7, 0, "b", False, {"ls": pools, "be": pools[1:]}, owners, pods, {}, local_owners=local
    )


def live_node(
    pods: dict[str, PodWanted], *owners: Owner, local: tuple[LocalOwner, ...] = ()
) -> LiveNode:
    return live("n", TOPOLOGY, decided(pods, owners, local))


def pod(qos: QoS, cpus: str | None, **fields: object) -> PodWanted:
    exclusive = bool(fields.pop("exclusive", False))
    blocked = str(fields.pop("blocked", ""))
    wanted = Wanted(LinuxResources(cpus), exclusive=exclusive, blocked=blocked)
    return PodWanted("ns/a", qos, wanted, **fields)  # type: ignore[arg-type]


def only_pod(found: LiveNode) -> LivePod:
    (pod,) = found.pods
    return pod


def test_an_owner_with_reason_and_nodes() -> None:
    live_pod = only_pod(
        live_node({"u": pod(QoS.LSE, "2-4", exclusive=True)}, Owner("u", "ns/a", QoS.LSE, "2-4"))
    )
    assert (live_pod.own, live_pod.cpus, live_pod.nodes, live_pod.state) == (
        "2-4",
        "2-4",
        "0-1",
        "owns its CPUs",
    )
    assert "resource-status" in live_pod.reason


def test_the_reason_names_the_source_of_an_owners_cpus() -> None:
    wanted = pod(
        QoS.LS,
        "0-1",
        containers={
            "main": Wanted(LinuxResources("2", quota=NO_QUOTA), exclusive=True, kubelet=True)
        },
    )
    owner = Owner("u", "ns/a", QoS.LS, "2", kubelet=True)
    assert only_pod(live_node({"u": wanted}, owner)).reason == "the kubelet assigned them"
    assert only_pod(live_node({"u": wanted}, owner)).cpus == "2"
    of_claims = Owner("u", "ns/a", QoS.LSE, "2", claims=True)
    assert only_pod(live_node({"u": wanted}, of_claims)).reason == "ResourceClaims gave them"
    by_policy = live_node(
        {"u": wanted},
        Owner("u", "ns/a", QoS.LSE, "2"),
        local=(LocalOwner("u", "main", "2"),),
    )
    assert "policy" in only_pod(by_policy).reason


def test_a_mixed_container_shows_both_parts() -> None:
    mixed = Wanted(LinuxResources("0-4"), exclusive=True, shared="2-4")
    owner = pod(QoS.LSE, "0-1", exclusive=True, containers={"main": mixed})
    live_pod = only_pod(live_node({"u": owner}, Owner("u", "ns/a", QoS.LSE, "0-1")))
    assert (live_pod.own, live_pod.cpus) == ("0-1", "0-4")
    (container,) = live_pod.containers
    assert (container.cpus, container.state) == ("0-4", "own 0-1 beside its pool")


def test_sharers_and_pods_that_are_not_managed() -> None:
    assert only_pod(live_node({"u": pod(QoS.LS, "0-1,4-7")})).state == "shares a pool"
    assert only_pod(live_node({"u": pod(QoS.LS, None)})).state == "not managed"


def test_attention_of_pods_and_devices() -> None:
    pods = {
        "u": pod(QoS.LSE, "0-1", refused="CPUs 2-3 belong to pod ns/b"),
        "v": PodWanted(
            "ns/v",
            QoS.LSR,
            Wanted(LinuxResources("3"), blocked="a container of pod ns/u runs there"),
        ),
    }
    unhealthy = ShownDevice("gpu", "0000:01:00.0", "H100", healthy=False, state="Xid 79")
    healthy = ShownDevice("gpu", "0000:02:00.0", "H100", healthy=True)
    owner = Owner("v", "ns/v", QoS.LSR, "3", offline="5")
    found = live(
        "n", TOPOLOGY, decided(pods, (owner,)), (unhealthy, healthy), [Attention("First", "x")]
    )
    assert [(each.kind, each.pod or each.device) for each in found.attention] == [
        ("First", ""),
        ("Claim refused", "ns/a"),
        ("Containers wait", "ns/v"),
        ("CPUs offline", "ns/v"),
        ("Device unhealthy", "0000:01:00.0"),
    ]


def test_a_node_without_decisions() -> None:
    found = live("n", TOPOLOGY, None)
    assert (found.generation, found.pods, found.pools) == (0, (), ())
    assert len(found.cpus) == 8
    assert live("n", TOPOLOGY, None, hardware=["a model"]).hardware == ("a model",)


def cpus_of_parts(part: LivePart) -> list[int]:
    if not part.parts:
        return list(CpuSet.parse(part.cpus))
    return [cpu for each in part.parts for cpu in cpus_of_parts(each)]


def nodes_of_parts(part: LivePart) -> list[int]:
    own = [] if part.node is None else [part.node]
    return own + [node for each in part.parts for node in nodes_of_parts(each)]


@pytest.mark.parametrize("name", sorted(json.loads((DATA / "sysfs/expected.json").read_text())))
def test_a_real_machine_has_each_cpu_once_and_one_part_for_the_devices_of_each_node(
    name: str, snapshot: Callable[[str], str]
) -> None:
    topology = cpus.read(snapshot(name))
    found = live("n", topology, None)
    cpu_ids = [cpu for part in found.parts for cpu in cpus_of_parts(part)]
    assert sorted(cpu_ids) == list(topology.online)
    device_nodes = [node for part in found.parts for node in nodes_of_parts(part)]
    assert sorted(device_nodes) == sorted({cpu.node for cpu in topology.cpus})


def test_json_has_the_fields_that_the_page_reads() -> None:
    found = msgspec.json.decode(msgspec.json.encode(live_node({"u": pod(QoS.LS, "0-1")})))
    assert found["schema_version"] == 1
    assert found["pools"][0] == {"kind": "LS", "node": 0, "cpus": "0-1"}
    assert found["pods"][0]["title"] == "ns/a"
    assert found["cpus"][4] == {"id": 4, "core": 4, "node": 1, "socket": 1} | (
        {"l3": found["cpus"][4]["l3"]} if "l3" in found["cpus"][4] else {}
    )


def test_loads() -> None:
    before = {0: (0, 0), 1: (50, 100), 2: (5, 10)}
    after = {0: (30, 100), 1: (50, 100), 3: (1, 1)}
    assert list(loads(before, after, (0, 1, 2, 3))) == [30, UNKNOWN, UNKNOWN, UNKNOWN]


@given(st.tuples(*[st.integers(0, 1 << 40)] * 4))
def test_a_load_is_a_percentage_or_unknown_for_any_text_of_the_kernel(
    values: tuple[int, int, int, int],
) -> None:
    (found,) = loads({0: values[:2]}, {0: values[2:]}, [0])
    assert found <= 100 or found == UNKNOWN


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_own_cpus_are_the_cpus_of_the_owner(own: set[int], shared: set[int]) -> None:
    owner = Owner("u", "ns/a", QoS.LSE, str(CpuSet(own)))
    live_pod = only_pod(live_node({"u": pod(QoS.LSE, str(CpuSet(shared)))}, owner))
    assert CpuSet.parse(live_pod.own) == CpuSet(own)
    assert set(CpuSet.parse(live_pod.cpus)) >= shared
