"""A container with a device, on a machine with four NUMA nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    create_container,
    create_request,
    run_pod,
    run_sandbox,
    start_container,
)
from tests.integration.harness import TestNode, fresh_node
from tests.waiting import eventually

HOLD = "--hold-seconds=30"


def start_with_device(node: TestNode, name: str, numa_node: int) -> str:
    """A Burstable container with a device of a plugin, started as by a kubelet."""
    spec = node.spec(name, "LS")
    entry = {
        "PodUID": spec.uid,
        "ContainerName": "main",
        "ResourceName": "example.com/card",
        "DeviceIDs": {str(numa_node): ["card-1"]},
    }
    checkpoint = node.folder / "kubelet/device-plugins/kubelet_internal_checkpoint"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    request = create_request(spec, run_sandbox(node.proxied, spec))
    request.config.devices.add(container_path="/dev/card", host_path="/dev/null", permissions="rw")
    container = create_container(node.proxied, request)
    start_container(node.proxied, container)
    return container


def test_a_container_starts_near_to_its_device_and_reads_its_cpus_in_a_file(
    containerd: Containerd,
) -> None:
    with fresh_node(containerd) as node:
        node.start_agent()
        node.start_proxy(HOLD)
        container = start_with_device(node, "card", 2)
        proc = Path(f"/proc/{node.direct.container_status(container).pid}")

        def told() -> Any:
            return json.loads((proc / "root/run/topolet/cpus").read_text())

        assert node.cpus(container) == "8-11"
        assert told() == {"cpus": "8-11", "generation": 1}
        assert b"TOPOLET_NUMA_NODES=2" in (proc / "environ").read_bytes().split(b"\0")
        run_pod(node.proxied, node.spec("owner", "LSE", "8-9"))
        eventually("the pool is smaller", lambda: node.cpus(container) == "10-11")
        assert told() == {"cpus": "10-11", "generation": 2}
        node.kill_agent()
        node.start_agent()
        assert told() == {"cpus": "10-11", "generation": 2}
        node.stop_agent()
        assert node.restore().returncode == 0
        assert told() == {"cpus": "0-15", "generation": 3}
        assert node.cpus(container) == "0-15"
