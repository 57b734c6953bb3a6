"""A proxy between kube-scheduler and an extender that records nodes of requests and responses."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
from collections.abc import Iterator
from typing import Any

from tests.integration.kubescheduler.extender_server import Handle


class Recorder:
    """Records the pods of one namespace. By pod uid, `choices`: the node with the highest score in
    the extender's last response, None if several nodes have it; `binds`: the node that
    kube-scheduler chose; `candidates`: the number of nodes in the last filter request."""

    def __init__(self, port: int, namespace: str) -> None:
        self.choices: dict[str, str | None] = {}
        self.binds: dict[str, str] = {}
        self.candidates: dict[str, int] = {}
        self._port = port
        self._namespace = namespace

    @contextlib.contextmanager
    def connected(self) -> Iterator[Handle]:
        """Opens a connection to the extender."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        ) as upstream:
            yield functools.partial(self._forward, upstream)

    def _forward(
        self, connection: http.client.HTTPConnection, path: str, body: bytes
    ) -> tuple[int, bytes]:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        answer = reply.read()
        if reply.status == 200:
            self._record(path.strip("/"), json.loads(body), json.loads(answer))
        return reply.status, answer

    def _record(self, verb: str, request: dict[str, Any], answer: Any) -> None:
        if _namespace(request) != self._namespace:
            return
        if verb == "filter":
            names = answer["NodeNames"]
            uid = request["Pod"]["metadata"]["uid"]
            self.candidates[uid] = len(request["NodeNames"])
            self.choices[uid] = names[0] if len(names) == 1 else None
        elif verb == "prioritize" and answer:
            most = max(each["Score"] for each in answer)
            best = [each["Host"] for each in answer if each["Score"] == most]
            self.choices[request["Pod"]["metadata"]["uid"]] = best[0] if len(best) == 1 else None
        elif verb == "bind" and not answer["Error"]:
            self.binds[request["PodUID"]] = request["Node"]


def _namespace(request: dict[str, Any]) -> str:
    return str(
        request["PodNamespace"] if "Pod" not in request else request["Pod"]["metadata"]["namespace"]
    )
