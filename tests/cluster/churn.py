"""Pods of several kinds that come and go on a node, while its processes are killed and other things
go wrong, and what the kernel's files showed meanwhile."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.dra.names import DRIVER
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner, decode
from agent.node.violations import may_hold
from tests.cluster.cluster import Cluster, Object
from tests.cluster.faults import CLOCK_JUMP, UNPLUGGED, Fault, NotNowError, kill
from tests.cluster.machine import ProgramError
from tests.cluster.node import Node
from tests.cluster.pods import manifest
from tests.integration.kubelet.plugin import RESOURCE

TEMPLATE = "churn"
LABEL = "churn"
IN_FLIGHT = 4
"""kube-scheduler tries pods last that have failed most: where only one has a place at a time, the
first that loses may wait until no other comes."""
_RESTARTED_EVERY = 4
"""The container of one pod of so many is killed, and restarted."""
KILLED: Final = ("agent", "kubelet", "containerd")
_SNAPSHOT: Final = "/run/topolet/snapshot.json"
_REJECTIONS: Final = ("UnexpectedAdmissionError", f"OutOf{RESOURCE}", "OutOfcpu")
"""Why a kubelet rejects a pod: the device plugin has not registered again, or two schedulers gave
the same CPU to two pods at one time."""
_TAKEN_NAME: Final = "failed to reserve container name"
"""A kubelet takes the container for the newest one that was created last by the clock: after a jump
back it creates the next one again."""


class Way(NamedTuple):
    """How pods come to CPUs. `make`: the pod with that name."""

    name: str
    make: Callable[[str], Object]
    owns: bool = True
    """Whether its containers have CPUs of their own."""
    keeps: bool = False
    """Whether a container never runs elsewhere after it had CPUs of its own."""


def claimed(pod: Object) -> Way:
    """Pods with a ResourceClaim on CPUs. `pod`: further arguments of `manifest`."""
    resources = {"requests": {"cpu": "50m"}, "claims": [{"name": "cpus"}]}
    claim = {"name": "cpus", "resourceClaimTemplateName": TEMPLATE}

    def make(name: str) -> Object:
        container = {"resources": resources}
        return manifest(name, container=container, resourceClaims=[claim], **pod)

    return Way("claim", make, keeps=True)


def annotated(cpus: int, pod: Object, qos: str = "LSR") -> Way:
    """Pods whose CPUs Topolet's scheduler chooses."""
    return Way(f"annotation {qos}", lambda name: manifest(name, qos=qos, cpu=cpus, **pod))


def plugged(pod: Object) -> Way:
    """Pods with a device of the kubelet's device plugin."""
    resources = {"requests": {"cpu": "50m"}, "limits": {RESOURCE: "1"}}
    return Way(
        "device plugin",
        lambda name: manifest(name, container={"resources": resources}, **pod),
        owns=False,
    )


def kills(node: Node, count: int) -> list[Fault]:
    """SIGKILL of the agent, the kubelet and the runtime in turns."""
    return [kill(node, KILLED[number % len(KILLED)]) for number in range(count)]


