"""Pods of a static kubelet, and their CPUs in the kernel's files."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

import msgspec

from agent.kubelet import cpu_manager_state
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.verdict import Code
from agent.rpc.grpc import RpcError
from tests.integration.harness import TestNode, kernel_cpus
from tests.integration.kubelet.standalone import START_SECONDS, Kubelet, container
from tests.waiting import eventually

OVERLAPS = "topolet_cpu_overlaps_total"


class Spec(msgspec.Struct, frozen=True):
    """A pod. With `cpus` 0 it is BestEffort in class BE, and otherwise Burstable with a fraction of
    a CPU. `claim`: the CPUs in its annotation, as a scheduler writes it."""

    name: str
    qos: str = ""
    cpus: int = 0
    claim: str = ""


class Workload:
    """`kubelet_dir`: the agent's flag for the kubelet's folder."""

    def __init__(self, node: TestNode, kubelet: Kubelet, kubelet_dir: str) -> None:
        self.node = node
        self.kubelet = kubelet
        self.kubelet_dir = kubelet_dir
        self.specs: dict[str, Spec] = {}
        self._overlaps_before = 0.0

    @contextlib.contextmanager
    def pods(self, *specs: Spec, together: bool = False) -> Iterator[None]:
        """Runs the pods during the block, created together or one after the other."""
        self._overlaps_before = self.node.metric(OVERLAPS)
        try:
            for spec in specs:
                self._create(spec)
                if not together:
                    self.wait_for(spec.name)
            for spec in specs:
                self.wait_for(spec.name)
            yield
        finally:
            for name in list(self.specs):
                self.specs = {each: spec for each, spec in self.specs.items() if each != name}
                self.kubelet.end(name)
            eventually("no pod has CPUs", lambda: not self.assigned(), START_SECONDS)

    def add(self, spec: Spec) -> None:
        """Runs one more pod, which is deleted with the others."""
        self._create(spec)
        self.wait_for(spec.name)

    def wait_for(self, name: str, other_than: int = 0) -> None:
        """Waits until the pod's container runs, with another pid than `other_than`."""

        def runs() -> bool:
            pid = self.pids().get(name, 0)
            return pid not in (0, other_than)

        eventually(f"{name} runs", runs, START_SECONDS)

    def pids(self) -> dict[str, int]:
        """The pids of the running containers, by pod name. Omits a container that is removed during
        the read."""
        names = {each.id: each.name for each in self.kubelet.cri.sandboxes()}
        short = {f"{name}-node-a": name for name in self.specs}
        found = {}
        for each in self.kubelet.cri.containers():
            name = short.get(names.get(each.sandbox_id, ""))
            if name is not None and (pid := self._pid(each.id)):
                found[name] = pid
        return found

    def _pid(self, container_id: str) -> int:
        try:
            return self.kubelet.cri.container_status(container_id).pid
        except RpcError as error:
            if error.code != Code.NOT_FOUND:
                raise
            return 0

    def assigned(self) -> dict[str, CpuSet]:
        """The CPUs in the kubelet's checkpoint, by pod name; "?" is a pod that does not exist any
        more."""
        state = cpu_manager_state.read(str(self.kubelet.root / cpu_manager_state.FILE_NAME))
        uids = {each.uid: each.name for each in self.kubelet.cri.sandboxes() if each.ready}
        short = {f"{name}-node-a": name for name in self.specs}
        return {
            short.get(uids.get(uid, ""), "?"): cpus for uid, cpus in state.by_uid.items() if cpus
        }

    def current_cpus(self) -> dict[str, CpuSet]:
        """The CPUs in the kernel's files, by pod name. Omits a container whose CPUs change during
        the read, so that all values were in force at one time."""
        pids = self.pids()
        found = _read(pids)
        again = _read(pids)
        return {name: cpus for name, cpus in found.items() if again.get(name) == cpus}

    def violations(self, now: dict[str, CpuSet]) -> list[str]:
        """The violations in `current_cpus()`, of pods that stay: an owner has the CPUs that the
        checkpoint names, as many as it requests, and shares them with no other pod, except an LSR
        pod with BE pods."""
        assigned, found, specs = self.assigned(), [], self.specs
        for name, spec in specs.items():
            cpus = now.get(name)
            if cpus is None or not spec.cpus:
                continue
            if cpus != assigned.get(name) or len(cpus) != spec.cpus or cpus & self.kubelet.reserved:
                found.append(f"{name} is on {cpus}, the kubelet assigned {assigned.get(name)}")
            found += [
                f"{other} is on {shared} of {name}"
                for other, other_cpus in now.items()
                if other != name
                and (shared := other_cpus & cpus)
                and other in specs
                and not (spec.qos == "LSR" and specs[other].qos == "BE")
            ]
        return found

    def wait_until_correct(self) -> None:
        """Waits until no pod has wrong CPUs; on failure it names them and shows the agent's log."""
        try:
            eventually(
                "all CPUs are correct",
                lambda: not self.violations(self.current_cpus()),
                START_SECONDS,
            )
        except AssertionError as error:
            error.add_note("; ".join(self.violations(self.current_cpus())))
            error.add_note(self.node.log("agent")[-8000:])
            raise

    def check(self) -> None:
        """Every pod runs on its CPUs, the pool is the rest, and the agent found no other pod on an
        owner's CPUs since the first of them, or since its restart. (Before that, pods ended: the
        kubelet may release the CPUs of a container that still runs.)"""
        now = self.current_cpus()
        assert now.keys() == self.specs.keys()
        violations = self.violations(now)
        assert not violations, "; ".join(violations)
        owned = union(now[name] for name, spec in self.specs.items() if spec.cpus)
        with_be = union(now[name] for name, spec in self.specs.items() if spec.qos == "LSR")
        rest = self.kubelet.topology.online - owned
        for name, spec in self.specs.items():
            if spec.qos == "BE":  # on the reserved CPUs, unless these are busy
                assert now[name] in (self.kubelet.reserved, rest | with_be), name
            elif not spec.cpus:
                assert now[name] == rest, name
        if self.node.metric(OVERLAPS) not in (0, self._overlaps_before):
            raise AssertionError(
                f"the agent has detected overlaps\n{self.node.log('agent')[-20_000:]}"
            )

    @contextlib.contextmanager
    def record_violations(self) -> Iterator[list[str]]:
        """Records the violations at all times during the block."""
        recorded: list[str] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                recorded.extend(
                    each for each in self.violations(self.current_cpus()) if each not in recorded
                )

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield recorded
        finally:
            done.set()
            thread.join()

    def _create(self, spec: Spec) -> None:
        metadata: dict[str, dict[str, str]] = {}
        if spec.qos:
            metadata["labels"] = {QOS_LABEL: spec.qos}
        if spec.claim:
            metadata["annotations"] = {RESOURCE_STATUS: json.dumps({"cpuset": spec.claim})}
        main = container("main", str(spec.cpus) if spec.cpus else "")
        if not spec.cpus and spec.qos != "BE":
            fraction = {"cpu": "100m"}
            # The claim of an LSE pod whose limit differs from its request is refused.
            main["resources"] = {"requests": fraction, "limits": fraction if spec.claim else {}}
        self.specs = {**self.specs, spec.name: spec}
        self.kubelet.run(spec.name, [main], metadata)


def _read(pids: dict[str, int]) -> dict[str, CpuSet]:
    found = {}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            found[name] = CpuSet.parse(kernel_cpus(pid))
    return found
