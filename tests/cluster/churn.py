"""Pods with claims on CPUs that come and go on a node beside annotated ones, while its agent, its
kubelet and its runtime are killed."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.dra.names import DRIVER
from tests.cluster.cluster import Cluster, Object
from tests.cluster.machine import ProgramError
from tests.cluster.node import start_containerd
from tests.cluster.pods import manifest

TEMPLATE = "churn"
LABEL = "churn"
IN_FLIGHT = 4
"""kube-scheduler tries pods last that have failed most: where only one has a place at a time, the
first that loses may wait until no other comes."""
_RESTARTED_EVERY = 4
"""The container of one pod of so many is killed, and restarted."""
_KILLED = ("agent", "kubelet", "containerd")


class ClaimChurn:
    """`pod`: arguments of `manifest` that put a pod on the node. `cpus`: of each pod. One pod of
    `annotated_every` is annotated."""

    def __init__(
        self, cluster: Cluster, node: str, cpus: int, pod: Object, annotated_every: int
    ) -> None:
        self._cluster = cluster
        self._node = cluster.nodes[node]
        self._cpus = cpus
        self._pod = pod
        self._annotated_every = annotated_every
        self._random = random.Random(44)
        self._owners: dict[str, str] = {}
        """By the id of a container of an owner, its pod."""
        self._scheduled: dict[str, float] = {}
        """When a pod was first seen on the node."""
        self._restarts: dict[str, str] = {}
        """By pod, the container that was killed."""
        self._annotated: list[tuple[float, float]] = []
        """When annotated pods existed."""
        self._moments: list[dict[str, str]] = []
        self.failed: list[str] = []
        """The pods that did not start in time, also again."""
        self.kills: Counter[str] = Counter()

    # what happens
    def run(self, pods: int, kills: int) -> None:
        """Returns when all pods are gone."""
        self._cluster.create(_template(self._cpus))
        due = sorted(self._random.choices(range(pods), k=kills))
        created = 0
        with self._node.machine.moments(self._node.cpuset_files("*")) as self._moments:
            while True:
                while due and due[0] < created:
                    due.pop(0)
                    self._kill(_KILLED[len(due) % len(_KILLED)])
                existing = self._existing()
                if existing is None:
                    continue
                if not existing and created == pods:
                    break
                more = range(created, min(pods, created + IN_FLIGHT - len(existing)))
                if more and self._create(more):
                    created = more.stop
                self._step(existing)
        self._cluster.kubectl("delete", "resourceclaimtemplate", TEMPLATE)

    def _existing(self) -> list[Object] | None:
        """The pods; None if the API server does not answer."""
        now = time.time()
        try:
            pods = self._cluster.objects("pods", "-l", LABEL)
        except ProgramError:
            return None
        if any("resourceClaims" not in pod["spec"] for pod in pods):
            self._annotated.append((now, time.time()))
        return pods

    def _create(self, numbers: range) -> bool:
        """False if the API server refuses one."""
        pods = [self._manifest(number) for number in numbers]
        try:
            self._cluster.create(*pods)
        except ProgramError:
            return False
        return True

    def _manifest(self, number: int) -> Object:
        name, labels = f"churn-{number}", {LABEL: ""}
        if self._is_annotated(name):
            return manifest(name, qos="LSR", cpu=self._cpus, labels=labels, **self._pod)
        return manifest(
            name,
            labels=labels,
            container={
                "resources": {"requests": {"cpu": "50m"}, "claims": [{"name": "cpus"}]},
            },
            resourceClaims=[{"name": "cpus", "resourceClaimTemplateName": TEMPLATE}],
            **self._pod,
        )

    def _step(self, pods: list[Object]) -> None:
        """Notes containers, and deletes pods that ran long enough."""
        ended = []
        for pod in pods:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"] or "nodeName" not in pod["spec"]:
                continue
            scheduled = self._scheduled.setdefault(name, time.monotonic())
            status: Object = next(iter(pod["status"].get("containerStatuses", ())), {})
            running = "running" in status.get("state", {})
            container = str(status.get("containerID", "")).rpartition("//")[2]
            if container:
                self._owners[container] = name
            restarts = int(name.rpartition("-")[2]) % _RESTARTED_EVERY == 0
            if running and restarts and name not in self._restarts:
                self._kill_container(name, container)
            elif running and container != self._restarts.get(name):
                ended.append(name)
            elif time.monotonic() - scheduled > self._cluster.start_seconds:
                self.failed.append(f"{name}: {status or pod['status']}")
                ended.append(name)
        if ended:
            with contextlib.suppress(ProgramError):
                self._cluster.kubectl("delete", "pod", "--wait=false", *ended)

    def _kill_container(self, name: str, container: str) -> None:
        files = [
            f"{pattern.rpartition('/')[0]}/cgroup.procs"
            for pattern in self._node.cpuset_files(container)
        ]
        pids = [pid for text in self._node.machine.read(*files).values() for pid in text.split()]
        if pids:
            # The others end with the first one.
            self._node.machine.run("sh", "-c", 'kill -KILL "$@" || :', "sh", *pids)
            self._restarts[name] = container

    def _kill(self, process: str) -> None:
        """SIGKILL; something starts it again."""
        machine = self._node.machine
        if process == "agent":
            try:
                machine.run("kill", "-KILL", self._cluster.agent_pid(self._node.name))
            except (AssertionError, ProgramError):
                # It has not started again since it was killed last.
                return
        elif process == "kubelet":
            machine.end(process, signal.SIGKILL)
            self._node.restart_kubelet()
        else:
            machine.end(process, signal.SIGKILL)
            start_containerd(machine)
        self.kills[process] += 1

    # what was seen
    def twice_owned(self) -> list[str]:
        """The moments at which two owners had a CPU."""
        return [
            f"{one} and {other}: CPUs {common}"
            for moment in self._moments
            for (one, cpus), (other, of_other) in combinations(self._owned(moment).items(), 2)
            if (common := cpus & of_other)
        ]

    def shared_with(self, container: str) -> list[str]:
        """The moments at which a container of the pool had a CPU of a claim. An annotated pod runs
        in the pool while claims leave it no CPU."""
        shared = []
        for moment in self._moments:
            pool = [text for path, text in moment.items() if _container(path) == container]
            cpus = CpuSet.parse(pool[0].strip()) if pool else EMPTY
            for name, own in self._owned(moment).items():
                if not self._is_annotated(name) and (common := cpus & own):
                    shared.append(f"{name}: CPUs {common}")
        return shared

    def moved(self) -> list[str]:
        """The containers of claims that had other CPUs after their first own ones."""
        moved = []
        for container, texts in self._texts().items():
            own = next((index for index, text in enumerate(texts) if self._is_own(text)), None)
            if own is not None and own + 1 < len(texts):
                moved.append(f"{self._owners[container]}: {texts}")
        return moved

    def ran(self) -> set[str]:
        """The pods with claims that were seen on CPUs of their own."""
        texts = self._texts().items()
        return {self._owners[one] for one, seen in texts if any(map(self._is_own, seen))}

    def _texts(self) -> dict[str, list[str]]:
        """By container of a claim, each cpuset that it had, in order."""
        seen: dict[str, list[str]] = {}
        for moment in self._moments:
            for path, text in moment.items():
                container = _container(path)
                name = self._owners.get(container)
                if name is not None and not self._is_annotated(name):
                    texts = seen.setdefault(container, [])
                    if texts[-1:] != [text.strip()]:
                        texts.append(text.strip())
        return seen

    @property
    def restarted(self) -> int:
        return len(self._restarts)

    def is_annotated(self, moment: float) -> bool:
        """Whether an annotated pod existed then (seconds since 1970)."""
        return any(begin - 5 <= moment <= end + 5 for begin, end in self._annotated)

    def _owned(self, moment: dict[str, str]) -> dict[str, CpuSet]:
        """By pod, its CPUs. A runtime makes a container's cgroup with those of the parent."""
        owned: dict[str, CpuSet] = {}
        for path, text in moment.items():
            name = self._owners.get(_container(path))
            if name is not None and self._is_own(text):
                owned[name] = owned.get(name, EMPTY) | CpuSet.parse(text.strip())
        return owned

    def _is_annotated(self, pod: str) -> bool:
        return int(pod.rpartition("-")[2]) % self._annotated_every == self._annotated_every - 1

    def _is_own(self, text: str) -> bool:
        return len(CpuSet.parse(text.strip())) == self._cpus


