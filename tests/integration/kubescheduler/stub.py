"""An extender whose answers a test decides."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler.extender_server import answering
from tests.waiting import eventually


class Stub:
    """`asked` has the name of the pod of every filter, in order. `filtered` has the nodes of each
    filter of a pod, `prioritized` the pods of every prioritize. Binds as requested."""

    def __init__(self, api: ApiServer, refusal: Callable[[str, str], str | None]) -> None:
        """`refusal` of a pod's name and a node's name: the reason of a refusal, None if it is
        accepted."""
        self.asked: list[str] = []
        self.filtered: dict[str, list[set[str]]] = {}
        self.prioritized: list[str] = []
        self.refusal = refusal
        self._api = api

    def quiet(self, seconds: float = 3.0) -> int:
        """The number of its calls, once nothing of the first refusal is retried any more."""
        count, since = -1, time.monotonic()

        def silent() -> bool:
            nonlocal count, since
            if len(self.asked) != count:
                count, since = len(self.asked), time.monotonic()
            return time.monotonic() - since > seconds

        eventually("kube-scheduler leaves it alone", silent, 60.0)
        return count

    def answer(self, verb: str, body: dict[str, Any]) -> Any:
        match verb:
            case "filter":
                name = body["Pod"]["metadata"]["name"]
                self.asked.append(name)
                self.filtered.setdefault(name, []).append(set(body["NodeNames"]))
                why = {each: self.refusal(name, each) for each in body["NodeNames"]}
                return {
                    "NodeNames": [each for each, text in why.items() if text is None],
                    "FailedNodes": {each: text for each, text in why.items() if text is not None},
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


def listening(stub: Stub) -> AbstractContextManager[str]:
    """Its URL."""

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        return 200, json.dumps(stub.answer(path.strip("/"), json.loads(body))).encode()

    return answering(lambda: nullcontext(answer))
