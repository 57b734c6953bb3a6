"""A node: containerd, Topolet's proxy and a kubelet, on a machine with the usual paths for
itself."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.machine import Machine, ProgramError
from tests.fixtures import image
from tests.integration.apiserver.server import START_SECONDS, feature_gates
from tests.integration.kubelet.standalone import ANY_MACHINE
from tests.waiting import eventually

RUNTIME = "unix:///run/containerd/containerd.sock"
PROXY_SOCKET = "/run/topolet/cri.sock"
PLUGINS = Path("/usr/lib/cni")
"""The folder of Debian's containernetworking-plugins."""

NETWORK_PLUGINS = f"""[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{PLUGINS}']
conf_dir = '/etc/cni/net.d'
"""

_PROXY_PID = "/run/topolet-proxy.pid"
_STATES = ("cpu_manager_state", "memory_manager_state")
"""A kubelet exits if one of these was written under another policy."""

_CONTAINERD = f"""version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{image.NAME}'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
{NETWORK_PLUGINS}"""


def start_containerd(machine: Machine) -> None:
    """Returns when it answers."""

    def answers() -> bool:
        try:
            return machine.alive("containerd") and bool(machine.run("ctr", "version"))
        except ProgramError:
            return False

    machine.write("/etc/containerd/config.toml", _CONTAINERD)
    machine.start("containerd", "containerd")
    eventually("containerd answers", answers, START_SECONDS)


class Node:
    """`address` is the kubelet's; `program` is the kubelet to run, by default that of PATH."""

    has_proxy = True
    """Whether its kubelet is started behind the proxy."""
    kubelet_dir = "/var/lib/kubelet"
    """The root folder of the kubelet from its next start on."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        address: str,
        kubeconfig: str,
        network: Mapping[str, Any],
        program: str = "kubelet",
    ) -> None:
        self.machine = machine
        self.name = name
        self._address = address
        self._kubeconfig = kubeconfig
        self._network = network
        self._program = program
        self._configuration: dict[str, Any] = {}

    def start_containerd(self) -> None:
        """Returns when it answers."""
        self._write_network()
        start_containerd(self.machine)

    def _write_network(self) -> None:
        plugins = {"cniVersion": "0.4.0", "name": "pods", "plugins": [self._network]}
        self.machine.write("/etc/cni/net.d/10-pods.conflist", json.dumps(plugins))

    # the proxy
    def start_proxy(self, *flags: str) -> None:
        """Starts a process that owns the proxy's socket and restarts a proxy that ends."""
        self.machine.start(
            "proxy",
            *(sys.executable, Path(__file__).with_name("activation.py"), PROXY_SOCKET, _PROXY_PID),
            *("topolet", "proxy", "--runtime-endpoint", RUNTIME, *flags),
        )
        eventually("the proxy is started", lambda: self.machine.read(_PROXY_PID), START_SECONDS)

    def kill_proxy(self) -> None:
        """SIGKILL; returns when another one is started."""
        before = self.proxy_pid
        self.machine.run("kill", "-KILL", str(before))
        eventually("another proxy is started", lambda: self.proxy_pid != before)

    @property
    def proxy_pid(self) -> int:
        return int(self.machine.read(_PROXY_PID)[_PROXY_PID])

    # the kubelet
    def start_kubelet(self, **configuration: Any) -> None:
        """Adds these fields to its configuration. The kubelet registers its node itself."""
        self._configuration = configuration
        written = json.dumps(self._kubelet_configuration() | configuration)
        path = f"{self.kubelet_dir}/config.yaml"
        self.machine.write(path, written)
        self.machine.start(
            "kubelet",
            self._program,
            f"--config={path}",
            f"--root-dir={self.kubelet_dir}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._address}",
            "--v=2",
        )

    def kubelet_runs(self) -> bool:
        """True; fails with the end of its log if it has ended."""
        return self.machine.alive("kubelet")

    def stop_kubelet(self, number: int = signal.SIGTERM) -> None:
        self.machine.end("kubelet", number)

    def restart_kubelet(self, **configuration: Any) -> None:
        """Changes these fields of its configuration; None restores the default of one. Removes the
        state files of other policies, as an administrator has to."""
        self.stop_kubelet()
        if configuration:
            for state in _STATES:
                self.machine.remove(f"{self.kubelet_dir}/{state}")
        merged = self._configuration | configuration
        self.start_kubelet(**{key: each for key, each in merged.items() if each is not None})

    # the kernel's files
    def cpuset_files(self, container: str) -> list[str]:
        """Patterns of the cpuset file of a container with that id: on v2 the effective one, since
        the container may not have its own cpuset."""
        if self.machine.read("/sys/fs/cgroup/cpuset/cpuset.cpus"):
            root, file = "/sys/fs/cgroup/cpuset", "cpuset.cpus"
        else:
            root, file = "/sys/fs/cgroup", "cpuset.cpus.effective"
        return [f"{root}/kubepods/{each}/{container}/{file}" for each in ("pod*", "*/pod*")]

    def containers(self) -> str:
        """The runtime's list of containers, in JSON."""
        return self.machine.run(
            "crictl",
            "--timeout=60s",
            f"--runtime-endpoint={RUNTIME}",
            "ps",
            "--all",
            "--output=json",
        )

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "address": self._address,
            "containerRuntimeEndpoint": f"unix://{PROXY_SOCKET}",
            "clusterDomain": "cluster.local",
            "featureGates": feature_gates(),
            **ANY_MACHINE,
        }