@contextlib.contextmanager
def slices_gone(cluster: Cluster, node: str) -> Iterator[list[tuple[float, float]]]:
    """When the node had no slice during the block (seconds since 1970); filled at its end."""
    world = cluster.control.world
    columns = "custom-columns=E:.type,N:.object.spec.nodeName,D:.object.spec.driver"
    command = (
        f"kubectl --kubeconfig={cluster.control.config('admin')} get resourceslices --no-headers"
        f" --watch --output-watch-events -o {columns}"
        ' | while read -r line; do echo "$(date +%s.%N) $line"; done'
    )
    before = len(world.log("slices").splitlines())
    group = world.start("slices", "sh", "-c", command)
    spans: list[tuple[float, float]] = []
    try:
        yield spans
        assert world.alive("slices")
    finally:
        world.run("kill", "-KILL", "--", f"-{group}")
        world.end("slices")
        gone: float | None = None
        for line in world.log("slices").splitlines()[before:]:
            moment, event, name, driver = line.split()
            if (name, driver) != (node, DRIVER):
                continue
            if event == "DELETED":
                gone = float(moment)
            elif gone is not None:
                spans.append((gone, float(moment)))
                gone = None
        if gone is not None:
            spans.append((gone, time.time()))


def _template(cpus: int) -> Object:
    request: dict[str, Any] = {
        "name": "cpus",
        "exactly": {
            "deviceClassName": DRIVER,
            "capacity": {"requests": {f"{DRIVER}/cpu": str(cpus)}},
        },
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": TEMPLATE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _container(path: str) -> str:
    """The id in the path of a cpuset file."""
    return path.split("/")[-2]
