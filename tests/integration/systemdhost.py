"""A host on which a real systemd runs containerd and a kubelet with static pods. It is a world of
tests/cluster, in which systemd is the first process of a PID namespace (`systemd.sh`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tools
from tests.cluster import world
from tests.cluster.machine import ProgramError
from tests.cluster.world import World
from tests.fixtures import image
from tests.fixtures.constants import module
from tests.integration.kubelet.standalone import ANY_MACHINE
from tests.waiting import DEADLINE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = "unix:///run/containerd/containerd.sock"
PROXY = "unix:///run/topolet/cri.sock"
UNITS = "/etc/systemd/system"
CONFIG = "/var/lib/kubelet/config.yaml"
ENV = "/var/lib/kubelet/kubeadm-flags.env"
START_SECONDS = 4 * DEADLINE_SECONDS
_LOGS = "/run/logs"

_FURNISH = f"""rm -rf {UNITS}/*
mkdir -p /etc/kubernetes/manifests /etc/containerd {_LOGS} {UNITS}/kubelet.service.d
printf '[Unit]\\nDescription=node\\n' >{UNITS}/node.target
"""
_CONTAINERD_UNIT = f"""[Unit]
Description=containerd
[Service]
ExecStart={{program}}
Type=notify
Delegate=yes
KillMode=process
Restart=always
Environment=PATH={{path}}
StandardOutput=append:{_LOGS}/containerd
StandardError=append:{_LOGS}/containerd
"""
_CONTAINERD = {
    1: f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image.NAME}"
restrict_oom_score_adj = true
disable_apparmor = true
""",
    2: f"""version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{image.NAME}'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
""",
}
_KUBELET_UNIT = f"""[Unit]
Description=kubelet: The Kubernetes Node Agent
After=containerd.service
[Service]
ExecStart={{program}}
Restart=always
StartLimitInterval=0
RestartSec=1
Delegate=yes
Environment=PATH={{path}}
StandardOutput=append:{_LOGS}/kubelet
StandardError=append:{_LOGS}/kubelet
"""
_KUBEADM = f"""[Service]
Environment="KUBELET_CONFIG_ARGS=--config={CONFIG}"
EnvironmentFile=-{ENV}
ExecStart=
ExecStart={{program}} $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
"""
_LIST = """find 2>/dev/null "$@" \\( -type f -o -type l \\) | while read -r file; do
    echo "$file $(readlink "$file" || sha256sum <"$file")"
done
"""


class SystemdHost:
    """`containerd`: the major version; 1 is the distribution's package."""

    def __init__(self, place: World, containerd: int) -> None:
        self.world = place
        self._containerd = containerd
        self._pid = ""

    # programs
    def run(self, *words: str | Path, seconds: float = 8 * DEADLINE_SECONDS) -> str:
        """Runs a program in systemd's namespaces. Raises ProgramError."""
        nsenter = ("nsenter", f"--target={self._pid}", "--pid", "--mount", "--")
        return self.world.run(*nsenter, *words, seconds=seconds)

    def topolet(
        self, *words: str, program: str = "", constants: dict[str, float] | None = None
    ) -> str:
        """Runs a command of this checkout, with other values of `constants`, or of an installed
        `program`."""
        environment = ("env", "PYTHONDONTWRITEBYTECODE=1", f"PATH={self.world.path}")
        own = (f"PYTHONPATH={ROOT}", sys.executable, "-m", *module(constants or {}))
        return self.run(*environment, *((program,) if program else own), *words)

    def start_command(self, name: str, *words: str) -> None:
        """Starts a command of this checkout; its output is the log of that name."""
        nsenter = ("nsenter", f"--target={self._pid}", "--pid", "--mount", "--")
        own = (f"PYTHONPATH={ROOT}", sys.executable, "-u", "-m", "agent")
        script = 'echo $$ >"$0"; exec env "$@"'
        self.world.start(name, *nsenter, "sh", "-ec", script, f"/run/{name}.pid", *own, *words)

    def kill(self, name: str, signal: str = "KILL") -> None:
        """Sends the signal to a started command. After KILL, waits until its locks are released."""
        self.run("sh", "-ec", f'kill -{signal} "$(cat /run/{name}.pid)"')
        if signal == "KILL":
            ended = 'grep -qs "^State:[[:space:]]*Z" /proc/$pid/status || [ ! -e /proc/$pid ]'
            script = f"pid=$(cat /run/{name}.pid); until {ended}; do sleep 0.05; done"
            self.run("sh", "-ec", script)

    def systemctl(self, *words: str) -> str:
        return self.run("systemctl", *words)

    def unit_property(self, unit: str, name: str) -> str:
        return self.systemctl("show", f"--property={name}", "--value", unit).strip()

    def write(self, path: str, text: str) -> None:
        """Writes a file below /etc, /run or /var/lib, which the world and systemd share."""
        self.world.write(path, text)

    # the node
    def boot(self) -> None:
        self.world.run("sh", "-ec", _FURNISH)
        script = Path(__file__).with_name("systemd.sh")
        folders = (ROOT, sys.prefix, sys.base_prefix, *self.world.path.split(":"))
        programs = [folder for folder in dict.fromkeys(map(str, folders)) if os.path.isdir(folder)]
        self.world.start(
            "systemd",
            *("unshare", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc"),
            *("--propagation=private", "sh", script, self.world.folder / "tunables"),
            *programs,
        )

        def booted() -> bool:
            assert self.world.alive("systemd")
            try:
                found = self.world.run("pgrep", "--full", "^/lib/systemd/systemd --unit")
                self._pid = found.strip()
                return "running" in self.run("systemctl", "is-system-running")
            except ProgramError:
                return False

        eventually("systemd runs", booted, START_SECONDS)

    def start_containerd(self, more: str = "") -> None:
        """`more`: further lines of its configuration."""
        program = "/usr/bin/containerd" if self._containerd == 1 else "containerd"
        found = shutil.which(program, path=self.world.path)
        assert found is not None
        self.write("/etc/containerd/config.toml", _CONTAINERD[self._containerd] + more)
        path = f"{Path(found).parent}:{self.world.path}"
        self.write(f"{UNITS}/containerd.service", _CONTAINERD_UNIT.format(program=found, path=path))
        self.systemctl("daemon-reload")
        self.systemctl("start", "containerd")

    def add_busybox(self) -> None:
        """Imports the image of pods and their sandboxes."""
        archive = self.world.folder / "busybox.tar"
        binary = image.busybox()
        assert binary is not None
        image.write_archive(archive, binary)
        self.add_image(archive)

    def add_image(self, archive: Path) -> None:
        """Imports a docker-archive in the world's folder."""
        self.world.run("mv", archive, "/run/image.tar")
        self.run("ctr", "--namespace=k8s.io", "images", "import", "/run/image.tar")
        self.world.run("rm", "/run/image.tar")

    def start_kubelet(self, flags: str = "", **configuration: Any) -> None:
        """Starts the kubelet as kubeadm does. `flags` go to kubeadm-flags.env."""
        body = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "staticPodPath": "/etc/kubernetes/manifests",
            "podCIDR": "10.99.0.0/24",
            **ANY_MACHINE,
            **configuration,
        }
        lines = [f"{key}: {json.dumps(value)}" for key, value in body.items()]
        self.write(CONFIG, "# of an administrator\n" + "\n".join(lines) + "\n")
        self.write(ENV, f'KUBELET_KUBEADM_ARGS="{flags}"\n')
        program = shutil.which("kubelet", path=self.world.path)
        assert program is not None
        unit = _KUBELET_UNIT.format(program=program, path=self.world.path)
        self.write(f"{UNITS}/kubelet.service", unit)
        drop_in = _KUBEADM.format(program=program)
        self.write(f"{UNITS}/kubelet.service.d/10-kubeadm.conf", drop_in)
        self.systemctl("daemon-reload")
        self.systemctl("start", "kubelet")

    def pod(self, name: str, **spec: Any) -> None:
        """Creates a static pod with these fields of its spec; returns when its container runs."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": name, "image": image.NAME, "imagePullPolicy": "Never"}],
                **spec,
            },
        }
        self.write(f"/etc/kubernetes/manifests/{name}.json", json.dumps(body))
        eventually(f"{name} runs", lambda: name in self.running(), START_SECONDS)

    def delete_pod(self, name: str) -> None:
        """Deletes the static pod; returns when its container has ended."""
        self.world.remove(f"/etc/kubernetes/manifests/{name}.json")
        eventually(f"{name} has ended", lambda: name not in self.running(), START_SECONDS)

    def running(self) -> dict[str, str]:
        """The ids of the running containers, by name."""
        listed = self.run(
            "crictl", "--timeout=60s", f"--runtime-endpoint={RUNTIME}", "ps", "--output=json"
        )
        containers = json.loads(listed).get("containers") or ()
        return {each["metadata"]["name"]: each["id"] for each in containers}

    def connections(self) -> int:
        """The number of connections to the proxy's socket."""
        rows = self.run("cat", "/proc/1/net/unix").splitlines()
        path = PROXY.removeprefix("unix://")
        return sum(row.split()[5] == "03" for row in rows if row.endswith(f" {path}"))

    def files(self, *folders: str) -> dict[str, str]:
        """All files below these folders, with their digests or link targets."""
        lines = self.run("sh", "-c", _LIST, "sh", *folders).splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def logs(self) -> str:
        """The ends of all logs."""
        return self.run(
            "sh", "-c", f"tail -n 30 {_LOGS}/*; systemctl status --no-pager '*.service'"
        )


def lacking() -> list[str]:
    """The programs that a host needs in addition to those of a world."""
    found = [] if os.path.exists("/lib/systemd/systemd") else ["systemd"]
    return found + [each for each in ("runc", "nsenter", "pgrep") if shutil.which(each) is None]


@contextlib.contextmanager
def running(containerd: int) -> Iterator[SystemdHost]:
    """A host with containerd and without a kubelet. Skips the test if none can run here."""
    missing = [*world.lacking(), *lacking()]
    if image.busybox() is None:
        missing.append("busybox-static")
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")
    kubelet, found = tools.kubernetes("kubelet"), [tools.built("cri-tools")]
    if isinstance(kubelet, str):
        pytest.skip(kubelet)
    if containerd == 2:
        found.append(tools.built("containerd"))
    for each in found:
        if isinstance(each, str):
            pytest.skip(each)
    with world.created(":".join(map(str, (kubelet.parent, *found)))) as place:
        host = SystemdHost(place, containerd)
        host.boot()
        host.start_containerd()
        host.add_busybox()
        yield host
