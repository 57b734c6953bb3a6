"""Checks that the runtime answers through the proxy, that the kubelet runs, and that the containers
which ran before still run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from agent.cri.client import Cri, RuntimeContainer
from agent.install.endpoint import PROXY_ENDPOINT
from agent.install.tree import HostTree
from agent.model.pod.pods import ContainerState
from agent.model.settings.options import socket_path
from agent.rpc.grpc import RpcError

Answer = TypeVar("Answer")
HostCommand = Callable[[Sequence[str]], str]
"""Runs a program of the host; returns its output. Raises CheckError."""

_COMMAND_SECONDS: Final = 120.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONNECTED: Final = "03"
"""SS_CONNECTED in the column St of /proc/net/unix."""
_POLL_SECONDS: Final = 0.2
_YOUNG_SECONDS: Final = 60.0
"""Containers that are younger are not compared: a container that fails again and again may end by
itself."""


class CheckError(RuntimeError):
    """The node is not as expected; the message says what differs."""


class Checks:
    """`deadline_seconds`: the longest wait for each condition. `settle_seconds`: the time for which
    the kubelet has to run without a restart. Methods raise CheckError, OSError."""

    def __init__(
        self,
        tree: HostTree,
        command: HostCommand,
        deadline_seconds: float,
        settle_seconds: float,
    ) -> None:
        self._tree = tree
        self._command = command
        self._deadline_seconds = deadline_seconds
        self._settle_seconds = settle_seconds

    def running(self, runtime: str) -> tuple[RuntimeContainer, ...]:
        """The running containers that the runtime lists, without those younger than
        _YOUNG_SECONDS."""
        oldest = (time.time() - _YOUNG_SECONDS) * 1e9
        return tuple(
            each
            for each in self._containers(runtime)
            if each.state is ContainerState.RUNNING and each.created_at < oldest
        )

    def await_proxy(self, runtime: str) -> None:
        """Waits until the proxy answers, and compares its answer with the runtime's."""
        direct = self._version(runtime)
        end = time.monotonic() + self._deadline_seconds
        while True:
            try:
                through = self._version(PROXY_ENDPOINT)
                break
            except CheckError as error:
                if time.monotonic() > end:
                    raise CheckError(f"the proxy does not answer: {error}") from error
            time.sleep(_POLL_SECONDS)
        if through != direct:
            raise CheckError(f"the proxy reports the runtime as {through}, not {direct}")

    def await_kubelet(
        self,
        unit: str,
        runtime: str,
        before: Sequence[RuntimeContainer],
        *,
        through_proxy: bool,
    ) -> None:
        """Waits until the kubelet has run for `settle_seconds`, with `through_proxy` connected to
        the proxy; then checks that the containers of `before` still run."""
        end = time.monotonic() + self._deadline_seconds
        since, process = time.monotonic(), ""
        problem = f"{unit} does not run"
        while time.monotonic() - since < self._settle_seconds or problem:
            found = self._main_process(unit)
            problem = self._problem(unit, found, through_proxy=through_proxy)
            if problem or found != process:
                since, process = time.monotonic(), found
            if time.monotonic() > end:
                raise CheckError(problem or f"{unit} restarts again and again")
            time.sleep(_POLL_SECONDS)
        if gone := lost(before, self._containers(runtime)):
            raise CheckError(f"containers that ran before do not run any more: {', '.join(gone)}")

    def _problem(self, unit: str, process: str, *, through_proxy: bool) -> str:
        if not process:
            return f"{unit} does not run"
        if through_proxy and not self._proxy_in_use():
            return f"{unit} runs, but nothing is connected to {PROXY_ENDPOINT}"
        return ""

    def _main_process(self, unit: str) -> str:
        """The id of the unit's main process, "" if the unit is not active."""
        shown = self._command(["systemctl", "show", "--property=ActiveState,MainPID", unit])
        values = dict(line.partition("=")[::2] for line in shown.splitlines())
        pid = values.get("MainPID", "0")
        return pid if values.get("ActiveState") == "active" and pid != "0" else ""

    def _proxy_in_use(self) -> bool:
        """Whether a connection to the proxy's socket is established, in the host's network
        namespace."""
        path = socket_path(PROXY_ENDPOINT)
        with open(self._tree.path("/proc/1/net/unix"), encoding="utf-8", errors="replace") as file:
            rows = (line.split() for line in file)
            return any(len(row) == 8 and row[5] == _CONNECTED and row[7] == path for row in rows)

    def _version(self, endpoint: str) -> str:
        return self._call(endpoint, Cri.version)

    def _containers(self, endpoint: str) -> list[RuntimeContainer]:
        return self._call(endpoint, Cri.containers)

    def _call(self, endpoint: str, method: Callable[[Cri], Answer]) -> Answer:
        cri = Cri(self._tree.path(socket_path(endpoint)))
        try:
            return method(cri)
        except RpcError as error:
            raise CheckError(f"{endpoint}: {error}") from error
        finally:
            cri.close()


def host_command(root: str) -> HostCommand:
    """Returns the function that runs programs of the host below `root`. In a container, systemctl
    reaches the host's systemd through the sockets below that root."""

    def run(words: Sequence[str]) -> str:
        environment = {**os.environ, "SYSTEMD_PAGER": "", "LC_ALL": "C"}
        if root != "/":
            words = ["chroot", root, *words]
            # Without it, systemctl does nothing in a root that differs from the root of process 1.
            environment |= {"SYSTEMD_IGNORE_CHROOT": "1", "PATH": _PATH}
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                check=False,
                text=True,
                errors="replace",
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckError(f"{' '.join(words)}: {error}") from error
        if done.returncode:
            reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
            raise CheckError(f"{' '.join(words)}: {reason}")
        return done.stdout

    return run


def lost(before: Sequence[RuntimeContainer], after: Sequence[RuntimeContainer]) -> tuple[str, ...]:
    """The containers that ran before and do not run after."""
    states = {each.id: each.state for each in after}
    return tuple(
        f"{each.name} ({each.id[:12]})"
        for each in before
        if states.get(each.id) is not ContainerState.RUNNING
    )