class Churn:
    """`cpus`: of each pod with CPUs of its own. `ways`: of pods, in turns, by their numbers, which
    begin with `first`."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        cpus: int,
        ways: Sequence[Way],
        first: int = 0,
        rng: random.Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._node = cluster.nodes[node]
        self._cpus = cpus
        self._ways = ways
        self._first = first
        self._random = rng or random.Random(44)
        self._owners: dict[str, str] = {}
        """By the id of a container of an owner, its pod."""
        self._scheduled: dict[str, float] = {}
        """When a pod was first seen on the node."""
        self._restarts: dict[str, str] = {}
        """By pod, the container that was killed."""
        self._annotated: list[tuple[float, float]] = []
        """When pods without a claim existed that own CPUs."""
        self._moments: list[dict[str, str]] = []
        self._lasting: list[tuple[float, contextlib.ExitStack]] = []
        """The faults of this moment, and when each is to end."""
        self.failed: list[str] = []
        """The pods that did not start in time, also again."""
        self.rejected = 0
        """The pods that a kubelet has rejected because a device plugin was away or two schedulers
        chose one CPU, or could not restart because the clock jumped."""
        self.faults: Counter[str] = Counter()
        self.spans: list[tuple[float, float]] = []
        """The beginning and the end of each fault, by the monotonic clock."""
        self.created: Counter[str] = Counter()
        """Pods by the names of their ways."""

    # what happens
    def run(
        self,
        pods: int,
        faults: Sequence[Fault],
        watch: Callable[[], None] = lambda: None,
        quiet: Callable[[], None] = lambda: None,
    ) -> None:
        """Returns when all pods are gone. `watch` is called again and again; `quiet` once, when
        pods run, nothing is broken, and no pod is created or deleted until it returns."""
        self._cluster.create(_template(self._cpus))
        due = sorted(self._random.choices(range(pods), k=len(faults)))
        waiting, created, rested = list(faults), 0, False
        files = self._node.cpuset_files("*")
        patterns = [_SNAPSHOT, *files, *map(_processes, files)]
        with self._node.machine.moments(patterns) as moments, contextlib.ExitStack() as stack:
            stack.callback(self._mend, float("inf"))
            while True:
                watch()
                self._mend(time.monotonic())
                while due and due[0] < created:
                    due.pop(0)
                    self._break(waiting.pop(0))
                existing = self._existing()
                if existing is None:
                    continue
                if not existing and created == pods:
                    break
                if not rested and not self._lasting and created > pods // 2:
                    rested = True
                    quiet()
                more = range(created, min(pods, created + IN_FLIGHT - len(existing)))
                if more and self._create(more):
                    created = more.stop
                self._step(existing)
        self._moments = [in_use(moment) for moment in moments]
        self._cluster.kubectl("delete", "resourceclaimtemplate", TEMPLATE)

    def _existing(self) -> list[Object] | None:
        """The pods; None if the API server does not answer."""
        now = time.time()
        try:
            pods = self._cluster.objects("pods", "-l", LABEL)
        except ProgramError:
            return None
        ways = [self._way(pod["metadata"]["name"]) for pod in pods]
        if any(way.owns and not way.keeps for way in ways):
            self._annotated.append((now, time.time()))
        return pods

    def _create(self, numbers: range) -> bool:
        """False if the API server refuses one."""
        names = [f"{LABEL}-{self._first + number}" for number in numbers]
        pods = [self._way(name).make(name) for name in names]
        for pod in pods:
            pod["metadata"]["labels"][LABEL] = ""
        try:
            self._cluster.create(*pods)
        except ProgramError:
            return False
        self.created.update(self._way(name).name for name in names)
        return True

    def _way(self, pod: str) -> Way:
        return self._ways[_number(pod) % len(self._ways)]

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
            if container and self._way(name).owns:
                self._owners[container] = name
            restarts = _number(name) % _RESTARTED_EVERY == 0
            if running and restarts and name not in self._restarts:
                self._kill_container(name, container)
            elif running and container != self._restarts.get(name):
                ended.append(name)
            elif self._is_rejected(pod, status):
                self.rejected += 1
                ended.append(name)
            elif time.monotonic() - scheduled > self._cluster.start_seconds:
                self.failed.append(f"{name}: {status or pod['status']}")
                ended.append(name)
        if ended:
            with contextlib.suppress(ProgramError):
                self._cluster.kubectl("delete", "pod", "--wait=false", *ended)

    def _is_rejected(self, pod: Object, status: Object) -> bool:
        message = status.get("state", {}).get("waiting", {}).get("message", "")
        jumped = bool(self.faults[CLOCK_JUMP]) and _TAKEN_NAME in message
        return jumped or pod["status"].get("reason") in _REJECTIONS

    def _kill_container(self, name: str, container: str) -> None:
        files = map(_processes, self._node.cpuset_files(container))
        pids = [pid for text in self._node.machine.read(*files).values() for pid in text.split()]
        if pids:
            # The others end with the first one.
            self._node.machine.run("sh", "-c", 'kill -KILL "$@" || :', "sh", *pids)
            self._restarts[name] = container

    def _break(self, fault: Fault) -> None:
        stack = contextlib.ExitStack()
        began = time.monotonic()
        stack.callback(lambda: self.spans.append((began, time.monotonic())))
        try:
            stack.enter_context(fault.during())
        except NotNowError:
            return
        self.faults[fault.name] += 1
        self._lasting.append((time.monotonic() + fault.seconds, stack))

    def _mend(self, now: float) -> None:
        """Ends the faults that have lasted long enough."""
        for end, stack in self._lasting:
            if end <= now:
                stack.close()
        self._lasting = [lasting for lasting in self._lasting if lasting[0] > now]

    # what was seen
    def twice_owned(self) -> list[str]:
        """The moments at which two owners had a CPU."""
        return [
            f"{one} and {other}: CPUs {common}"
            for moment in self._moments
            for (one, cpus), (other, of_other) in combinations(self._owned(moment).items(), 2)
            if (common := cpus & of_other)
        ]

    def overlaps(self, sharers: Mapping[str, QoS]) -> list[str]:
        """`overlaps` of what was seen."""
        return overlaps(self._moments, self._owners.keys(), sharers)

    def shared_with(self, container: str) -> list[str]:
        """The moments at which a container of the pool had a CPU of a pod that keeps its own. Other
        owners run in the pool while claims leave them no CPU."""
        shared = []
        for moment in self._moments:
            pool = [text for path, text in moment.items() if _container(path) == container]
            cpus = CpuSet.parse(pool[0].strip()) if pool else EMPTY
            for name, own in self._owned(moment).items():
                if self._way(name).keeps and (common := cpus & own):
                    shared.append(f"{name}: CPUs {common}")
        return shared

    def moved(self) -> list[str]:
        """The containers that had other CPUs after their first own ones, which they keep."""
        return [
            f"{self._owners[container]}: {texts}"
            for container, texts in self._texts().items()
            if moved([CpuSet.parse(text) for text in texts], self._cpus)
        ]

    def ran(self) -> set[str]:
        """The pods that were seen on CPUs of their own, and keep them."""
        texts = self._texts().items()
        return {self._owners[one] for one, seen in texts if any(map(self._is_own, seen))}

    def _texts(self) -> dict[str, list[str]]:
        """By container of a pod that keeps its CPUs, each cpuset that it had, in order."""
        seen: dict[str, list[str]] = {}
        for moment in self._moments:
            for path, text in moment.items():
                container = _container(path)
                name = self._owners.get(container)
                if name is not None and self._way(name).keeps:
                    texts = seen.setdefault(container, [])
                    if texts[-1:] != [text.strip()]:
                        texts.append(text.strip())
        return seen

    @property
    def restarted(self) -> int:
        return len(self._restarts)

    def is_annotated(self, moment: float) -> bool:
        """Whether a pod without a claim owned CPUs then (seconds since 1970)."""
        return any(begin - 5 <= moment <= end + 5 for begin, end in self._annotated)

    def _owned(self, moment: dict[str, str]) -> dict[str, CpuSet]:
        """By pod, its CPUs. A runtime makes a container's cgroup with those of the parent."""
        owned: dict[str, CpuSet] = {}
        for path, text in moment.items():
            name = self._owners.get(_container(path))
            if name is not None and self._is_own(text):
                owned[name] = owned.get(name, EMPTY) | CpuSet.parse(text.strip())
        return owned

    def _is_own(self, text: str) -> bool:
        return len(CpuSet.parse(text.strip())) == self._cpus


