"""Hosts and pods of one test."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from agent.model.cpu.cpuset import CpuSet
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.integration.kubescheduler.hosts import Hosts, hosts
from tests.integration.kubescheduler.schedulers import PROFILE
from tests.waiting import eventually

PATIENCE_SECONDS = 90.0
STATUS = "scheduling.koordinator.sh/resource-status"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
ONE_NODE = {NUMA_SPEC: json.dumps({"numaTopologyPolicy": "SingleNUMANode"})}
"""Annotations of a pod that requires all resources on one NUMA node."""
MEMORY = {"memory": "64Mi"}

Pod = dict[str, Any]


class Workload:
    """Hosts and pods of one test."""

    def __init__(self, api: ApiServer, name: str, hosts: Hosts) -> None:
        self.api = api
        self.name = name
        self.hosts = hosts

    def ask(
        self,
        name: str,
        requests: dict[str, str],
        qos: str = "",
        notes: dict[str, str] | None = None,
        *,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A pod that selects the test's nodes."""
        labels = {**(labels or {}), **({"koordinator.sh/qosClass": qos} if qos else {})}
        pod = objects.pending(
            self.name,
            name,
            {**MEMORY, **requests},
            scheduler=PROFILE,
            labels=labels,
            annotations=notes,
            nodeSelector=self.hosts.selector,
            **spec,
        )
        objects.create(self.api, pod)

    def pods(self) -> dict[str, Pod]:
        return objects.pods(self.api, self.name)

    def bound(self) -> dict[str, Pod]:
        return {name: pod for name, pod in self.pods().items() if "nodeName" in pod["spec"]}

    def wait_bound(self, *names: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Pod]:
        eventually(
            f"bound: {', '.join(names[:5])}",
            lambda: self.bound().keys() >= set(names),
            seconds,
        )
        return self.bound()

    def wait_count(self, count: int, seconds: float) -> None:
        """Waits until this number of pods is bound: too many to list without a pause."""

        def enough() -> bool:
            return len(self.bound()) >= count or time.sleep(0.5) is not None

        eventually(f"{count} are bound", enough, seconds)

    def wait_refused(self, name: str, why: str = "") -> None:
        """`why`: a part of the readable reason. kube-scheduler may have had another reason before,
        until its watch reports the node."""

        def refused() -> bool:
            return any(
                each["type"] == "PodScheduled"
                and each["status"] == "False"
                and why in each.get("message", "")
                for each in self.pods()[name]["status"].get("conditions", [])
            )

        eventually(f"{name} refused: {why}", refused, PATIENCE_SECONDS)

    def wait(
        self, what: str, check: Callable[[], object], seconds: float = PATIENCE_SECONDS
    ) -> None:
        eventually(what, check, seconds)

    def stays(self, what: str, check: Callable[[], object], seconds: float = 4.0) -> None:
        """Checks that it stays true: there is no event for something that must not happen."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert check(), what
            time.sleep(0.1)

    def end_terminating(self) -> list[str]:
        """Acts as the kubelet; returns the names of the pods that were ending."""
        return objects.end_terminating(self.api, self.name)

    def ending(self) -> set[str]:
        return {name for name, pod in self.pods().items() if "deletionTimestamp" in pod["metadata"]}


@contextlib.contextmanager
def workload(api: ApiServer, test: str) -> Iterator[Workload]:
    """A namespace and nodes of one test, emptied afterwards."""
    name = re.sub("[^a-z0-9]+", "-", test.lower().removeprefix("test_"))[:50].strip("-")
    objects.namespace(api, name)
    with hosts(api, name) as its:
        it = Workload(api, name, its)
        yield it
        for pod in it.pods():
            objects.end(api, name, pod)


def cpus(pod: Pod) -> CpuSet:
    """Its own."""
    return CpuSet.parse(_note(pod, STATUS).get("cpuset", ""))


def numa_nodes(pod: Pod) -> list[int]:
    return [each["node"] for each in _note(pod, STATUS)["numaNodeResources"]]


def devices(pod: Pod) -> Any:
    """By type."""
    return _note(pod, ALLOCATED)


def _note(pod: Pod, key: str) -> Any:
    return json.loads(pod["metadata"]["annotations"][key])
