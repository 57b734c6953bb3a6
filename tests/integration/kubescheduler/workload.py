"""Nodes and pods of one test."""

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
from tests.integration.kubescheduler.nodes import Nodes, nodes_for
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
    """Nodes and pods of one test."""

    def __init__(self, api: ApiServer, name: str, nodes: Nodes) -> None:
        self.api = api
        self.name = name
        self.nodes = nodes

    def create_pod(
        self,
        name: str,
        requests: dict[str, str],
        qos: str = "",
        notes: dict[str, str] | None = None,
        *,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Creates a pod that selects the nodes of the test. `notes`: its annotations."""
        labels = {**(labels or {}), **({"koordinator.sh/qosClass": qos} if qos else {})}
        pod = objects.pod_manifest(
            self.name,
            name,
            {**MEMORY, **requests},
            scheduler=PROFILE,
            labels=labels,
            annotations=notes,
            nodeSelector=self.nodes.selector,
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

    def wait_bound_count(self, count: int, seconds: float) -> None:
        """Waits until this number of pods is bound, with pauses because the list is long."""

        def enough() -> bool:
            return len(self.bound()) >= count or time.sleep(0.5) is not None

        eventually(f"{count} are bound", enough, seconds)

    def wait_unschedulable(self, name: str, reason: str = "") -> None:
        """Waits until kube-scheduler reports the pod as unschedulable. `reason`: a part of the
        message. Earlier messages may be different, from before its watch reported the node."""

        def reported() -> bool:
            return any(
                each["type"] == "PodScheduled"
                and each["status"] == "False"
                and reason in each.get("message", "")
                for each in self.pods()[name]["status"].get("conditions", [])
            )

        eventually(f"{name} is unschedulable: {reason}", reported, PATIENCE_SECONDS)

    def wait(
        self, what: str, check: Callable[[], object], seconds: float = PATIENCE_SECONDS
    ) -> None:
        eventually(what, check, seconds)

    def assert_stays(self, what: str, check: Callable[[], object], seconds: float = 4.0) -> None:
        """Checks that a condition stays true for some time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert check(), what
            time.sleep(0.1)

    def remove_terminating(self) -> list[str]:
        """Removes terminating pods, as a kubelet does. Returns their names."""
        return objects.remove_terminating(self.api, self.name)

    def terminating(self) -> set[str]:
        return {name for name, pod in self.pods().items() if "deletionTimestamp" in pod["metadata"]}


@contextlib.contextmanager
def workload_for(api: ApiServer, test: str) -> Iterator[Workload]:
    """Creates a namespace for a test. Deletes its pods and nodes afterwards."""
    name = re.sub("[^a-z0-9]+", "-", test.lower().removeprefix("test_"))[:50].strip("-")
    objects.namespace(api, name)
    with nodes_for(api, name) as nodes:
        it = Workload(api, name, nodes)
        yield it
        for pod in it.pods():
            objects.force_delete(api, name, pod)


def cpus(pod: Pod) -> CpuSet:
    """The exclusive CPUs of a pod."""
    return CpuSet.parse(_note(pod, STATUS).get("cpuset", ""))


def numa_nodes(pod: Pod) -> list[int]:
    return [each["node"] for each in _note(pod, STATUS)["numaNodeResources"]]


def devices(pod: Pod) -> Any:
    """The allocated devices of a pod, by type."""
    return _note(pod, ALLOCATED)


def _note(pod: Pod, key: str) -> Any:
    return json.loads(pod["metadata"]["annotations"][key])
