"""A runtime with one real pod that is listed as many pods, so that they need not be started.

The replies about each pod are the runtime's own, with ids and names of the same length replaced in
their bytes. The cgroups of all pods exist, without processes. Each caller of GetContainerEvents
receives one event.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers.packages import imported

from agent.cri.client import Cri
from agent.proto import cri_pb2 as pb
from agent.rpc.channel import Channel

SERVICE = "/runtime.v1.RuntimeService/"
MOUNTS = Path("/sys/fs/cgroup")
CALLERS = 8
STATUSES = ("PodSandboxStatus", "ContainerStatus")
_ID = re.compile(rb"[0-9a-f]{64}")


class ManyPods:
    """The replies of the runtime for all pods."""

    def __init__(self, socket: str, name: str, pods: Mapping[str, str]) -> None:
        """The runtime's only pod is `pods[name]`; `pods`: uid by name, names of one length."""
        cri, channel = Cri(socket), Channel(socket)

        def answer(method: str, request: bytes = b"") -> bytes:
            return channel.call(SERVICE + method, request, 10.0)

        (sandbox,), (container,) = cri.sandboxes(), cri.containers()
        group = Path(cri.container_status(container.id).cgroups_path).parent
        cri.close()
        ids = sandbox.id, container.id
        # Both requests have the id as field 1 and `verbose` as field 2.
        requests = {
            each: pb.ContainerStatusRequest(container_id=each, verbose=True) for each in ids
        }
        statuses = {
            method: answer(method, requests[each].SerializeToString())
            for method, each in zip(STATUSES, ids, strict=True)
        }
        lists = {method: answer(method) for method in ("ListPodSandbox", "ListContainers")}
        self._replies = dict.fromkeys(lists, b"") | {
            "Version": answer("Version"),
            "UpdateContainerResources": b"",
        }
        channel.close()
        self._statuses: dict[tuple[str, bytes], bytes] = {}
        for other, uid in pods.items():
            names = {name: other, pods[name]: uid, **{each: _id(each, uid) for each in ids}}
            for method, raw in lists.items():
                self._replies[method] += _replace_names(
                    raw, names
                )  # messages that follow are merged
            for method, each in zip(STATUSES, ids, strict=True):
                self._statuses[method, names[each].encode()] = _replace_names(
                    statuses[method], names
                )
                if other != name:
                    _make_groups(
                        group / each, Path(_replace_names_in_text(str(group / each), names))
                    )
        # An event's first field is the container's id too.
        self.event = pb.ContainerStatusRequest(container_id=container.id).SerializeToString()

    def answer(self, method: str, request: bytes) -> bytes:
        """Raises KeyError for a method that an agent does not call."""
        if method not in STATUSES:
            return self._replies[method]
        found = _ID.search(request)
        return self._statuses[method, found[0] if found else b""]


@contextmanager
def serving(path: Path, many: ManyPods) -> Iterator[None]:
    """Serves on a real gRPC server. Raises NoPackageError."""
    imported("grpcio", ("grpc",))
    import grpc

    ended = threading.Event()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            method = details.method.removeprefix(SERVICE)
            if method == "GetContainerEvents":
                return grpc.unary_stream_rpc_method_handler(self.events)
            return grpc.unary_unary_rpc_method_handler(
                lambda request, _: many.answer(method, request)
            )

        def events(self, request: bytes, context: Any) -> Iterator[bytes]:
            yield many.event
            ended.wait()

    server = grpc.server(futures.ThreadPoolExecutor(CALLERS))
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        ended.set()
        server.stop(None).wait()


def _make_groups(template_group: Path, group: Path) -> None:
    """Creates the cgroups in every hierarchy; they are removed with those of the runtime."""
    for mount in MOUNTS.iterdir():
        old, new = (mount / str(each).lstrip("/") for each in (template_group, group))
        if not old.is_dir():
            continue
        for template, folder in ((old.parent, new.parent), (old, new)):
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (template / file).exists():
                    (folder / file).write_text((template / file).read_text())


def _id(old: str, uid: str) -> str:
    return hashlib.sha256(f"{old} {uid}".encode()).hexdigest()


def _replace_names(raw: bytes, names: Mapping[str, str]) -> bytes:
    for old, new in names.items():
        raw = raw.replace(old.encode(), new.encode())
    return raw


def _replace_names_in_text(text: str, names: Mapping[str, str]) -> str:
    return _replace_names(text.encode(), names).decode()
