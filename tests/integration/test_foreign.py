"""GPUs that pods had before the agent first started, on a real containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.model.devices.holding import DEVICES_CHECKPOINTS
from agent.model.devices.visibility import MOUNT_ROOT
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.rpc.grpc import RpcError
from tests.discover import gpumachines
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_sandbox,
    start_container,
)
from tests.integration import devicefiles
from tests.integration.gpunode import GpuNode
from tests.integration.harness import TestNode, fresh_node
from tests.waiting import eventually


@pytest.fixture
def gpus(node: TestNode) -> GpuNode:
    return GpuNode(node, gpumachines.dgx1())


@pytest.fixture
def card_file() -> Iterator[str]:
    """The device file of the card with minor 5, without a driver."""
    path = "/dev/nvidia5"
    with devicefiles.present("foreign", {path: (240, 245)}):
        yield path


def reported_devices(gpus: GpuNode) -> dict[str, list[str]]:
    """The device ids of pods without an allocation in the Device object, by pod uid."""
    text = gpus.device()["metadata"].get("annotations", {}).get(DEVICES_CHECKPOINTS, "[]")
    return {each["podUID"]: each["deviceIDs"] for each in json.loads(text)}


def allocation(minor: int) -> dict[str, str]:
    amounts = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
    return {DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": minor, "resources": amounts}]})}


def run_with(gpus: GpuNode, spec: PodSpec, path: str) -> None:
    """Runs a container of the pod with a device node."""
    request = create_request(spec, run_sandbox(gpus.node.direct, spec))
    request.config.devices.add(host_path=path, container_path=path, permissions="rw")
    start_container(gpus.node.direct, create_container(gpus.node.direct, request))


def test_devices_that_a_container_has_are_reported_and_not_allocated_again(
    gpus: GpuNode, card_file: str
) -> None:
    """A GPU that a container only names stays free: any pod can name any GPU."""
    node, card = gpus.node, next(each for each in gpus.machine.cards if each.minor == 5)
    spec = node.spec("other", "LS")
    run_with(gpus, spec, card_file)
    mounted = node.spec("mounted", "LS")
    request = create_request(mounted, run_sandbox(node.direct, mounted))
    other = gpus.machine.cards[3]
    path = f"{MOUNT_ROOT}/{other.uuid}"
    request.config.mounts.add(host_path="/dev/null", container_path=path)
    start_container(node.direct, create_container(node.direct, request))
    for name, visible in (("monitor", "all"), ("named", gpus.machine.cards[2].uuid)):
        gpus.run(node.spec(name, "LS"), visible)
    gpus.start_agent()
    eventually(
        "the container's GPU is reported",
        lambda: reported_devices(gpus) == {spec.uid: [card.uuid]},
    )

    node.start_proxy()
    late = node.spec("late", "LS", annotations=allocation(card.minor or 0))
    sandbox = run_sandbox(node.proxied, late)
    with pytest.raises(RpcError, match=f"{card.uuid}.*default/other"):
        create_container(node.proxied, create_request(late, sandbox))

    allocated = node.spec("allocated", "LS", annotations=allocation(other.minor or 0))
    create_container(node.proxied, create_request(allocated, run_sandbox(node.proxied, allocated)))

    for each in node.direct.sandboxes():
        if each.uid == spec.uid:
            remove_pod(node.direct, each.id)
    eventually("released", lambda: reported_devices(gpus) == {})


def test_devices_of_excluded_pods_are_reported(gpus: GpuNode, card_file: str) -> None:
    card = next(each for each in gpus.machine.cards if each.minor == 5)
    spec = gpus.node.spec("other", "LS", namespace="kube-system")
    run_with(gpus, spec, card_file)
    gpus.start_agent("--exclude=kube-*")
    eventually("the GPU is reported", lambda: reported_devices(gpus) == {spec.uid: [card.uuid]})


def test_devices_are_found_by_cdi_names_and_device_nodes(
    containerd2: Containerd, card_file: str
) -> None:
    """Also by a device node that has another name in the container."""
    by_minor = {card.minor: card.uuid for card in gpumachines.dgx1().cards}
    device = {"name": by_minor[4], "containerEdits": {"env": ["CARD=1"]}}
    specification = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]}
    folder = containerd2.folder / "cdi"
    folder.mkdir(exist_ok=True)
    file = folder / "foreign.json"
    file.write_text(json.dumps(specification))
    with fresh_node(containerd2) as node:
        gpus = GpuNode(node, gpumachines.dgx1())
        specs = {name: node.spec(name, "LS") for name in ("cdi", "moved")}
        for name, spec in specs.items():
            request = create_request(spec, run_sandbox(node.direct, spec))
            if name == "cdi":
                request.config.CDI_devices.add(name=f"nvidia.com/gpu={by_minor[4]}")
            else:
                request.config.devices.add(
                    host_path=card_file, container_path="/dev/nvidia0", permissions="rw"
                )
            start_container(node.direct, create_container(node.direct, request))
        gpus.start_agent()
        expected = {specs["cdi"].uid: [by_minor[4]], specs["moved"].uid: [by_minor[5]]}
        eventually(
            "the GPUs of both containers are reported", lambda: reported_devices(gpus) == expected
        )
    file.unlink()
