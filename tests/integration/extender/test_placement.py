"""A part of the openb trace: with the placement policy Residual, a real kube-scheduler allocates as
many GPUs as the simulation."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.kube.errors import NotFoundError
from agent.model.cpu.policies import PlacementPolicy
from agent.model.devices import device_object
from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY_RATIO, Device, DeviceType
from agent.model.nrt.node_status import GPU_MODEL
from agent.model.pod_request import GPU_MILLI, PodKind
from agent.scheduler import simulation
from agent.scheduler.simulation import TraceNode, arrivals, shuffled
from agent.scheduler.state import pods_seen
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects, process
from tests.integration.kubescheduler.nodes import DEVICES, SYSTEM
from tests.integration.kubescheduler.schedulers import (
    PROFILE,
    Topolet,
    install,
    shipped_configuration,
)
from tests.scheduler import openb
from tests.waiting import eventually

NAMESPACE = "placement"
LABEL = {"topolet.io/test": NAMESPACE}
SEED, LOAD = 42, 1.2
PART = 24
"""One of this many nodes and pods of the trace is used."""
PATIENCE_SECONDS = 400.0


def trace() -> tuple[list[TraceNode], list[PodKind]]:
    return openb.nodes()[::PART], openb.pods()[::PART]


@contextlib.contextmanager
def created_nodes(api: ApiServer, nodes: Sequence[TraceNode]) -> Iterator[None]:
    """Creates the nodes, with the names of the simulation: the ranks of nodes depend on names."""
    names = [f"n{number:05d}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        percent = str(node.gpus * 100)
        amounts = {"cpu": f"{node.cpu_milli}m", "memory": str(node.memory_bytes)}
        amounts |= {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
        objects.ready_node(api, name, amounts, labels={**LABEL, GPU_MODEL: node.model})
        whole = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}
        cards = [Device(DeviceType.GPU, f"{name}-{at}", at, whole) for at in range(node.gpus)]
        api.admin.apply(f"{DEVICES}/{name}", device_object.encode(name, cards))
    try:
        yield
    finally:
        for name in names:
            for path in (f"{DEVICES}/{name}", f"/api/v1/nodes/{name}"):
                with contextlib.suppress(NotFoundError):
                    api.admin.delete(path)


def create(api: ApiServer, name: str, kind: PodKind) -> None:
    amounts = {"cpu": f"{kind.cpu_milli}m", "memory": str(kind.memory_bytes)}
    if kind.gpus:
        percent = str(kind.gpus * kind.gpu_milli * 100 // GPU_MILLI)
        amounts |= {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
    pod = objects.pod_manifest(NAMESPACE, name, amounts, scheduler=PROFILE, nodeSelector=LABEL)
    objects.create(api, pod)


def decided_pods(api: ApiServer) -> tuple[set[str], int]:
    """The names of the bound pods, and how many pods kube-scheduler has decided about."""
    pods = objects.pods(api, NAMESPACE)
    bound = {name for name, pod in pods.items() if pod["spec"].get("nodeName")}
    refused = {
        name
        for name, pod in pods.items()
        for each in pod["status"].get("conditions") or ()
        if (each["type"], each["status"]) == ("PodScheduled", "False")
    }
    return bound, len(bound | refused)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_real_kube_scheduler_allocates_as_the_simulation(
    apiserver: ApiServer, tmp_path: Path
) -> None:
    process.program_or_skip()
    nodes, pods = trace()
    gpus = sum(each.gpus for each in nodes)
    arriving = arrivals(pods, gpus, LOAD, SEED)
    settings = tmp_path / "args.json"
    settings.write_text(json.dumps({"kind": "NodeNUMAResourceArgs", "placement": "Residual"}))
    install(apiserver)
    objects.namespace(apiserver, NAMESPACE)
    flags = ("--tls-dir=", "--client-ca-file=", "--agent-selector=")
    topolet = Topolet(apiserver, tmp_path, *flags, f"--scheduler-args-file={settings}")
    found = shipped_configuration(apiserver, topolet.port)
    (extender,) = found["extenders"]
    extender["urlPrefix"] = f"http://127.0.0.1:{topolet.port}"
    del extender["enableHTTPS"], extender["tlsConfig"]

    def decided() -> bool:
        time.sleep(1)
        return decided_pods(apiserver)[1] == len(arriving)

    with created_nodes(apiserver, shuffled(nodes, SEED)):
        try:
            topolet.start()
            with process.scheduling(apiserver, found, tmp_path):
                for number, kind in enumerate(arriving):
                    create(apiserver, f"p{number}", kind)
                eventually("kube-scheduler has tried all pods", decided, PATIENCE_SECONDS)
                bound, _ = decided_pods(apiserver)
        finally:
            topolet.kill()
    allocated = sum(kind.gpu for number, kind in enumerate(arriving) if f"p{number}" in bound)
    simulated = simulation.run(nodes, pods, PlacementPolicy.RESIDUAL, LOAD, SEED)
    assert 100 * allocated / gpus == pytest.approx(simulated.curve[-1].allocated, abs=0.5)
    stored = f"/api/v1/namespaces/{SYSTEM}/configmaps/{pods_seen.NAME}"
    counts = pods_seen.content(apiserver.admin.get(stored))
    assert {each for each in counts if each.gpus} <= {each for each in pods if each.gpus}
