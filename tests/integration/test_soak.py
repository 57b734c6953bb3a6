"""Agent and proxy while many pods start and end for minutes, without a kubelet: memory and
descriptors do not grow. `tests.soak` has a whole cluster, and fewer pods a minute."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.model import audit
from agent.rpc.grpc import RpcError
from tests.fixtures.cgroups import remove_cgroups
from tests.fixtures.pods import (
    create_container,
    create_request,
    large_environment,
    remove_pod,
    run_pod,
    run_sandbox,
)
from tests.integration.harness import TestNode
from tests.waiting import eventually

SECONDS = 300.0
WARM_WAVES = 15
"""The number of waves after which allocators and caches have their final size."""
RESIDENT_KB, FILES, THREADS = 3_000, 130, 2
"""The largest growth of a process after the warm-up. The agent keeps files of cgroups open, four
for each pod, and closes those of removed cgroups in batches."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 600)]


class ResourceUsage(NamedTuple):
    """The resources of a process."""

    resident_kb: int
    files: int
    threads: int


def resource_usage(pid: int) -> ResourceUsage:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(each.split(":", 1) for each in lines)
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return ResourceUsage(int(status["VmRSS"].split()[0]), files, int(status["Threads"]))


def run_wave(node: TestNode, number: int) -> None:
    """An owner, a pod that shares and a BestEffort pod start and end, with failures: a claim of the
    owner's CPU, a large request for an image that does not exist, and a caller that disconnects."""
    specs = [
        node.spec(f"own-{number}", "LSE", "1"),
        node.spec(f"share-{number}", "LS"),
        node.spec(f"be-{number}", "BE", kube_class="besteffort"),
        node.spec(f"late-{number}", "LSR", "1"),
    ]
    pods = [run_pod(node.proxied, each) for each in specs]
    assert [node.cpus(container) for _, container in pods] == ["1", "0", "0", "0"]
    failing = node.spec(f"fails-{number}", "LS")
    sandbox = run_sandbox(node.proxied, failing)
    request = create_request(failing, sandbox)
    request.config.image.image = f"none-{number}"
    large_environment(request.config, 200_000)
    with pytest.raises(RpcError):
        create_container(node.proxied, request)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(node.cri_socket)
        caller.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0")
    for each in (sandbox, *(sandbox for sandbox, _ in pods)):
        remove_pod(node.proxied, each)
    for spec in (failing, *specs):
        remove_cgroups(spec.cgroup_parent())


def usage_without_pods(node: TestNode) -> dict[str, ResourceUsage]:
    """The resource usage of both processes once no pod has exclusive CPUs."""
    eventually("no pod has exclusive CPUs", lambda: node.metric("topolet_exclusive_cpus") == 0)
    return {"agent": resource_usage(node.agent_pid), "proxy": resource_usage(node.proxy_pid)}


def test_memory_descriptors_and_state_do_not_grow(
    node: TestNode, record_property: Callable[[str, object], None]
) -> None:
    node.start_agent()
    node.start_proxy()
    for number in range(WARM_WAVES):
        run_wave(node, number)
    before, state = usage_without_pods(node), state_bytes(node)
    number, end = WARM_WAVES, time.monotonic() + SECONDS
    while time.monotonic() < end:
        run_wave(node, number)
        number += 1
    after = usage_without_pods(node)
    record_property("summary", f"{number} waves of 5 pods in the soak: {before} then {after}")
    for name, then in before.items():
        now = after[name]
        assert now.resident_kb - then.resident_kb <= RESIDENT_KB, name
        assert now.files - then.files <= FILES, name
        assert now.threads - then.threads <= THREADS, name
    assert state_bytes(node) <= state + 4_096
    assert not [line for line in node.log("agent").splitlines() if "Traceback" in line]


def state_bytes(node: TestNode) -> int:
    """The size of the files in the state folder, without the audit trail, which has a bound of its
    own."""
    files = (each for each in node.state.rglob("*") if each.is_file())
    return sum(each.stat().st_size for each in files if audit.FOLDER not in each.parts)