def moved(cpusets: Sequence[CpuSet], count: int) -> bool:
    """Whether a container had other CPUs after its first own ones, which are `count`. The kernel
    takes CPUs away that are unplugged."""
    own = next((index for index, cpus in enumerate(cpusets) if len(cpus) == count), None)
    if own is None:
        return False
    first, later = cpusets[own], cpusets[own + 1 :]
    return any(not cpus <= first or not first - cpus <= UNPLUGGED for cpus in later)


class _Placed(NamedTuple):
    """A container and its cpuset at one moment."""

    name: str
    uid: str
    cpus: CpuSet

    def runs_on(self, owner: Owner) -> bool:
        """Whether it is of the owner, and has CPUs, and only such of the owner."""
        return owner.is_of(self.uid) and bool(self.cpus) and self.cpus <= owner.cpus


def overlaps(
    moments: Sequence[Mapping[str, str]], owning: Collection[str], sharers: Mapping[str, QoS]
) -> list[str]:
    """The CPUs of an owner, by the agent's snapshot of a moment, that another owner or a sharer had
    while the owner ran there, once each. `moments`: texts of files by path; `owning`: the
    containers of owners; `sharers`: classes by container."""
    seen: dict[str, None] = {}
    owners: tuple[Owner, ...] = ()
    text = ""
    for moment in moments:
        if (snapshot := moment.get(_SNAPSHOT, "")) != text:
            text = snapshot
            owners = decode(text.encode()).owners if text else ()
        placed = [
            _Placed(_container(path), _uid(path), CpuSet.parse(cpus.strip()))
            for path, cpus in moment.items()
            if path != _SNAPSHOT
        ]
        running = [container for container in placed if container.name in owning]
        for owner in owners:
            if any(container.runs_on(owner) for container in running):
                seen |= dict.fromkeys(_on_cpus_of(owner, owners, placed, running, sharers))
    return list(seen)


