"""The tour on a whole cluster (`make run-cluster`): API server, schedulers, kubelet and containerd
in namespaces of this machine, with Topolet installed as documented. The keys are the same as for
`make run`. Ctrl-C ends the cluster."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

from agent.discover import cpus
from agent.model import audit
from agent.model import snapshot as snapshots
from agent.model.audit import Record
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.snapshot import Snapshot
from demo.terminal import END_SIGNALS, exit_code_of
from demo.tour import Tour, show
from tests.cluster import host, pods
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.machine import MachineError, ProgramError

_NAMESPACE: Final = "default"
_STATE: Final = "/run/topolet"
_SNAPSHOT: Final = f"{_STATE}/{snapshots.FILE}"
_CPUS: Final = {"LSE": "1", "LSR": "1", "LS": "100m"}
_READ_SECONDS: Final = 1.0
_RUNS_SECONDS: Final = 30.0


class ClusterTour(Tour):
    """LSE and LSR pods request one CPU each, which Topolet's scheduler chooses."""

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        super().__init__()
        self._cluster = cluster
        self._machine = cluster.nodes[HOST].machine
        self._online = topology.online
        self._read_at = 0.0
        self._files: dict[str, str] = {}

    def create_pod(self, qos: str) -> bool:
        name = qos.lower()
        cpu = _CPUS.get(qos, "")
        request = "requests a CPU of its own" if qos in pods.OWNERS else "shares CPUs"
        self.add(f"{qos} pod {_NAMESPACE}/{name} is created; it {request}")
        try:
            self._cluster.create(pods.manifest(name, qos=qos, cpu=cpu))
        except ProgramError as error:
            self.add(str(error.output)[-300:])
            return False
        end = time.monotonic() + _RUNS_SECONDS
        while time.monotonic() < end:
            pod = self._cluster.get("pod", name) or {}
            if pod.get("status", {}).get("phase") == "Running":
                chosen = self._cluster.allocated(name)
                if chosen:
                    self.add(
                        f"topolet-scheduler chose {HOST} and CPUs {chosen} for {_NAMESPACE}/{name}"
                    )
                return True
            if message := self._cluster.unschedulable_message(name):
                self.add(f"{_NAMESPACE}/{name} waits: {message}")
                return True
            time.sleep(0.3)
        self.add(f"{_NAMESPACE}/{name} does not run within {_RUNS_SECONDS:g} s")
        return True

    def delete_pod(self, qos: str) -> None:
        self.add(f"{qos} pod {_NAMESPACE}/{qos.lower()} is deleted")
        self._cluster.delete_pod(qos.lower())

    def kill_agent(self) -> None:
        for path, text in self._machine.read("/proc/[0-9]*/cmdline").items():
            words = text.split("\0")
            if "agent" in words[:4] and any(each.startswith("--kubelet-configz") for each in words):
                self._machine.run("kill", "-9", path.split("/")[2])
                self.add("the agent gets SIGKILL; the kubelet starts its container again")
                return
        self.add("no agent runs")

    def drift(self) -> None:
        found = self._cpuset_of("ls") or self._cpuset_of("be")
        if found is None:
            self.add("no LS or BE pod runs whose cpuset another program could change")
            return
        path, current = found
        changed = self._online if current != self._online else CpuSet([min(self._online)])
        self.add(f"another program writes {changed} to a cpuset (it has {current})")
        own = path.removesuffix(".effective")
        self._machine.run("sh", "-c", 'echo "$1" >"$2"', "sh", str(changed), own)

    def _cpuset_of(self, name: str) -> tuple[str, CpuSet] | None:
        with contextlib.suppress(ProgramError, KeyError):
            pod = self._cluster.get("pod", name) or {}
            for each in pod.get("status", {}).get("containerStatuses", ()):
                container = str(each.get("containerID", "")).rpartition("//")[2]
                patterns = self._cluster.nodes[HOST].cpuset_files(container)
                for path, text in self._machine.read(*patterns).items():
                    return path, CpuSet.parse(text.strip())
        return None

    def records(self) -> Iterable[Record]:
        """The records of the tour's pods, without those of Topolet's own pods."""
        self._read()
        found = [
            record
            for path, text in self._files.items()
            if path.endswith(".jsonl")
            for line in text.encode().splitlines()
            if (record := audit.decode(line))
            and record.time >= self.began
            and record.namespace == _NAMESPACE
        ]
        return sorted(found, key=lambda each: each.time)

    def decisions(self) -> Snapshot | None:
        self._read()
        text = self._files.get(_SNAPSHOT, "")
        try:
            return snapshots.decode(text.encode())
        except snapshots.SnapshotError:
            return None

    def _read(self) -> None:
        """Reads the files of the machine, but not for each frame: the machine answers one request
        after the other."""
        if time.monotonic() - self._read_at < _READ_SECONDS:
            return
        self._files = self._machine.read(f"{_STATE}/audit/*.jsonl", _SNAPSHOT)
        self._read_at = time.monotonic()

    def notes(self, *, small: bool) -> tuple[Sequence[str], Sequence[str]]:
        return [
            "Topolet in a cluster: kube-scheduler, kubelet and containerd behind the proxy; "
            f"node {HOST} and its pods, as the agent decided"
        ], []


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 if the cluster did not start."""
    parser = argparse.ArgumentParser(prog="make run-cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, help="end this number of seconds after the start")
    arguments = parser.parse_args(words)
    for each in END_SIGNALS:
        signal.signal(each, signal.default_int_handler)
    try:
        print("starting a cluster; it takes about half a minute ...", flush=True)
        with host.running() as cluster:
            print("installing Topolet ...", flush=True)
            cluster.install()
            topology = cpus.read("/")
            try:
                show(ClusterTour(cluster, topology), topology, arguments.seconds)
            finally:
                for each in END_SIGNALS:
                    signal.signal(each, signal.SIG_IGN)
        print("the cluster has ended", flush=True)
    except KeyboardInterrupt:
        return 0
    except pytest.skip.Exception as error:
        print(f"make run-cluster: {error}", file=sys.stderr)
        return 1
    except (MachineError, ProgramError) as error:
        print(f"make run-cluster: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
