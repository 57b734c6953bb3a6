"""A kubelet, a runtime and a frontend of several versions: pods get the CPUs of their annotations.

The kubelet is that of TOPOLET_KUBERNETES; `python -m tests.versions` runs these tests with each and
writes the table of docs/compatibility.md.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator

import pytest

from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from tests.fixtures.containerd import Containerd
from tests.fixtures.crio import Crio
from tests.integration.harness import (
    TestNode,
    built_or_skip,
    fresh_node,
    kernel_cpus,
    private_containerd,
    private_crio,
)
from tests.integration.kubelet import standalone
from tests.integration.kubelet.standalone import Kubelet, container, running_pid
from tests.integration.nri_node import NriNode
from tests.versions import RUNTIMES
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

_START_SECONDS = standalone.START_SECONDS
_WITHOUT_CPU_MANAGER = {
    "cpuManagerPolicy": "none",
    "reservedSystemCPUs": "",
    "memoryManagerPolicy": "None",
    "reservedMemory": [],
    "kubeReserved": {},
}


class Versions:
    """A node of a runtime, whose agent and frontend run, and the kubelet that uses it. `plugin`:
    the node with the NRI plugin, None where the proxy is the frontend."""

    def __init__(self, node: TestNode, kubelet: Kubelet, plugin: NriNode | None) -> None:
        self.node = node
        self.kubelet = kubelet
        self._plugin = plugin

    def start_agent(self) -> None:
        self.node.start_agent(f"--kubelet-dir={self.kubelet.root}")

    def restore(self) -> None:
        """Ends the agent, and a plugin, and gives everything back."""
        self.node.stop_agent()
        if self._plugin is not None:
            self._plugin.stop_plugin()
        done = self.node.restore()
        assert done.returncode == 0, done.stderr
        assert "not every container" not in done.stderr

    @contextlib.contextmanager
    def pod(self, name: str, qos: str, cpuset: str = "") -> Iterator[str]:
        """A pod that runs during the block."""
        annotations = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
        metadata = {"labels": {QOS_LABEL: qos}, "annotations": annotations}
        # An owner's request and limit of CPU are equal. Without a limit of memory the pod is not
        # Guaranteed: such a pod has a negative OOM score, which a nested machine forbids to CRI-O.
        cpu = {"cpu": "1" if cpuset else "100m"}
        amounts = {"requests": {**cpu, "memory": "32Mi"}, "limits": cpu}
        main = container("main", "", resources=amounts)
        full_name = self.kubelet.run(name, [main], metadata)
        try:
            eventually(f"pod {name} runs", lambda: self.pid(full_name), _START_SECONDS)
            yield full_name
        finally:
            self.kubelet.end(name)

    def pid(self, pod: str) -> int:
        return running_pid(self.kubelet, pod, "main")

    def cpus(self, pod: str) -> str:
        return kernel_cpus(self.pid(pod))


@pytest.fixture(params=list(RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> Iterator[Containerd | Crio]:
    name = RUNTIMES[request.param]
    if name == "cri-o":
        with private_crio() as crio:
            yield crio
    else:
        with private_containerd(built_or_skip(name) if name else None) as containerd:
            yield containerd


@pytest.fixture(params=["proxy", "NRI plugin"])
def versions(request: pytest.FixtureRequest, runtime: Containerd | Crio) -> Iterator[Versions]:
    """The kubelet's own CPU manager is off."""
    with fresh_node(runtime) as node, contextlib.closing(NriNode(node)) as nri_node:
        proxied = request.param == "proxy"
        endpoint = node.cri_socket if proxied else runtime.socket
        if not proxied and not pathlib.Path(runtime.nri_socket).exists():
            pytest.skip("this runtime has no NRI")
        node.start_agent()
        if proxied:
            node.start_proxy()
        else:
            nri_node.start_plugin()
        with standalone.running(runtime, endpoint, more=_WITHOUT_CPU_MANAGER) as kubelet:
            yield Versions(node, kubelet, None if proxied else nri_node)


def test_a_kubelets_pods_have_their_cpus(versions: Versions) -> None:
    """From their creation, over a kill of the agent, and until `topolet restore`."""
    node = versions.node
    with versions.pod("shares", "LS") as shares:
        everywhere = versions.cpus(shares)
        with versions.pod("owns", "LSE", "1") as owns:
            assert versions.cpus(owns) == "1"
            assert versions.cpus(shares) == "0"
            started = versions.pid(owns)
            node.kill_agent()
            versions.start_agent()
            assert (versions.cpus(owns), versions.cpus(shares)) == ("1", "0")
            assert versions.pid(owns) == started
        eventually("the pool has both CPUs", lambda: versions.cpus(shares) == everywhere)
        with versions.pod("owns-later", "LSE", "1") as owns:
            versions.restore()
            assert versions.cpus(shares) == versions.cpus(owns) == everywhere