def _on_cpus_of(
    owner: Owner,
    owners: Sequence[Owner],
    placed: Sequence[_Placed],
    running: Sequence[_Placed],
    sharers: Mapping[str, QoS],
) -> Iterator[str]:
    for container in placed:
        qos, common = sharers.get(container.name), container.cpus & owner.cpus
        if common and qos is not None and not may_hold(container.uid, qos, owner):
            yield f"{owner.title} and a pod of class {qos}: CPUs {common}"
    for other in owners:
        for container in running:
            common = container.cpus & owner.cpus
            if common and container.runs_on(other) and not owner.is_of(container.uid):
                yield f"{owner.title} and {other.title}: CPUs {common}"


@contextlib.contextmanager
def slices_gone(cluster: Cluster, node: str) -> Iterator[list[tuple[float, float]]]:
    """When the node had no slice during the block (seconds since 1970); filled at its end."""
    world = cluster.control.world
    columns = "custom-columns=E:.type,N:.object.spec.nodeName,D:.object.spec.driver"
    watch = (
        f"kubectl --kubeconfig={cluster.control.config('admin')} get resourceslices --no-headers"
        f" --watch --output-watch-events -o {columns}"
    )
    # API servers end each watch within the hour. The next one lists the slices that exist.
    command = (
        f"{{ {watch}; while :; do echo DELETED {node} {DRIVER}; {watch}; done; }}"
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


def in_use(moment: Mapping[str, str]) -> dict[str, str]:
    """Without the groups that have no process, and without the files of processes: a runtime that
    is killed may leave the group of a container that never ran."""
    return {
        path: text
        for path, text in moment.items()
        if path == _SNAPSHOT or (path != _processes(path) and moment.get(_processes(path)))
    }


def _processes(path: str) -> str:
    """The file with the processes of the group of a cpuset file."""
    return f"{path.rpartition('/')[0]}/cgroup.procs"


def _container(path: str) -> str:
    """The id in the path of a cpuset file."""
    return path.split("/")[-2]


def _uid(path: str) -> str:
    """The uid of the pod in the path of a cpuset file."""
    return path.split("/")[-3].removeprefix("pod")


def _number(pod: str) -> int:
    return int(pod.rpartition("-")[2])
