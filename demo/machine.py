"""The tour on this machine: a real runtime, proxy and agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.model import snapshot as snapshots
from agent.model.audit import Record
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.snapshot import Snapshot
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError
from agent.telemetry.audit import read
from demo.children import topolet
from demo.stage import NAMESPACE, Stage
from demo.tour import Tour, is_shown
from tests.fixtures.pods import (
    create_container,
    create_request,
    remove_pod,
    run_sandbox,
    start_container,
)

_KUBE_CLASSES: Final = {
    "LSE": "guaranteed",
    "LSR": "guaranteed",
    "LS": "burstable",
    "BE": "besteffort",
}


class MachineTour(Tour):
    """LSE and LSR pods claim the highest CPUs."""

    def __init__(self, stage: Stage, topology: Topology) -> None:
        super().__init__()
        self._stage = stage
        self._online = topology.online
        own = sorted(topology.online, reverse=True)
        cpus = {"LSE": str(own[0]), "LSR": str(own[1 % len(own)])}
        self._pods = {
            qos: stage.pod(qos.lower(), kube_class, cpus.get(qos, ""))
            for qos, kube_class in _KUBE_CLASSES.items()
        }
        self._sandboxes: dict[str, str] = {}
        self._hierarchy = Hierarchy()
        self._view = RuntimeView(stage.direct, CgroupLocator(self._hierarchy))

    def close(self) -> None:
        super().close()
        self._hierarchy.close()

    def create_pod(self, qos: str) -> bool:
        pod = self._pods[qos]
        request = f"claims CPU {pod.cpuset}" if pod.cpuset else "shares CPUs"
        self.add(f"{qos} pod {NAMESPACE}/{pod.name} is created; it {request}")
        try:
            self._sandboxes[qos] = sandbox = run_sandbox(self._stage.cri, pod)
            container = create_container(self._stage.cri, create_request(pod, sandbox))
            start_container(self._stage.cri, container)
        except RpcError as error:
            self.add(f"{qos} pod {NAMESPACE}/{pod.name}: {error}")
            self.delete_pod(qos)
            return False
        return True

    def delete_pod(self, qos: str) -> None:
        sandbox = self._sandboxes.pop(qos, "")
        if sandbox:
            self.add(f"{qos} pod {NAMESPACE}/{self._pods[qos].name} is deleted")
            remove_pod(self._stage.cri, sandbox)

    def kill_agent(self) -> None:
        self._stage.agent.kill()

    def drift(self) -> None:
        for title, group in self._groups():
            if title in (f"{NAMESPACE}/ls", f"{NAMESPACE}/be"):
                current = self._hierarchy.effective_cpus(group)
                changed = self._online if current != self._online else CpuSet([min(self._online)])
                self.add(
                    f"another program writes {changed} to the cpuset of {title} (it has {current})"
                )
                try:
                    self._hierarchy.write(group, changed)
                except CgroupError as error:
                    self.add(str(error))
                return
        self.add("no LS or BE pod runs whose cpuset another program could change")

    def top_command(self) -> Sequence[str]:
        state, runtime = self._stage.state, self._stage.runtime_socket
        return topolet("top", f"--state-dir={state}", f"--runtime-endpoint=unix://{runtime}")

    def restart_ended(self) -> Iterable[str]:
        return self._stage.restart_ended()

    def records(self) -> Iterable[Record]:
        with contextlib.suppress(FileNotFoundError):
            return read(str(self._stage.state), self.began, is_shown).records
        return ()

    def decisions(self) -> Snapshot | None:
        try:
            return snapshots.decode(self._stage.snapshot.read_bytes())
        except (OSError, snapshots.SnapshotError):
            return None

    def notes(self, *, small: bool) -> tuple[Sequence[str], Sequence[str]]:
        stage = self._stage
        page = f"in a browser: http://{stage.http}/page"
        if small:
            return [page], []
        cpusets = " · ".join(f"{pod} {cpuset}" for pod, cpuset in self._cpusets())
        return [
            f"Topolet on {stage.runtime_version} · pods created through {stage.listen}",
            f"{page} · logs: {stage.folder}/*.log",
        ], [f"In the kernel's cpuset files: {cpusets or 'no containers'}"]

    def _cpusets(self) -> Iterator[tuple[str, CpuSet]]:
        """The CPUs of each pod's containers in cgroupfs."""
        for pod, group in self._groups():
            with contextlib.suppress(CgroupError):
                yield pod, self._hierarchy.effective_cpus(group)

    def _groups(self) -> Iterator[tuple[str, str]]:
        with contextlib.suppress(RpcError):
            for pod in self._view.observe().pods:
                for each in pod.containers:
                    if each.group is not None:
                        yield pod.title, each.group
