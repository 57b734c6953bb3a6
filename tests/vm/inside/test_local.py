"""A node-local CPU policy on four NUMA nodes: CPUs near devices and huge pages."""

from __future__ import annotations

import json
from pathlib import Path

from agent.proto import cri_pb2 as pb
from agent.proxy import gate as cri
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import create_container, create_request, run_sandbox, start_container
from tests.integration.harness import TestNode, fresh_node

HOLD = "--hold-seconds=30"
POOL = Path("/sys/devices/system/node/node3/hugepages/hugepages-2048kB/nr_hugepages")
PAGES = 8
PAGE_BYTES = 2 << 20
_HUGEPAGE_LIMITS = 8
"""The field of LinuxContainerResources."""


def start_pod(
    node: TestNode, name: str, hugepages_bytes: int = 0, *, nic: int | None = None
) -> str:
    """A container of two CPUs. `nic`: the NUMA node of the device that a plugin gave to it."""
    spec = node.spec(name, kube_class="guaranteed")
    sandbox = run_sandbox(node.proxied, spec)
    if nic is not None:
        entry = {
            "PodUID": spec.uid,
            "ContainerName": "main",
            "ResourceName": "example.com/nic",
            "DeviceIDs": {str(nic): ["nic-1"]},
        }
        checkpoint = node.folder / "kubelet/device-plugins/kubelet_internal_checkpoint"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    request = create_request(spec, sandbox)
    request.config.linux.resources.cpu_shares = 2048
    limit = cri.patch((1,), "2MB") + cri.patch((2,), hugepages_bytes)
    more = cri.patch((*cri.CREATE_RESOURCES, _HUGEPAGE_LIMITS), limit)
    request.MergeFrom(pb.CreateContainerRequest.FromString(more))
    container = create_container(node.proxied, request)
    start_container(node.proxied, container)
    return container


def test_cpus_are_near_devices_and_free_huge_pages(containerd: Containerd) -> None:
    before = POOL.read_text()
    POOL.write_text(str(PAGES))
    assert int(POOL.read_text()) == PAGES
    try:
        with fresh_node(containerd) as node:
            flags = ("--cpu-policy=static", "--reserved-cpus=0-1")
            node.start_agent(*flags)
            node.start_proxy(HOLD)
            ids = {
                "device": start_pod(node, "device", nic=2),
                "pages": start_pod(node, "pages", PAGES * PAGE_BYTES),
                "late": start_pod(node, "late", PAGES * PAGE_BYTES),
                "plain": start_pod(node, "plain"),
            }
            cpus = {name: node.cpus(container) for name, container in ids.items()}
            assert cpus["device"] in ("8-9", "10-11")
            assert cpus["pages"] in ("12-13", "14-15")
            assert cpus["late"] not in ("12-13", "14-15"), "the pages are requested already"
            # CPUs 0 and 1 are the first core, which is reserved.
            assert cpus["plain"] not in ("0-1", *(cpus[each] for each in ("device", "pages")))
            node.kill_agent()
            (node.state / "snapshot.json").unlink()
            node.start_agent(*flags)
            assert {name: node.cpus(container) for name, container in ids.items()} == cpus
    finally:
        POOL.write_text(before)
