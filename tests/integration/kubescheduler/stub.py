"""An extender whose responses a test determines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler.extender_server import serving
from tests.waiting import eventually


class Stub:
    """Binds each pod to the requested node. `filter_calls`: the pods of all filter requests, in
    order. `filtered`: the nodes of the filter requests, by pod. `prioritized`: the pods of all
    prioritize requests."""

    def __init__(self, api: ApiServer, refusal: Callable[[str, str], str | None]) -> None:
        """`refusal`: returns why a node (the second name) is rejected for a pod, or None."""
        self.filter_calls: list[str] = []
        self.filtered: dict[str, list[set[str]]] = {}
        self.prioritized: list[str] = []
        self.refusal = refusal
        self._api = api

    def wait_until_idle(self, seconds: float = 3.0) -> int:
        """Waits until kube-scheduler sends no more filter requests. Returns their number so far."""
        count, changed_at = -1, time.monotonic()

        def idle() -> bool:
            nonlocal count, changed_at
            if len(self.filter_calls) != count:
                count, changed_at = len(self.filter_calls), time.monotonic()
            return time.monotonic() - changed_at > seconds

        eventually("kube-scheduler sends no more requests", idle, 60.0)
        return count

    def handle(self, verb: str, body: dict[str, Any]) -> Any:
        match verb:
            case "filter":
                name = body["Pod"]["metadata"]["name"]
                self.filter_calls.append(name)
                self.filtered.setdefault(name, []).append(set(body["NodeNames"]))
                reasons = {each: self.refusal(name, each) for each in body["NodeNames"]}
                return {
                    "NodeNames": [each for each, text in reasons.items() if text is None],
                    "FailedNodes": {
                        each: text for each, text in reasons.items() if text is not None
                    },
                }
            case "prioritize":
                self.prioritized.append(body["Pod"]["metadata"]["name"])
                return [{"Host": each, "Score": 5} for each in body["NodeNames"]]
            case "preempt":
                return {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
            case _:
                namespace, name = body["PodNamespace"], body["PodName"]
                self._api.create(
                    f"/api/v1/namespaces/{namespace}/pods/{name}/binding",
                    {
                        "apiVersion": "v1",
                        "kind": "Binding",
                        "metadata": {"name": name, "uid": body["PodUID"]},
                        "target": {"kind": "Node", "name": body["Node"]},
                    },
                )
                return {"Error": ""}


def serving_stub(stub: Stub) -> AbstractContextManager[str]:
    """Serves the stub. Its value is the URL."""

    def handle(path: str, body: bytes) -> tuple[int, bytes]:
        return 200, json.dumps(stub.handle(path.strip("/"), json.loads(body))).encode()

    return serving(handle)
