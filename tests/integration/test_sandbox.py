"""The CPUs of a sandbox right after runc has created it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
from collections.abc import Iterator

import pytest

from agent.cri.client import Cri
from agent.hooks.agent_client import Notifier
from agent.model import snapshot as snapshots
from agent.model.notifications import SOCKET
from agent.proto import cri_pb2 as pb
from agent.proxy import gate as cri
from agent.rpc.grpc import RpcError
from tests.fixtures.cgroups import make_cgroup
from tests.fixtures.constants import SANDBOX_HOLD
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import PodSpec, remove_pod, run_pod, run_sandbox
from tests.integration.harness import (
    NO_FULL_PASS,
    TestNode,
    fresh_node,
    private_containerd,
    write_runc,
)
from tests.waiting import DEADLINE_SECONDS, eventually

_RUNC = """#!/bin/sh
case " $* " in *" create "*)
    while [ -e {folder}/delay ]; do
        touch {folder}/delayed
        sleep 0.05
    done
esac
{runc} "$@"
code=$?
case " $* " in *" create "*)
    while [ $# -gt 1 ]; do
        if [ "$1" = --pid-file ]; then file=$2; fi
        shift
    done
    grep Cpus_allowed_list "/proc/$(cat "$file")/status" >{folder}/first-"$1"
esac
exit $code
"""


class RecordingRunc:
    """A folder with a `runc` that records the CPUs of each container between creation and start.
    While the file `delay` exists, it delays creations and creates the file `delayed`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        write_runc(folder, _RUNC)

    def first_cpus(self, container_id: str) -> str:
        return (self.folder / f"first-{container_id}").read_text().split()[1]


@pytest.fixture(scope="module")
def runc(tmp_path_factory: pytest.TempPathFactory) -> RecordingRunc:
    return RecordingRunc(tmp_path_factory.mktemp("runc"))


@pytest.fixture(scope="module")
def containerd(runc: RecordingRunc) -> Iterator[Containerd]:
    with private_containerd(runc.folder) as runtime:
        yield runtime


@pytest.fixture
def node(containerd: Containerd) -> Iterator[TestNode]:
    """A node with agent, proxy and an owner of CPU 1."""
    with fresh_node(containerd) as it:
        it.start_agent(NO_FULL_PASS)
        it.start_proxy()
        run_pod(it.proxied, it.spec("lse", "LSE", "1"))
        yield it


def pod_cpus(spec: PodSpec) -> str:
    """The CPUs of the pod's own cgroup, in a kernel with cgroup v1."""
    group = pathlib.Path(f"/sys/fs/cgroup/cpuset{spec.cgroup_parent()}")
    return (group / "cpuset.cpus").read_text().strip()


def test_sandbox_begins_without_the_cpus_of_owners(node: TestNode, runc: RecordingRunc) -> None:
    """A busy machine may need more than the 50 ms for which a sandbox waits by default."""
    node.kill_proxy()
    node.constants["proxy"] = {SANDBOX_HOLD: 30.0}
    node.start_proxy("--hold-seconds=30")
    for number in range(3):
        spec = node.spec(f"ls-{number}", "LS")
        make_cgroup(spec.cgroup_parent())
        all_cpus = pod_cpus(spec)
        sandbox, container = run_pod(node.proxied, spec)
        assert runc.first_cpus(sandbox) == "0"
        assert runc.first_cpus(container) == "0"
        eventually("the pod has its CPUs back", lambda: pod_cpus(spec) == all_cpus)  # noqa: B023
        assert node.sandbox_cpus(sandbox) == "0"
        remove_pod(node.proxied, sandbox)
    assert "RunPodSandbox continues" not in node.log("proxy")


def test_hanging_agent_delays_a_sandbox_and_corrects_it_later(
    node: TestNode, runc: RecordingRunc
) -> None:
    spec = node.spec("ls", "LS")
    make_cgroup(spec.cgroup_parent())
    os.kill(node.agent_pid, signal.SIGSTOP)
    try:
        sandbox = run_sandbox(node.proxied, spec)
    finally:
        os.kill(node.agent_pid, signal.SIGCONT)
    assert "RunPodSandbox continues: pod default/ls" in node.log("proxy")
    assert runc.first_cpus(sandbox) == "0-1"
    eventually("the sandbox has the pool", lambda: node.sandbox_cpus(sandbox) == "0")


def test_an_agent_killed_after_the_notification_restores_the_cpus_of_the_pod(
    node: TestNode,
) -> None:
    spec = node.spec("ls", "LS")
    make_cgroup(spec.cgroup_parent())
    all_cpus = pod_cpus(spec)
    request = pb.RunPodSandboxRequest(config=spec.config())
    notifier = Notifier(str(node.state / SOCKET))
    assert notifier.notify(cri.run_pod_sandbox(request.SerializeToString()))
    notifier.close()
    eventually("the pod has the pool", lambda: pod_cpus(spec) == "0")
    node.kill_agent()
    sandbox = run_sandbox(node.proxied, spec)
    assert pod_cpus(spec) == node.sandbox_cpus(sandbox) == "0"
    node.start_agent(NO_FULL_PASS)
    eventually("the pod has its CPUs back", lambda: pod_cpus(spec) == all_cpus)
    assert node.sandbox_cpus(sandbox) == "0"
    node.stop_agent()
    assert node.restore().returncode == 0
    assert node.sandbox_cpus(sandbox) == all_cpus


def test_a_proxy_killed_while_it_creates_a_sandbox_leaves_no_claim(
    containerd: Containerd, runc: RecordingRunc
) -> None:
    with fresh_node(containerd) as node:
        node.start_agent(NO_FULL_PASS)
        node.start_proxy()
        killed = node.spec("killed", "LSE", "1")
        (runc.folder / "delay").touch()
        client = Cri(node.cri_socket, DEADLINE_SECONDS)
        call = threading.Thread(target=lambda: try_sandbox(client, killed))
        call.start()
        try:
            eventually("runc creates the sandbox", (runc.folder / "delayed").exists)
            eventually("the pod owns CPU 1", lambda: owners(node) == ["default/killed"])
            node.kill_proxy()
            call.join()
        finally:
            (runc.folder / "delay").unlink()
        client.close()
        node.start_proxy()
        eventually("the pod without a sandbox owns nothing", lambda: owners(node) == [])
        _, container = run_pod(node.proxied, node.spec("next", "LSE", "1"))
        assert runc.first_cpus(container) == "1"


def try_sandbox(client: Cri, spec: PodSpec) -> None:
    with contextlib.suppress(RpcError):
        run_sandbox(client, spec)


def owners(node: TestNode) -> list[str]:
    text = (node.state / "snapshot.json").read_bytes()
    return [each.title for each in snapshots.decode(text).owners]
