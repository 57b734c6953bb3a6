"""A real driver and a real GPU of NVIDIA, on a machine that has them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from agent.discover.gpuwatcher import GpuSession
from agent.kube.store import EmbeddedStore
from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY_RATIO
from agent.model.devices.gpus import GpuReport
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from tests.fixtures.image import BUSYBOX
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    kill_container,
    run_sandbox,
    start_container,
)
from tests.integration.harness import TestNode
from tests.waiting import eventually

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "misaddressed.cu"
CONTROL = "/dev/nvidiactl"
COMMON = (CONTROL, "/dev/nvidia-uvm")
"""Device nodes that all cards share."""

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def driver() -> None:
    if not os.path.exists(CONTROL) or shutil.which("nvidia-smi") is None:
        pytest.skip("no driver of NVIDIA on this machine")


@pytest.fixture
def session() -> Iterator[GpuSession]:
    with contextlib.closing(GpuSession()) as it:
        yield it


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc on this machine")
    path = tmp_path_factory.mktemp("cuda") / "misaddressed"
    subprocess.run([compiler, "-o", path, PROGRAM], check=True)
    return path


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Runs a program during the block; waits for its first line."""
    with subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def smi(*fields: str) -> list[list[str]]:
    """The fields of each card, as nvidia-smi prints them."""
    words = [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=True)
    return [line.split(", ") for line in text.stdout.splitlines()]


def report_of(session: GpuSession) -> GpuReport:
    report = session.report(120)
    assert report.fault == "", report.message
    return report


def test_the_inventory_is_that_of_nvidia_smi(session: GpuSession) -> None:
    inventory = report_of(session).inventory
    assert inventory is not None
    assert not inventory.silent
    found = [
        [
            gpu.uuid,
            str(gpu.index),
            gpu.bus.upper(),
            gpu.product,
            str((gpu.memory_bytes or 0) // MIB),
            inventory.driver,
        ]
        for gpu in inventory.gpus
    ]
    fields = ("uuid", "index", "pci.bus_id", "name", "memory.total", "driver_version")
    expected = smi(*fields)
    for line in expected:
        line[2] = line[2].removeprefix("0000")
    assert found == expected
    for gpu in inventory.gpus:
        number = os.stat(f"/dev/nvidia{gpu.minor}").st_rdev
        assert os.minor(number) == gpu.minor


def test_a_process_is_found_with_its_memory(session: GpuSession, program: pathlib.Path) -> None:
    with running(program, 3600) as process:
        found = {
            each.pid: each.memory_bytes
            for reading in report_of(session).readings
            for each in reading.processes or ()
        }
        assert (found[process.pid] or 0) >= 256 * MIB


def test_an_xid_makes_the_card_unhealthy_until_its_process_has_ended(
    node: TestNode, program: pathlib.Path
) -> None:
    node.start_agent()
    card = smi("uuid")[0][0]
    eventually("the card is healthy", lambda: health(node, card) == (True, ["Healthy"]))
    with running(program, 0):
        eventually(
            "a condition with the XID",
            lambda: health(node, card)[0] is False and "XID31" in health(node, card)[1],
        )
    eventually("the card is healthy again", lambda: health(node, card)[0] is True)


def health(node: TestNode, uuid: str) -> tuple[bool | None, list[str]]:
    """Whether the card of the Device object is healthy, and the types of its conditions."""
    found = EmbeddedStore(str(node.state / "objects")).get("Device", "node-a") or {}
    for device in found.get("spec", {}).get("devices", ()):
        if device["id"] == uuid:
            return device["health"], [each["type"] for each in device.get("conditions", ())]
    return None, []


def test_only_containers_of_the_pod_reach_its_card(node: TestNode) -> None:
    """The requests name device nodes as a device plugin does. The programs are the host's."""
    node.start_agent("--unrequested-gpus=deny")
    node.start_proxy()
    uuid = smi("uuid")[0][0]
    eventually("the agent knows the card", lambda: health(node, uuid)[0] is True)
    minor = minor_of(uuid)
    resources = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}
    allocated = json.dumps({"gpu": [{"minor": minor, "resources": resources}]})
    holder = node.spec("holder", "LS", annotations={DEVICE_ALLOCATED: allocated})
    card = f"/dev/nvidia{minor}"
    assert listed(node, holder, card, *COMMON) == [uuid]
    assert listed(node, node.spec("without", "LS"), *COMMON) == []
    with pytest.raises(RpcError, match=f"default/thief: {card} of its request is {uuid}, another"):
        listed(node, node.spec("thief", "LS"), card, *COMMON)


def minor_of(uuid: str) -> int:
    with contextlib.closing(GpuSession()) as session:
        inventory = report_of(session).inventory
    assert inventory is not None
    (minor,) = (gpu.minor for gpu in inventory.gpus if gpu.uuid == uuid)
    assert minor is not None
    return minor


def listed(node: TestNode, spec: PodSpec, *paths: str) -> list[str]:
    """The UUIDs of the cards that nvidia-smi lists in a container with these device nodes. Raises
    RpcError."""
    request = create_request(spec, run_sandbox(node.proxied, spec))
    for path in paths:
        request.config.devices.add(host_path=path, container_path=path, permissions="rw")
    request.config.mounts.add(host_path="/", container_path="/host", readonly=True)
    container = create_container(node.proxied, request)
    start_container(node.proxied, container)
    program = str(shutil.which("nvidia-smi"))
    words = [BUSYBOX, "chroot", "/host", program, "--query-gpu=uuid", "--format=csv,noheader"]
    inside = pb.ExecSyncRequest(container_id=container, cmd=words, timeout=60)
    answered = node.direct.call("ExecSync", inside, pb.ExecSyncResponse)
    kill_container(node.direct, container)
    return [line for line in answered.stdout.decode().splitlines() if line.startswith("GPU-")]
