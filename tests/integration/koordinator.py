"""koord-runtime-proxy in front of a private containerd, with Topolet's agent as its hook server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from agent.cri.client import Cri
from agent.model.settings.options import HOOK_FAILURE_POLICY
from tests.fixtures.containerd import Containerd
from tests.integration.harness import HOLD, TestNode, fresh_node
from tests.waiting import DEADLINE_SECONDS, eventually

# The proxy reads hook servers from one folder of /etc, so it gets its own /etc.
_OWN_ETC = """
mount -t tmpfs none /etc
mkdir -p /etc/runtime/hookserver.d
mount --bind "$0" /etc/runtime/hookserver.d
exec "$@"
"""


FAIL = f"{HOOK_FAILURE_POLICY},CreateContainer=fail," + ",".join(
    f"CreateContainer/{each}=ignore" for each in ("LS", "BE", "SYSTEM")
)
"""Containers of pods that are not known fail, so koord-runtime-proxy does not go on without the
agent."""


class KoordinatorNode:
    """A node with koord-runtime-proxy; `cri` is a client of the proxy."""

    def __init__(self, node: TestNode, program: Path) -> None:
        self.node = node
        self._program = program
        self._socket = str(node.folder / "koord.sock")
        self.registrations = node.folder / "hookserver.d"
        self.registrations.mkdir()
        self.cri = Cri(self._socket, DEADLINE_SECONDS)
        self._proxy: subprocess.Popen[bytes] | None = None

    def start_agent(self, *flags: str, variables: dict[str, str] | None = None) -> None:
        directory = "agent.koordinator.server.REGISTRATION_DIR"
        self.node.constants["agent"] = {directory: str(self.registrations)}
        self.node.start_agent(
            f"--hook-server-socket={self.node.folder / 'hooks.sock'}",
            f"--hook-failure-policy={FAIL}",
            HOLD,
            *flags,
            variables=variables,
        )

    def start_proxy(self) -> None:
        """Returns when the proxy accepts connections, and thus has read the registrations."""
        with (self.node.folder / "koord.log").open("ab") as log:
            self._proxy = subprocess.Popen(
                command(
                    self._program, self.registrations, self._socket, self.node.containerd.socket
                ),
                stdout=log,
                stderr=log,
            )
        eventually("koord-runtime-proxy accepts", self._accepts)

    def kill_proxy(self) -> None:
        """Sends SIGKILL."""
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
            self._proxy = None
            self.cri.close()

    def _accepts(self) -> bool:
        assert self._proxy is not None
        assert self._proxy.poll() is None, self.node.log("koord")
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self._socket) == 0


def command(program: Path, registrations: Path, listen: str, runtime: str) -> list[str]:
    """The command of a koord-runtime-proxy between two sockets, which reads its hook servers from
    `registrations`."""
    return [
        *("unshare", "--mount", "--propagation=private"),
        *("sh", "-euc", _OWN_ETC, str(registrations), str(program)),
        f"--koord-runtimeproxy-endpoint={listen}",
        f"--remote-runtime-service-endpoint={runtime}",
    ]


@contextlib.contextmanager
def koordinator_node(containerd: Containerd, program: Path) -> Iterator[KoordinatorNode]:
    """A node on which nothing runs yet. All processes end with the block."""
    with fresh_node(containerd) as node:
        it = KoordinatorNode(node, program)
        try:
            yield it
        finally:
            it.kill_proxy()
