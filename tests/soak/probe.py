"""Creates containers in a pod's sandbox, by the proxy and by the runtime itself in turns, and
prints how long each pair took, as JSON, one pair a line: the moment (seconds of the monotonic
clock), and milliseconds by the proxy and without it.

usage: python -m tests.soak.probe UID PROXY RUNTIME

Now and then a caller leaves the proxy in the middle of a stream, and a large request fails. Errors
are not told: the processes are killed meanwhile."""

from __future__ import annotations

import itertools
import json
import socket
import sys
import time
from collections import deque
from typing import Final

from agent.cri.client import Cri
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    kill_container,
    large_environment,
    start_container,
)

PAUSE_SECONDS: Final = 1.0
FAILING_EVERY: Final = 10
KEPT: Final = 20
"""So many ended containers stay, as with a kubelet. containerd 2.4.2 panics where a container's
resources are updated while it is removed (GetRlimits in internal/cri/nri), and an agent updates one
that has just ended."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"
_TIMEOUT_SECONDS: Final = 30.0


class Timed:
    """Creates containers, ends them, and removes them later."""

    def __init__(self) -> None:
        self._ended: deque[str] = deque()

    def create(self, cri: Cri, request: pb.CreateContainerRequest) -> float:
        """The time of the creation, in milliseconds."""
        began = time.perf_counter()
        container = create_container(cri, request)
        milliseconds = (time.perf_counter() - began) * 1000
        start_container(cri, container)
        kill_container(cri, container)
        self._ended.append(container)
        if len(self._ended) > KEPT:
            remove = pb.RemoveContainerRequest(container_id=self._ended.popleft())
            cri.call("RemoveContainer", remove, pb.RemoveContainerResponse)
        return milliseconds


def fail(proxied: Cri, proxy: str, request: pb.CreateContainerRequest) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(proxy)
        caller.sendall(PREFACE)
    request.config.image.image = "none"
    large_environment(request.config, 200_000)
    create_container(proxied, request)


def main() -> None:
    uid, proxy, runtime = sys.argv[1:]
    proxied, direct = Cri(proxy, _TIMEOUT_SECONDS), Cri(runtime, _TIMEOUT_SECONDS)
    timed = Timed()
    for number in itertools.count():
        time.sleep(PAUSE_SECONDS)
        try:
            ready = [one for one in direct.sandboxes() if one.uid == uid and one.ready]
            if not ready:
                continue
            sandbox = ready[0]
            spec = PodSpec(sandbox.name, "LS", cgroup_root="", uid=uid)
            request = create_request(spec, sandbox.id, f"probe-{number}")
            order = ("proxied", "direct") if number % 2 else ("direct", "proxied")
            took = {}
            for name in order:
                request.config.metadata.name = f"probe-{number}-{name}"
                cri = proxied if name == "proxied" else direct
                took[name] = round(timed.create(cri, request), 3)
            moment = round(time.monotonic(), 1)
            print(json.dumps([moment, took["proxied"], took["direct"]]), flush=True)
            if not number % FAILING_EVERY:
                fail(proxied, proxy, create_request(spec, sandbox.id, "fails"))
        except (RpcError, OSError):
            continue


if __name__ == "__main__":
    main()
