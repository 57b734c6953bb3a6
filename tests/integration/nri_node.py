"""A node whose containers pass the NRI plugin, on a runtime with NRI."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

import msgspec

from agent.hooks.requests import Changes
from agent.host import files
from agent.host.files import boot_id
from agent.host.loop import Loop
from agent.model import snapshot as snapshots
from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import Pool
from agent.model.snapshot import Snapshot, Wanted
from agent.model.verdict import Refuse, Wait
from agent.node import nri_guard
from agent.node.nri_guard import GuardStatus
from agent.nri.link import PluginLink
from agent.nri.messages import NriContainer
from agent.nri.service import PluginCall
from tests.fixtures.containerd import Containerd
from tests.fixtures.crio import Crio
from tests.fixtures.ports import free_port
from tests.integration.harness import HOLD, TestNode, fresh_node, page, sum_of_series
from tests.nri.recorder import Recorder
from tests.waiting import DEADLINE_SECONDS, eventually

POOLS = {"ls": (Pool(0, 0, "0-1"),), "be": (Pool(0, 0, "0-1"),)}
EMPTY = Snapshot(1, 0, boot_id(), False, POOLS, (), {}, {})


class NriNode:
    """`node` with one plugin process. `publish` writes a snapshot in place of an agent."""

    def __init__(self, node: TestNode) -> None:
        self.node = node
        self._port = 0
        self._plugin: subprocess.Popen[bytes] | None = None
        self.guard: subprocess.Popen[bytes] | None = None

    def start_guard(self, *flags: str, waits: bool = True) -> None:
        """With `waits`, returns when the runtime asks the guard about containers."""
        self.guard = self.node.start_process(
            "nri-guard", f"--nri-socket={self.node.containerd.nri_socket}", *flags
        )
        if waits:
            eventually("the guard is ready", self.guard_ready)

    def guard_ready(self) -> bool:
        assert self.guard is not None
        assert self.guard.poll() is None, self.node.log("nri-guard")
        return self.guard_status().ready

    def guard_status(self) -> GuardStatus:
        """What the guard publishes; not ready before it does."""
        return nri_guard.status(str(self.node.state)) or GuardStatus()

    def kill_guard(self) -> None:
        """Sends SIGKILL."""
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()
            self.guard = None

    def start_plugin(self, *flags: str, waits: bool = True) -> None:
        """With `waits`, returns when the runtime calls the plugin for containers."""
        self._port = free_port()
        self._plugin = self.node.start_process(
            "nri",
            f"--nri-socket={self.node.containerd.nri_socket}",
            f"--http=127.0.0.1:{self._port}",
            HOLD,
            *flags,
        )
        if waits:
            eventually("the plugin is ready", self._ready)

    def signal(self, number: signal.Signals) -> None:
        assert self._plugin is not None
        self._plugin.send_signal(number)

    def kill_plugin(self) -> None:
        """Sends SIGKILL."""
        if self._plugin is not None:
            self._plugin.kill()
            self._plugin.wait()
            self._plugin = None

    def stop_plugin(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        assert self._plugin is not None
        self._plugin.terminate()
        code, self._plugin = self._plugin.wait(DEADLINE_SECONDS), None
        return code

    def metric(self, name: str) -> float:
        """The sum of the series of that name; -1 if the plugin does not respond."""
        status, text = page(self._port, "/metrics")
        return sum_of_series(text, name) if status else -1

    def publish(self, **containers: str) -> None:
        """Writes a snapshot with these cpusets, by container id."""
        self.node.state.mkdir(exist_ok=True)
        snapshot = msgspec.structs.replace(
            EMPTY,
            listed_at=time.monotonic_ns(),
            containers={each: Wanted(LinuxResources(cpus)) for each, cpus in containers.items()},
        )
        path = str(self.node.state / "snapshot.json")
        files.replace(path, snapshots.encode(snapshot), durable=False)

    def _ready(self) -> bool:
        assert self._plugin is not None
        assert self._plugin.poll() is None, self.node.log("nri")
        return self.metric("topolet_nri_ready") == 1

    def close(self) -> None:
        self.kill_guard()
        self.kill_plugin()


@contextlib.contextmanager
def nri_node(containerd: Containerd | Crio) -> Iterator[NriNode]:
    """A fresh node; the test starts the processes that it needs."""
    with fresh_node(containerd) as node:
        it = NriNode(node)
        try:
            yield it
        finally:
            it.close()


class OtherPlugin(Recorder):
    """A plugin of another vendor, which makes the same changes to every container."""

    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self.answer = changes
        self.synchronized = threading.Event()

    def synchronize(self, containers: Sequence[NriContainer]) -> dict[str, LinuxResources]:
        self.synchronized.set()
        return {}

    def update(self, call: PluginCall) -> Changes | Wait | Refuse:
        return Changes()


@contextlib.contextmanager
def other_plugin(containerd: Containerd, name: str, changes: Changes) -> Iterator[None]:
    """Runs another plugin, registered under this name, during the block."""
    loop, plugin = Loop(), OtherPlugin(changes)
    link = PluginLink(loop, containerd.nri_socket, name, "50", plugin)
    link.start()
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        assert plugin.synchronized.wait(DEADLINE_SECONDS)
        yield
    finally:
        loop.stop()
        thread.join()
        link.close()
        loop.close()
