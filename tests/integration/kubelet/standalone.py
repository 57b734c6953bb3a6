"""A kubelet process that runs static pods from files.

It has its own mount namespace, where /var/lib/kubelet is a folder of the test, and /var/log is
empty. Device plugins always register in /var/lib/kubelet, whatever the kubelet's root directory is,
and they must not register with a kubelet of this machine. On a machine that mounts no hugetlb
controller it sees no huge pages: CRI-O passes its limits of them on, and runc can't set them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.cri.client import Cri
from agent.discover import cpus
from agent.kubelet import podresources
from agent.kubelet.memory_manager_state import FILE_NAME as MEMORY_STATE
from agent.kubelet.podresources import KubeletDownError, PodResourcesClient, RateLimitError
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.pod_resources import PodResources
from tests import tools
from tests.fixtures import image
from tests.fixtures.cgroups import MOUNTS, remove_cgroups
from tests.fixtures.containerd import Containerd, remove_all_pods
from tests.fixtures.crio import Crio
from tests.integration import machinewide
from tests.waiting import DEADLINE_SECONDS, eventually

START_SECONDS = 3 * DEADLINE_SECONDS
"""A limit for a busy machine. On an idle machine a kubelet or a pod starts in three seconds."""
NODE = "node-a"
MIB = 1 << 20
ANY_MACHINE: dict[str, Any] = {
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "resolvConf": "",
    "evictionHard": {
        "memory.available": "50Mi",
        "nodefs.available": "0%",
        "nodefs.inodesFree": "0%",
        "imagefs.available": "0%",
        "imagefs.inodesFree": "0%",
    },
    "imageGCHighThresholdPercent": 100,
    "imageGCLowThresholdPercent": 99,
}
"""Configuration fields with which a kubelet runs on a machine without systemd and with full
disks."""
RESERVED_BYTES = 150 * MIB
"""The reserved memory of NUMA node 0: the kubelet requires the sum of its reservations."""

_SCRIPT = """if [ -n "$MACHINE" ]; then
    for each in cpu node; do
        mount --bind "$MACHINE/sys/devices/system/$each" "/sys/devices/system/$each" || exit
    done
fi
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && [ ! -e /sys/fs/cgroup/hugetlb ]; then
    mount -t tmpfs tmpfs /sys/kernel/mm/hugepages || exit
fi
mount -t tmpfs tmpfs /var/log &&
mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/kubelet &&
mount --bind "$1" /var/lib/kubelet && shift && exec "$@"
"""
_CONTROLLERS = frozenset({"cpuset", "cpu", "io", "memory", "hugetlb", "pids"})
TUNABLES = tuple(
    Path("/proc/sys", name)
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
)
"""Kernel settings that a kubelet changes."""


class Kubelet:
    """A kubelet with static policies. `reserved`: CPUs that are never exclusive. `topology`: that
    of the machine."""

    def __init__(
        self,
        folder: Path,
        program: Path,
        containerd: Containerd | Crio,
        endpoint: str = "",
        more: dict[str, Any] | None = None,
        machine: str = "/",
    ) -> None:
        """`endpoint`: the CRI socket instead of containerd's. `more`: more fields of the
        configuration. `machine`: the root of a tree that has other CPUs and NUMA nodes; then pods
        with CPUs of their own are admitted, but their containers may not start."""
        self.folder = folder
        self.endpoint = endpoint or containerd.socket
        self.root = folder / "root"
        self.shared = folder / "var-lib-kubelet"
        """The folder that replaces /var/lib/kubelet."""
        self.socket = podresources.socket_path(str(self.root))
        self.containerd = containerd
        self.topology: Topology = cpus.read(machine)
        self.reserved = CpuSet(sorted(self.topology.online)[:1])
        self.client = PodResourcesClient(self.socket)
        self.cri = Cri(containerd.socket, START_SECONDS)
        self._program = program
        self._more = more or {}
        self._machine = "" if machine == "/" else machine
        self._manifests = folder / "manifests"
        self._cgroup = f"topolet-test-{uuid.uuid4().hex[:8]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the pod resources API answers."""
        for each in (self.root, self.shared, self._manifests):
            each.mkdir(exist_ok=True)
        # A virtual machine may get more memory at any moment: the kubelet exits if its file has
        # another size of a NUMA node than the kernel.
        (self.root / MEMORY_STATE).unlink(missing_ok=True)
        _make_cgroups(self._cgroup)
        (self.folder / "config.json").write_text(json.dumps(self._configuration()))
        with (self.folder / "kubelet.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--propagation=private", "sh", "-c", _SCRIPT, "sh"),
                    str(self.shared),
                    str(self._program),
                    f"--config={self.folder / 'config.json'}",
                    f"--root-dir={self.root}",
                    f"--cert-dir={self.folder / 'pki'}",
                    f"--hostname-override={NODE}",
                    # From 3 on it logs the Events of pods that it rejects.
                    "--v=3",
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "MACHINE": self._machine},
            )
        eventually("the pod resources API answers", self._answers, START_SECONDS)

    def kill(self) -> None:
        """SIGKILL; its pods keep running."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Removes the pods, which would remain if only the kubelet ended, and kills the kubelet.
        The kubelet must not be creating a pod at this moment."""
        for file in self._manifests.glob("*.json"):
            self.end(file.stem)
        self.kill()
        self.client.close()
        self.cri.close()

    def remove_pods(self) -> None:
        """Removes all pods of the runtime and their cgroups, repeatedly: the runtime may still
        create a sandbox that a killed kubelet requested."""

        def removed() -> bool:
            remove_all_pods(self.containerd.socket)
            remove_cgroups(self._cgroup)
            return not any((each / self._cgroup).exists() for each in (MOUNTS, *MOUNTS.iterdir()))

        eventually("the pods' cgroups are removed", removed)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "kubelet.log").read_text(errors="replace")

    # pods
    def run(
        self,
        name: str,
        containers: Sequence[dict[str, Any]],
        metadata: dict[str, dict[str, str]] | None = None,
        **spec: Any,
    ) -> str:
        """Starts a static pod in namespace default. `metadata`: labels and annotations. Returns its
        name on this node. Its uid is always new: otherwise the kubelet would derive it from the
        content, and would give an equal pod the resources of the previous one."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": str(uuid.uuid4()),
                **(metadata or {}),
            },
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 0,
                "containers": list(containers),
                **spec,
            },
        }
        unfinished = self.folder / f"{name}.json"
        unfinished.write_text(json.dumps(pod))
        unfinished.rename(self._manifests / f"{name}.json")
        return f"{name}-{NODE}"

    def end(self, name: str) -> None:
        """Removes a pod's file. Returns when the kubelet and the runtime have removed the pod."""
        (self._manifests / f"{name}.json").unlink()
        full = f"{name}-{NODE}"

        def removed() -> bool:
            return self.listed(full) is None and all(
                sandbox.name != full or not sandbox.ready for sandbox in self.cri.sandboxes()
            )

        eventually(f"pod {name} is removed", removed, START_SECONDS)

    def listed(self, name: str) -> PodResources | None:
        """The pod in the response of List. Waits first: the kubelet limits the rate of calls."""
        time.sleep(0.05)
        self._assert_running()
        return next((pod for pod in self.client.pods() if pod.name == name), None)

    def _assert_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log[-3000:]

    def _answers(self) -> bool:
        self._assert_running()
        with contextlib.suppress(KubeletDownError, RateLimitError):
            self.client.pods()
            # The API answers before a static CPU manager has read its state.
            return self._configuration()["cpuManagerPolicy"] == "none" or bool(
                self.client.allocatable().cpus
            )
        return False

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "enableServer": False,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.endpoint}",
            "staticPodPath": str(self._manifests),
            "fileCheckFrequency": "1s",
            "syncFrequency": "1s",
            "podLogsDir": str(self.folder / "logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "cgroupRoot": f"/{self._cgroup}",
            "enforceNodeAllocatable": ["pods"],
            **ANY_MACHINE,
            "cpuManagerPolicy": "static",
            "cpuManagerReconcilePeriod": "1s",
            "reservedSystemCPUs": str(self.reserved),
            "memoryManagerPolicy": "Static",
            "kubeReserved": {"memory": str(RESERVED_BYTES - 50 * MIB)},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": str(RESERVED_BYTES)}}],
            **self._more,
        }


