import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner
from agent.node import violations
from tests.builders import pod, running

LSE = Owner("own", "ns/own", QoS.LSE, "1-2")
LSR = Owner("own", "ns/own", QoS.LSR, "1-2")


@pytest.mark.parametrize(
    ("uid", "qos", "owner", "effective", "cpus"),
    [
        ("p", "LS", LSE, "0-1", "1"),
        ("p", "LS", LSR, "0-3", "1-2"),
        ("p", "BE", LSE, "2", "2"),
        ("p", "BE", LSR, "2", None),
        ("p", "LSE", LSR, "2-3", "2"),
        ("p", "LS", LSE, "0,3", None),
        ("own", "LSE", LSE, "1-2", None),
    ],
)
def test_overlaps_of_containers_with_owners(
    uid: str, qos: str, owner: Owner, effective: str, cpus: str | None
) -> None:
    pods = (pod(uid, qos, containers=(running("c"),)),)
    found = violations.find_overlaps(pods, (owner,), {"c": CpuSet.parse(effective)})
    assert [each.cpus for each in found] == ([] if cpus is None else [cpus])
    for each in found:
        assert (each.container_id, each.title, each.owner) == ("c", f"ns/{uid}", "ns/own")


def test_container_whose_cpus_are_unknown_is_left_out() -> None:
    pods = (pod("p", "LS", containers=(running("c"), running("d"))),)
    found = violations.find_overlaps(pods, (LSE,), {"d": CpuSet([1])})
    assert [each.container_id for each in found] == ["d"]


def test_started_pods_are_those_with_a_running_container() -> None:
    waiting = Container("c", "main", ContainerState.CREATED)
    pods = (
        pod("running", containers=(waiting, running("d"))),
        pod("waiting", containers=(waiting,)),
        pod("empty"),
    )
    assert violations.started(pods) == {"running"}
