from __future__ import annotations

import json

import msgspec

from agent.allocate.device_holders.holdings import allocated_by_schedulers, held_by_two_pods
from agent.model.devices.device_allocation import amounts
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.pods import Pod
from tests.allocate.device_holders.node import DEVICES, GPU
from tests.builders import pod


def with_allocation(uid: str, text: str) -> Pod:
    return msgspec.structs.replace(pod(uid), annotations={DEVICE_ALLOCATED: text})


def test_allocations_from_annotations() -> None:
    text = json.dumps({"gpu": [{"minor": 0}], "rdma": [], "fpga": None})
    pods = [
        with_allocation("a", text),
        with_allocation("invalid", "{"),
        with_allocation("none", '{"gpu":[]}'),
        pod("b"),
    ]
    found, problems = allocated_by_schedulers(pods)
    assert {uid: list(of_pod) for uid, of_pod in found.items()} == {"a": ["gpu"]}
    (problem,) = problems
    assert problem.startswith(
        "pod ns/invalid: annotation scheduling.koordinator.sh/device-allocated: "
    )


def test_overlaps_of_two_pods() -> None:
    found, _ = allocated_by_schedulers(
        [with_allocation("a", json.dumps({"gpu": [{"minor": 0, "resources": GPU}]}))]
    )
    held = {uid: amounts(of_pod) for uid, of_pod in found.items()}
    pods = {uid: pod(uid) for uid in "ab"}
    container_holding = DeviceHolding(
        "b", "main", "", "gpu", "GPU-a1", Form.WHOLE, source=HoldingSource.CONTAINER
    )
    cpus = DeviceHolding("b", "main", "dra.cpu", "", "", Form.CPUS, "0-3")
    assert list(held_by_two_pods(held, DEVICES, [container_holding, cpus], pods)) == [
        "pod ns/b has gpu GPU-a1, which belongs to pod ns/a (source: container)"
    ]
    assert (
        list(
            held_by_two_pods(
                held, DEVICES, [msgspec.structs.replace(container_holding, uid="a")], pods
            )
        )
        == []
    )
