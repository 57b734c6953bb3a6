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
from tests.integration.harness import TestNode, kernel_cpus
from tests.integration.kubelet.standalone import START_SECONDS, Kubelet, container
from tests.waiting import eventually

OVERLAPS = "topolet_cpu_overlaps_total"


class Spec(msgspec.Struct, frozen=True):
    """`cpus` 0: Burstable with a fraction of a CPU, or BestEffort under BE; `claim`: the CPUs that
    a scheduler wrote into its annotation."""

    name: str
    qos: str = ""
    cpus: int = 0
    claim: str = ""


class Workload:
    """`kubelet_dir`: the agent's flag for the kubelet's folder of state."""

    def __init__(self, node: TestNode, kubelet: Kubelet, kubelet_dir: str) -> None:
        self.node = node
        self.kubelet = kubelet
        self.kubelet_dir = kubelet_dir
        self.specs: dict[str, Spec] = {}
        self._overlaps_before = 0.0

    @contextlib.contextmanager
    def pods(self, *specs: Spec, together: bool = False) -> Iterator[None]:
        """Runs them, created together or one after the other in this order."""
        self._overlaps_before = self.node.metric(OVERLAPS)
        try:
            for spec in specs:
                self._come(spec)
                if not together:
                    self.wait_for(spec.name)
            for spec in specs:
                self.wait_for(spec.name)
            yield
        finally:
            for name in list(self.specs):
                self.specs = {each: spec for each, spec in self.specs.items() if each != name}
                self.kubelet.end(name)
            eventually("no pod has CPUs", lambda: not self.given(), START_SECONDS)

    def come(self, spec: Spec) -> None:
        """Runs one more pod, which ends with the others."""
        self._come(spec)
        self.wait_for(spec.name)

    def wait_for(self, name: str, other_than: int = 0) -> None:
        """Waits until its container runs, as another process than this."""

        def runs() -> bool:
            pid = self.pids().get(name, 0)
            return pid not in (0, other_than)

        eventually(f"{name} runs", runs, START_SECONDS)

    def pids(self) -> dict[str, int]:
        """By name, the process of each pod's container that runs."""
        names = {each.id: each.name for each in self.kubelet.cri.sandboxes()}
        short = {f"{name}-node-a": name for name in self.specs}
        found = {}
        for each in self.kubelet.cri.containers():
            name = short.get(names.get(each.sandbox_id, ""))
            if name is not None and (pid := self.kubelet.cri.container_status(each.id).pid):
                found[name] = pid
        return found

    def given(self) -> dict[str, CpuSet]:
        """By name, the CPUs in the kubelet's checkpoint; "?" for a pod that does not exist any
        more."""
        state = cpu_manager_state.read(str(self.kubelet.root / cpu_manager_state.FILE_NAME))
        uids = {each.uid: each.name for each in self.kubelet.cri.sandboxes() if each.ready}
        short = {f"{name}-node-a": name for name in self.specs}
        return {
            short.get(uids.get(uid, ""), "?"): cpus for uid, cpus in state.by_uid.items() if cpus
        }

    def cpus_now(self) -> dict[str, CpuSet]:
        """By pod, the CPUs in the kernel's files. Omits a container whose CPUs change during the
        read, so that all values were in force at one moment."""
        pids = self.pids()
        found = _read(pids)
        again = _read(pids)
        return {name: cpus for name, cpus in found.items() if again.get(name) == cpus}

    def wrong(self, now: dict[str, CpuSet]) -> list[str]:
        """The violations in `cpus_now()`, of pods that stay: an owner has the CPUs that the
        checkpoint names, as many as it requests, and shares them with no other pod, except an LSR
        pod with BE pods."""
        given, found, specs = self.given(), [], self.specs
        for name, spec in specs.items():
            cpus = now.get(name)
            if cpus is None or not spec.cpus:
                continue
            if cpus != given.get(name) or len(cpus) != spec.cpus or cpus & self.kubelet.reserved:
                found.append(f"{name} is on {cpus}, the kubelet gave {given.get(name)}")
            found += [
                f"{other} is on {taken} of {name}"
                for other, theirs in now.items()
                if other != name
                and (taken := theirs & cpus)
                and other in specs
                and not (spec.qos == "LSR" and specs[other].qos == "BE")
            ]
        return found

    def wait_right(self) -> None:
        """Waits until no pod has wrong CPUs; on failure it names them and shows the agent's log."""
        try:
            eventually(
                "all CPUs are correct", lambda: not self.wrong(self.cpus_now()), START_SECONDS
            )
        except AssertionError as error:
            error.add_note("; ".join(self.wrong(self.cpus_now())))
            error.add_note(self.node.log("agent")[-8000:])
            raise

    def check(self) -> None:
        """Every pod runs on its CPUs, the pool is the rest, and the agent found no other pod on an
        owner's CPUs since the first of them, or since its restart. (Before that, pods ended: the
        kubelet may release the CPUs of a container that still runs.)"""
        now = self.cpus_now()
        assert now.keys() == self.specs.keys()
        wrong = self.wrong(now)
        assert not wrong, "; ".join(wrong)
        owned = union(now[name] for name, spec in self.specs.items() if spec.cpus)
        with_be = union(now[name] for name, spec in self.specs.items() if spec.qos == "LSR")
        rest = self.kubelet.topology.online - owned
        for name, spec in self.specs.items():
            if not spec.cpus:
                assert now[name] == (rest | with_be if spec.qos == "BE" else rest), name
        if self.node.metric(OVERLAPS) not in (0, self._overlaps_before):
            raise AssertionError(f"the agent saw overlaps\n{self.node.log('agent')[-20_000:]}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        """The violations at any moment while the block runs."""
        seen: list[str] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.extend(each for each in self.wrong(self.cpus_now()) if each not in seen)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            done.set()
            thread.join()

    def _come(self, spec: Spec) -> None:
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
