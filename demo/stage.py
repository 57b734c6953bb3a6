"""The processes of a demo, with their files in one folder: containerd, proxy and agent."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable

from agent.cri.client import Cri
from agent.model import snapshot as snapshots
from agent.model.settings.options import proxy_socket
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from demo.children import Child, topolet
from tests.fixtures.cgroups import OwnCgroup
from tests.fixtures.containerd import Containerd, ContainerdError, import_image, missing
from tests.fixtures.pods import PodSpec, remove_pod
from tests.fixtures.ports import free_port

NAMESPACE = "topolet-demo"
DEMO_ANNOTATION = "demo.topolet.io/folder"
"""The annotation with the demo of a pod: several demos may use one runtime."""
START_SECONDS = 30.0


class StageError(RuntimeError):
    """A process did not start; the message names it and shows the end of its log."""


class Stage:
    """`runtime`: the endpoint of a running containerd; None: a private one is started. `slow`:
    programs may take many times as long as usual to start."""

    def __init__(self, folder: pathlib.Path, runtime: str | None, *, slow: bool = False) -> None:
        self.folder = folder
        self._start_seconds = START_SECONDS * (15 if slow else 1)
        self._identity = identity(folder)
        self._cgroup = OwnCgroup(NAMESPACE, self._identity)
        self.state = folder / "state"
        self.snapshot = self.state / snapshots.FILE
        self.private = None if runtime else Containerd(folder / "containerd")
        self.runtime_socket = self.private.socket if self.private else _path(runtime or "")
        self.listen = proxy_socket(str(self.state))
        self.http = f"127.0.0.1:{free_port()}"
        common = [f"--state-dir={self.state}", f"--runtime-endpoint=unix://{self.runtime_socket}"]
        self._restore = topolet("restore", *common)
        pages = f"--http=127.0.0.1:{free_port()}"
        self.proxy = Child("proxy", topolet("proxy", *common, pages), folder)
        agent = ["--standalone", f"--http={self.http}"]
        self.agent = Child("agent", topolet("agent", *common, *agent), folder)
        self.runtime_version = ""
        """The runtime's name and version, "" before `start`."""
        self.cri = Cri(self.listen)
        self.direct = Cri(self.runtime_socket)

    def start(self, report: Callable[[str], None]) -> None:
        """Cleans up after a killed demo, then starts all processes. Calls `report` with each step.
        Raises StageError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.agent.end_leftover()
        self.proxy.end_leftover()
        if self.private:
            if lacking := missing():
                raise StageError(f"not installed: {', '.join(lacking)}")
            report("starting a private containerd")
        try:
            if self.private:
                self.private.start(self._start_seconds)
            else:
                import_image(self.runtime_socket)
        except ContainerdError as error:
            raise StageError(str(error)) from error
        self._clear()
        try:
            self.runtime_version = self.direct.version()
            self._cgroup.claim()
        except (OSError, RpcError) as error:
            raise StageError(str(error)) from error
        report("starting proxy and agent")
        self.start_proxy()
        self.start_agent()

    def pod(self, name: str, kube_class: str, cpuset: str = "") -> PodSpec:
        """A pod of this demo. `name`: its QoS class in lower case."""
        return PodSpec(
            name,
            name.upper(),
            cpuset,
            kube_class,
            namespace=NAMESPACE,
            cgroup_root=self._cgroup.root,
            annotations={DEMO_ANNOTATION: self._identity},
        )

    def start_proxy(self) -> None:
        """Returns when the proxy accepts connections."""
        self.proxy.start()
        self._wait_for(self.proxy, lambda: _accepts(self.listen))

    def start_agent(self) -> None:
        """Returns when the agent is ready."""
        self.agent.start()
        self._wait_for(self.agent, self._ready)

    def restart_ended(self) -> list[str]:
        """Restarts processes that ended; returns a line for each."""
        events = []
        if self.private and (how := self.private.death()):
            self.private.start()
            events.append(
                f"containerd ended ({how}) and was restarted; its containers kept running"
            )
        if how := self.proxy.exit_status():
            self.start_proxy()
            events.append(f"the proxy ended ({how}) and was restarted")
        if how := self.agent.exit_status():
            self.start_agent()
            events.append(f"the agent ended ({how}) and was restarted")
        return events

    def stop(self) -> str:
        """Ends all processes and restores every value; returns the output of `topolet restore`."""
        self.agent.stop()
        output = self._restore_values()
        for sandbox in self._own_sandboxes():
            remove_pod(self.direct, sandbox)
        self.proxy.stop()
        self.cri.close()
        self.direct.close()
        if self.private:
            self.private.stop()
        self._cgroup.remove()
        return output

    def _clear(self) -> None:
        """Removes the pods, changed values and cgroups of a demo that was killed."""
        for sandbox in self._own_sandboxes():
            remove_pod(self.direct, sandbox)
        if self.state.exists():
            self._restore_values()
        self._cgroup.remove()

    def _restore_values(self) -> str:
        done = subprocess.run(self._restore, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()

    def _own_sandboxes(self) -> list[str]:
        """The ids of this demo's sandboxes. The agent's client is not used, because it drops
        annotations that the agent does not read."""
        try:
            found = self.direct.call(
                "ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse
            )
        except RpcError:
            return []
        return [
            each.id
            for each in found.items
            if self.private or each.annotations.get(DEMO_ANNOTATION) == self._identity
        ]

    def _ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{self.http}/readyz", timeout=1) as reply,
        ):
            return bool(reply.status == 200)
        return False

    def _wait_for(self, child: Child, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._start_seconds
        while not condition():
            if child.exit_status() or time.monotonic() > deadline:
                how = child.exit_status() or f"not ready within {self._start_seconds:g} s"
                raise StageError(f"the {child.name} did not start: {how}\n{child.tail()}")
            time.sleep(0.02)


def identity(folder: pathlib.Path) -> str:
    """A short text for machine-wide names, different for each folder."""
    return hashlib.sha256(bytes(folder.resolve())).hexdigest()[:8]


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def _path(endpoint: str) -> str:
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        raise StageError(f"RUNTIME={endpoint}: not unix:///absolute/path")
    return path
