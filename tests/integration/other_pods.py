"""Pods without keys of Topolet. Users, kube-scheduler and kubelet create, bind, update and delete
them continuously while a test changes the cluster."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any, Self

from tests.deploy.api import Api, RefusedError, Who
from tests.waiting import eventually

Object = dict[str, Any]

USER = Who("alice")
SCHEDULER = Who("system:kube-scheduler", "")
NODE = "other-pods"
KUBELET = Who(f"system:node:{NODE}", "system:nodes")

HANG_SECONDS = 10.0
"""A longer request waits for a webhook or a policy that does not respond."""


_PAUSE_SECONDS = 0.1
"""A pause between rounds, so that other tests get CPU time."""


class OtherPods:
    """A thread that runs one pod after the other in each namespace, from entry to exit."""

    def __init__(self, api: Api, *namespaces: str) -> None:
        """`api`: of an administrator. A request that exceeds its timeout is a failure."""
        self._api = api
        self._namespaces = namespaces
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def wait_for_rounds(self, rounds: int = 3) -> None:
        """Returns after so many complete rounds without a failure."""
        before = len(self.seconds)
        eventually("pods run", lambda: self.failures or len(self.seconds) > before + rounds, 3 * 60)
        self.assert_no_failures()

    def assert_no_failures(self) -> None:
        assert not self.failures, self.failures[:3]

    def median_seconds(self) -> float:
        """The median duration of the rounds so far."""
        return statistics.median(self.seconds)

    def _run(self) -> None:
        number = 0
        while not self._end.wait(_PAUSE_SECONDS):
            began = time.monotonic()
            for namespace in self._namespaces:
                number += 1
                self._run_pod(namespace, f"other-{number}")
            self.seconds.append(time.monotonic() - began)

    def _run_pod(self, namespace: str, name: str) -> None:
        """Creates, binds, updates and deletes a pod."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        steps: tuple[tuple[str, str, Object | None, Who | None], ...] = (
            ("POST", pods, pod(name), USER),
            ("POST", f"{pods}/{name}/binding", binding(name), SCHEDULER),
            ("PATCH", f"{pods}/{name}/status", {"status": {"message": "runs"}}, KUBELET),
            ("PATCH", f"{pods}/{name}", {"metadata": {"labels": {"a": "b"}}}, USER),
            ("DELETE", f"{pods}/{name}?gracePeriodSeconds=0", None, USER),
        )
        for method, path, body, who in steps:
            media = "application/json" if method != "PATCH" else "application/merge-patch+json"
            try:
                self._api.request(method, path, body, who, media)
            except (RefusedError, OSError) as error:
                self.failures.append(f"{method} {path}: {error}")


def pod(name: str) -> Object:
    """A pod without keys of Topolet."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "a"}, "annotations": {"example.com/a": "b"}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1m"}}}],
        },
    }


def binding(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }
