"""Collects logs, objects and cpusets of a failed scenario in one folder."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.machine import MachineError, ProgramError

_ROOT = Path(__file__).resolve().parents[2] / "var" / "cluster"

_KINDS = (
    "pods,events,nodes,daemonsets,deployments,replicasets,services,endpointslices,configmaps,leases",
    "noderesourcetopologies,devices.scheduling.koordinator.sh",
    "validatingadmissionpolicies,validatingadmissionpolicybindings",
    "mutatingadmissionpolicies,mutatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
)
"""Kinds of objects that are collected. A cluster knows all kinds of one entry, or none of them."""


def collected(cluster: Cluster, name: str) -> Path:
    """Collects the state of the cluster in a new folder for the test with that name."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-")
    where = _ROOT / f"{time.strftime('%Y%m%dT%H%M%S')}-{plain}"
    with contextlib.suppress(OSError):
        _collect(cluster, where)
    return where


@contextlib.contextmanager
def written(cluster: Cluster, name: str) -> Iterator[None]:
    """Collects logs and files when the block fails, for fixtures, which do not have a report. A
    note of the error names the folder."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"logs and objects: {collected(cluster, name)}")
        raise


def _collect(cluster: Cluster, where: Path) -> None:
    """Logs of processes and containers, objects, and the cpusets of all cgroups."""
    where.mkdir(parents=True, exist_ok=True)
    for name, node in cluster.nodes.items():
        shutil.copytree(node.machine.logs, where / name, dirs_exist_ok=True)
        with contextlib.suppress(MachineError):
            files = node.machine.read(
                "/sys/fs/cgroup/cpuset/**/cpuset.cpus",
                "/sys/fs/cgroup/kubepods/**/cpuset.cpus*",
                "/run/topolet/*.json",
                "/var/lib/kubelet/*_state",
                "/var/log/pods/*/*/*.log",
                "/run/logs/*",
            )
            _write_files(where / name, files)
        with contextlib.suppress(MachineError, ProgramError):
            (where / name / "containers.json").write_text(node.containers())
    for output in cluster.control.world.folder.glob("guest/output.txt"):
        shutil.copy(output, where / "guest-output.txt")
    for number, kinds in enumerate(_KINDS):
        try:
            text = cluster.kubectl("get", kinds, "-A", "-o", "json", "--request-timeout=10s")
            text = yaml.safe_dump(json.loads(text)["items"])
        except (MachineError, ProgramError) as error:
            text = str(error)
        kind = kinds.partition(",")[0].partition(".")[0]
        (where / f"objects-{number}-{kind}.yaml").write_text(text)


def _write_files(folder: Path, files: dict[str, str]) -> None:
    """All cpusets in one list, and each other file by itself."""
    lines = []
    for path, text in sorted(files.items()):
        if "cpuset.cpus" in path:
            lines.append(f"{path}: {text.strip()}\n")
        else:
            (folder / path.strip("/").replace("/", "_")[-200:]).write_text(text)
    (folder / "cpusets.txt").write_text("".join(lines))
