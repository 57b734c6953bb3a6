"""A long day on a cluster: waves of pods, on one node after the other, under one set-up of the
agents after the other."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.model.pod.qos import QoS
from agent.node.drift import DriftKind
from tests.cluster import faults, plugin
from tests.cluster.churn import IN_FLIGHT, LABEL, Churn, Way, annotated, claimed, plugged
from tests.cluster.cluster import GUEST, HOST, NAMESPACE, ON_GUEST, Cluster, Object
from tests.cluster.guest import LONG_PROBES
from tests.cluster.machine import MachineError, ProgramError
from tests.cluster.node import PROXY_SOCKET, RUNTIME, Node, start_containerd
from tests.cluster.pods import SCHEDULER, manifest
from tests.deploy.manifests import DEPLOY
from tests.integration.kubelet import plugin as card
from tests.soak.report import Creation, Left, Report, Sample, Seen, report

log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 10.0
SETUP_SECONDS: Final = 1_800.0
"""The longest time between two changes of the agents' set-up, which starts them anew."""
QUIET_SECONDS: Final = 180.0
"""So soon after a fault the agents' values are those of the kernel."""
ROOT: Final = Path(__file__).resolve().parents[2]
STANDING: Final = {"ls": QoS.LS, "be": QoS.BE}
"""The pods that every node has all the time."""
_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
_SLO: Final = "/run/topolet/slo"
_STRATEGIES: Final = {
    "resource-qos-config": {
        "clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}
    },
    "resource-threshold-config": {},
    "cpu-burst-config": {},
}
_BATCH: Final = (
    *("--node-slo=follow", f"--slo-config={_SLO}", "--colocation=act"),
    "--node-metric=off",
)
_LEFT: Final = """find /sys/fs/cgroup -path '*kubepods*' -type d | wc -l
find /run/topolet -type f -not -path '*/audit/*' -not -path '*/slo/*' -exec cat {} + | wc -c"""
_DOCTOR: Final = "topolet doctor -o json || :"
_DRIFT: Final = set(DriftKind) - {DriftKind.CLAIM, DriftKind.CLAIM_UNSEEN}
"""Without what schedulers do that choose the same CPU at one time: the agent refuses one."""
_CRASH_LOOP: Final = {"maxContainerRestartPeriod": "2s"}


class Setup(NamedTuple):
    """What the agents do. `components`: of deploy/components; `options`: of their command."""

    name: str
    components: tuple[str, ...]
    options: tuple[str, ...]


class Place(NamedTuple):
    """A node of the soak. `pod`: arguments of `manifest` that put a pod there; `cpus`: of each pod
    with CPUs of its own; `waves`: in a row; `pods`, `faults`: of each wave."""

    node: str
    pod: Object
    cpus: int
    waves: int
    pods: int
    faults: int
    near: int
    """The NUMA node of the devices of the kubelet's device plugin."""


CLAIMS: Final = Setup("claims", ("dra", "usage"), _BATCH)
LOCAL: Final = Setup(
    "node-local", ("usage",), (*_BATCH, "--cpu-policy=dynamic", "--reserved-cpus=0")
)
PLACES: Final = (
    Place(HOST, {"node": HOST}, 1, 4, 20, 1, 0),
    Place(GUEST, ON_GUEST, 2, 1, 8, 3, 1),
)


def ways(setup: Setup, place: Place) -> list[Way]:
    """The pods of one wave and the next ones, in turns. On two CPUs only one of them at a time has
    a CPU of its own, and a claim that loses it to an annotated pod is refused for a minute."""
    pod, cpus = place.pod, place.cpus
    own = (
        Way("node-local", lambda name: manifest(name, cpu=cpus, guaranteed=True, **pod))
        if setup is LOCAL
        else claimed(pod)
    )
    shared = Way("LS", lambda name: manifest(name, qos="LS", cpu="50m", **pod), owns=False)
    batch = Way("BE", lambda name: manifest(name, qos="BE", **pod), owns=False)
    turns = [own, shared, own, batch] * 4
    if place.node == GUEST:
        rdma = {"koordinator.sh/rdma": "100"}
        resources = {"requests": {"cpu": "50m", **rdma}, "limits": rdma}
        rdma_device = Way(
            "RDMA device",
            lambda name: manifest(
                name, container={"resources": resources}, schedulerName=SCHEDULER, **pod
            ),
            owns=False,
        )
        devices = [rdma_device, own, plugged(pod)]
        return [own, shared, *devices, annotated(cpus, pod), annotated(cpus, pod, "LSE"), batch]
    return [*turns, annotated(cpus, pod), plugged(pod), annotated(cpus, pod, "LSE"), batch]