def container(name: str, cpu: str, memory: str = "32Mi", **more: Any) -> dict[str, Any]:
    """A container that sleeps. Its limits equal its requests: a pod of such containers is
    Guaranteed."""
    amounts = {"cpu": cpu, "memory": memory} if cpu else {}
    return {
        "name": name,
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": list(image.SLEEP),
        "resources": {"requests": amounts, "limits": amounts},
        **more,
    }


@contextlib.contextmanager
def running(
    containerd: Containerd | Crio,
    endpoint: str = "",
    folder: Path | None = None,
    more: dict[str, Any] | None = None,
    machine: str = "/",
) -> Iterator[Kubelet]:
    """Runs a kubelet, which must be the only client of its containerd because it removes containers
    that it does not know. Skips the test if the kubelet is not available. `folder`: for its files,
    removed at the end. `more`, `machine`: see `Kubelet`."""
    program = tools.kubernetes("kubelet")
    if isinstance(program, str):
        pytest.skip(program)
    folder = folder or Path(tempfile.mkdtemp(prefix="topolet-"))
    kubelet = Kubelet(folder, program, containerd, endpoint, more, machine)
    with machinewide.change("tunables", _tunables, _set_tunables):
        try:
            kubelet.start()
            try:
                yield kubelet
            finally:
                kubelet.close()
        finally:
            kubelet.kill()
            kubelet.remove_pods()
            shutil.rmtree(kubelet.folder, ignore_errors=True)


def _tunables() -> dict[str, str]:
    return {str(file): file.read_text() for file in TUNABLES if file.exists()}


def _set_tunables(values: dict[str, str]) -> None:
    for file, text in values.items():
        Path(file).write_text(text)


def _make_cgroups(name: str) -> None:
    """Creates the kubelet's root cgroup with all controllers. A new cpuset of v1 needs CPUs."""
    if (MOUNTS / "cgroup.controllers").exists():
        (MOUNTS / name).mkdir(exist_ok=True)
        for group in (MOUNTS, MOUNTS / name):
            available = (group / "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{each}" for each in available if each in _CONTROLLERS)
            (group / "cgroup.subtree_control").write_text(wanted)
        return
    for mount in MOUNTS.iterdir():
        if os.path.ismount(mount):
            (mount / name).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (MOUNTS / "cpuset" / name / file).write_text((MOUNTS / "cpuset" / file).read_text())


def running_pid(kubelet: Kubelet, pod: str, container: str) -> int:
    """The process id of a container of a pod; 0 if the container does not run."""
    sandboxes = {each.id for each in kubelet.cri.sandboxes() if each.name == pod}
    ids = [
        each.id
        for each in kubelet.cri.containers()
        if each.sandbox_id in sandboxes and each.name == container
    ]
    return kubelet.cri.container_status(ids[0]).pid if ids else 0
