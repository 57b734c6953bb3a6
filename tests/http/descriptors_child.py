"""A process that runs one of the agent's loops without free file descriptors.

`python -m tests.http.descriptors_child KIND FOLDER` prints the port on which it listens, or 0, and
reads commands, one per line: `take` opens all free descriptors, `free` closes them, `total` prints
how often the loop tried to get a descriptor or woke up, and `count SECONDS` prints by how much that
number grew within this time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable

from agent.host.loop import Loop
from agent.http.limits import ConnectionLimits
from agent.http.listener import PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply, Route
from agent.http.server import HttpServer, ServerLimits
from agent.node.notifications import NotificationSocket
from agent.nri.link import PluginLink
from agent.relay.server import RelayServer
from tests.nri.recorder import Recorder
from tests.relay.relay_child import Hooks

DESCRIPTORS = 64
LIMITS = ConnectionLimits(connections=2 * DESCRIPTORS, reserved=8, each_peer=32, head_seconds=3600)
ROUTES = {"/healthz": Route("GET", lambda _: Reply(200, b"ok\n", "text/plain"))}
NODE = NodeAddresses()


class Attempts:
    """Counts attempts to get a descriptor; without a free one each fails at once."""

    number = 0

    def counted(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            self.number += 1
            return function(*args, **options)

        return call


def start(kind: str, folder: str, attempts: Attempts) -> int:
    """Starts the loop in a thread and returns its port."""
    socket.socket.accept = attempts.counted(socket.socket.accept)  # type: ignore[method-assign,assignment]
    if kind == "server":
        server = HttpServer("127.0.0.1:0", ROUTES, ServerLimits(LIMITS, threads=2), NODE)
        server.start()
        return server.port
    if kind == "notifications":
        notifications = NotificationSocket(f"{folder}/notifications.sock")
        threading.Thread(target=_wait, args=(notifications, attempts), daemon=True).start()
        return 0
    loop, port = Loop(), 0
    if kind == "page":
        port = PageListener(loop, ("127.0.0.1", 0), ROUTES, NODE, LIMITS).port
    elif kind == "relay":
        RelayServer(loop, Hooks(), f"{folder}/front.sock", f"{folder}/back.sock")
    else:
        PluginLink.start = attempts.counted(PluginLink.start)  # type: ignore[method-assign,assignment]
        PluginLink(loop, f"{folder}/back.sock", "topolet", "42", Recorder()).start()
    threading.Thread(target=loop.run, daemon=True).start()
    return port


def _wait(notifications: NotificationSocket, attempts: Attempts) -> None:
    while True:
        notifications.wait(3600)
        attempts.number += 1


def main(kind: str, folder: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    attempts, opened = Attempts(), list[int]()
    print(start(kind, folder, attempts), flush=True)
    for line in sys.stdin:
        command, *seconds = line.split()
        if command == "take":
            with contextlib.suppress(OSError):
                while True:
                    opened.append(os.open(os.devnull, os.O_RDONLY))
        elif command == "free":
            while opened:
                os.close(opened.pop())
        elif command == "total":
            print(attempts.number, flush=True)
            continue
        else:
            before = attempts.number
            time.sleep(float(seconds[0]))
            print(attempts.number - before, flush=True)
            continue
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