class Day:
    """`pods`: it ends when so many have come; None: after the time alone."""

    def __init__(self, cluster: Cluster, seconds: float, pods: int | None, seed: int) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._pods = pods
        self._seed = seed
        self._random = random.Random(seed)
        self._began = self._sampled = time.monotonic()
        self._seen = Seen()
        self._faults: Counter[str] = Counter()
        self._waiting: dict[str, list[faults.Fault]] = {}
        """By node, the faults to come."""
        self._created: Counter[str] = Counter()
        self._seen.left_out["pods of koord-scheduler"] = "the cluster has Topolet's scheduler"
        self._places = [place for place in PLACES if place.node in cluster.nodes]

    def prepare(self) -> None:
        """Creates the pods that every node has all the time."""
        for place in self._places:
            self._prepare(place)
        self._start_probe()

    def run(self) -> Report:
        """What was seen also if the cluster itself breaks, which is a finding."""
        seen = self._seen
        self._began = time.monotonic()
        try:
            self._waves()
        except (AssertionError, MachineError, ProgramError) as error:
            log.exception("the day has ended")
            seen.ended = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - self._began
        seen.pods, seen.faults = dict(self._created), dict(self._faults)
        seen.creations = [
            Creation(*json.loads(line))
            for line in self._cluster.nodes[HOST].machine.log("probe").splitlines()
            if line.startswith("[")
        ]
        return report(seen, seconds, self._seed)

    @property
    def seen(self) -> Seen:
        return self._seen

    def _waves(self) -> None:
        length = min(SETUP_SECONDS, self._seconds / 2)
        numbers = 0
        while self._goes_on():
            setup = (CLAIMS, LOCAL)[numbers % 2]
            numbers += 1
            self._install(setup)
            end = time.monotonic() + length
            while time.monotonic() < end and self._goes_on():
                for place in self._places:
                    for _ in range(place.waves):
                        self._wave(setup, place)
            self._cluster.kubectl("delete", "resourceclaims", "--all", "--wait=false")

    def _goes_on(self) -> bool:
        if self._pods is not None and self._created.total() >= self._pods:
            return False
        return time.monotonic() - self._began < self._seconds

    # before
    def _prepare(self, place: Place) -> None:
        """Two pods on shared CPUs, a kubelet that restarts killed containers soon and has a device
        plugin, and strategies for BE pods."""
        cluster, node = self._cluster, self._cluster.nodes[place.node]
        for name, text in _STRATEGIES.items():
            node.machine.write(f"{_SLO}/{name}", json.dumps(text))
        node.restart_kubelet(crashLoopBackOff=_CRASH_LOOP)
        cluster.wait_node_ready(place.node)
        devices = json.dumps({f"card-{number}": [place.near] for number in range(IN_FLIGHT)})
        node.machine.start(
            *("device-plugin", sys.executable, "-m", card.__name__, _PLUGINS, devices),
            env={"PYTHONPATH": str(ROOT)},
        )
        for name, qos in STANDING.items():
            cpu = {"cpu": "10m"} if qos is QoS.LS else {}
            cluster.pod(f"{name}-{place.node}", qos=qos.value, **cpu, **place.pod)
        for what, why in faults.possible(cluster, place.node)[1].items():
            self._seen.left_out[f"{what} on {place.node}"] = why
        if place.node == HOST:
            self._seen.left_out[f"RDMA devices on {HOST}"] = "the node has none"
        else:
            self._seen.left_out[f"time of creations on {place.node}"] = "the machine is emulated"

    def _start_probe(self) -> None:
        pod = self._cluster.get("pod", f"ls-{HOST}")
        assert pod is not None
        self._cluster.nodes[HOST].machine.start(
            "probe",
            *(sys.executable, "-m", "tests.soak.probe", pod["metadata"]["uid"]),
            *(PROXY_SOCKET, RUNTIME.removeprefix("unix://")),
            env={"PYTHONPATH": str(ROOT)},
        )

    def _install(self, setup: Setup) -> None:
        """Rolls the agents out."""
        cluster = self._cluster
        folder = cluster.control.world.folder / setup.name
        folder.mkdir(exist_ok=True)
        (folder / "kustomization.yaml").write_text(json.dumps(self._kustomization(setup, folder)))
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(folder))
        words = ("-n", NAMESPACE, "daemonset/topolet-agent", "--timeout=60s")
        cluster.eventually(
            f"the agents with {setup.name} are rolled out",
            lambda: cluster.kubectl("rollout", "status", *words),
        )
        for place in self._places:
            cluster.wait_agent_ready(place.node)

    def _kustomization(self, setup: Setup, folder: Path) -> dict[str, Any]:
        patch: list[dict[str, Any]] = [
            {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": option}
            for option in setup.options
        ]
        if GUEST in self._cluster.nodes:
            patch += LONG_PROBES
        return {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(DEPLOY / "overlays/proxy", folder)],
            "components": [
                os.path.relpath(DEPLOY / "components" / name, folder) for name in setup.components
            ],
            "patches": [
                {
                    "target": {"kind": "DaemonSet", "name": "topolet-agent"},
                    "patch": json.dumps(patch),
                }
            ],
        }

    # one wave
    def _wave(self, setup: Setup, place: Place) -> None:
        cluster = self._cluster
        standing = {f"{name}-{place.node}": qos for name, qos in STANDING.items()}
        cluster.wait_running(*standing)
        sharers = {cluster.container_id(name): qos for name, qos in standing.items()}
        churn = Churn(
            *(cluster, place.node, place.cpus, ways(setup, place)),
            first=self._created.total(),
            rng=self._random,
        )
        drawn = self._drawn(place)
        log.info("%s, %s: %s", setup.name, place.node, [fault.name for fault in drawn])
        try:
            churn.run(place.pods, drawn, watch=self._sample, quiet=lambda: self._check(place))
        finally:
            self._note(churn, place, sharers)
        self._check(place)
        self._settle(setup, place)

    def _note(self, churn: Churn, place: Place, sharers: dict[str, QoS]) -> None:
        seen = self._seen
        self._created += churn.created
        self._faults += churn.faults
        seen.failed_pods += churn.failed
        seen.rejected_pods += churn.rejected
        if place.node == HOST:
            seen.disturbed += churn.spans
        overlaps = churn.overlaps(sharers)
        for container, qos in sharers.items():
            shared = dict.fromkeys(churn.shared_with(container))
            overlaps += [f"{qos} and {text}" for text in shared]
        seen.overlaps += overlaps
        seen.drift += [f"moved: {text}" for text in churn.moved()]

    def _drawn(self, place: Place) -> Sequence[faults.Fault]:
        """Each fault of the node comes once before one comes again."""
        waiting = self._waiting.setdefault(place.node, [])
        if len(waiting) < place.faults:
            possible, _ = faults.possible(self._cluster, place.node)
            waiting += self._random.sample(possible, len(possible))
        drawn = waiting[: place.faults]
        del waiting[: place.faults]
        return drawn

    def _check(self, place: Place) -> None:
        """Adds what of the agent's values stays different from the kernel's."""
        findings: list[str] = []

        def agrees() -> bool:
            self._sample()
            findings[:] = self._drift(place.node)
            return not findings

        try:
            self._cluster.eventually(f"{place.node} has no drift", agrees, QUIET_SECONDS)
        except AssertionError:
            self._seen.drift += findings

    def _drift(self, node: str) -> list[str]:
        try:
            if node == GUEST:
                # Containers there get no further command: their runtime runs below a chroot.
                text, error = self._cluster.nodes[node].machine.run("sh", "-c", _DOCTOR), "-"
            else:
                _, text, error = plugin.run(self._cluster, "doctor", node, "-o", "json")
        except MachineError as reason:
            return [str(reason)]
        if not text:
            return [error]
        document = json.loads(text)
        if document["seen"] is None:
            return [f"{node}: doctor sees nothing: {error}"]
        return [
            f"{node}: {json.dumps(finding)}"
            for finding in document["findings"]
            if finding["kind"] in _DRIFT
        ]

    def _settle(self, setup: Setup, place: Place) -> None:
        """Notes what the wave left behind, when it does not get less."""
        where = f"{place.node}, {setup.name}"
        earlier = self._seen.left.setdefault(where, [])
        left = Left(0, 0)

        def as_before() -> bool:
            nonlocal left
            self._sample()
            numbers = self._cluster.nodes[place.node].machine.run("sh", "-c", _LEFT).split()
            left = Left(*map(int, numbers))
            return not self._cluster.objects("pods", "-l", LABEL) and (
                not earlier or left.cgroups <= earlier[0].cgroups
            )

        with contextlib.suppress(AssertionError):
            self._cluster.eventually("as many cgroups as before", as_before, QUIET_SECONDS)
        earlier.append(left)

    def _start_again(self, node: Node) -> None:
        """Does what a service manager does with a runtime or a kubelet that has ended by itself."""
        for process in ("containerd", "kubelet"):
            if node.machine.ended(process) is None:
                continue
            self._faults[f"{process} ended by itself"] += 1
            if process == "containerd":
                start_containerd(node.machine)
            else:
                node.restart_kubelet()

    def _sample(self) -> None:
        now = time.monotonic()
        if now < self._sampled + SAMPLE_SECONDS:
            return
        self._sampled = now
        for name, node in self._cluster.nodes.items():
            self._start_again(node)
            names = {
                pid: f"{name} {command}"
                for command, pids in faults.processes(node).items()
                for pid in pids
            }
            used = node.machine.usage(*names)
            self._seen.samples += [Sample(names[pid], pid, now, of) for pid, of in used.items()]
