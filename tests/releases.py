"""The persistent data of a release: the files of its state folder, its journals and its objects.
`tests/data/releases` has them for each release; tests check that later versions read them.

    python -m tests.releases     adds those of this version; existing files are never changed
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent.cgroup.journal import Journal, Original, OriginalValue
from agent.install import journal as install_journal
from agent.install.endpoint import FileChange
from agent.install.journal import InstallJournal
from agent.install.tree import ABSENT, FileState, HostTree
from agent.model import snapshot
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.nrt import report, resource_topology
from agent.model.nrt.node_annotations import NodeConfiguration, PodCpuAlloc
from agent.model.nrt.report import DeviceReport, ReportValues, Reserved
from agent.model.nrt.resource_topology import Version
from agent.model.pod.annotations import RESOURCE_STATUS, status_text
from agent.model.pod.qos import QoS
from agent.model.snapshot import CgroupLimits, Owner, PodWanted, Pool, Snapshot, Wanted
from tests.builders import machine

FOLDER = Path(__file__).parent / "data" / "releases"

SNAPSHOT = Snapshot(
    generation=41,
    listed_at=7_000_000_000,
    boot_id="0f5c6a3e",
    kubelet_static=False,
    ls_pools=(Pool(0, 0, "2-3"), Pool(1, 1, "4-7")),
    be_pools=(Pool(0, 0, "2-3"), Pool(1, 1, "4-7")),
    owners=(Owner("uid-lse", "ns/lse", QoS.LSE, "0-1", "8"),),
    pods={
        "uid-lse": PodWanted("ns/lse", QoS.LSE, Wanted("0-1", exclusive=True)),
        "uid-ls": PodWanted("ns/ls", QoS.LS, Wanted("2-7"), group=CgroupLimits(shares=204)),
    },
    containers={
        "c0ffee": Wanted("0-1", exclusive=True, limits=CgroupLimits(quota_microseconds=-1)),
        "decade": Wanted("2-7", limits=CgroupLimits(mems=CpuSet([0, 1]))),
    },
    system="7",
    excluded=("kube-system",),
)
ORIGINALS = (
    Original("/kubepods/burstable/podx/decade", "0-7"),
    Original("/kubepods/podx", "", "until its sandbox has CPUs of its own"),
)
VALUES = (OriginalValue("/kubepods/podx/c0ffee", "cpu.max", "200000 100000"),)
INSTALLED = InstallJournal(
    "kubelet.service",
    "unix:///run/containerd/containerd.sock",
    (
        FileChange("/opt/topolet/current", ABSENT, FileState(link="0.1.0-0123abcd")),
        FileChange("/var/lib/kubelet/config.yaml", FileState("a: 1\n"), FileState("b: 1\n")),
    ),
)
DEVICES = (
    Device("gpu", "GPU-0", 0, {"koordinator.sh/gpu-core": 100}),
    Device("rdma", "0000:5e:00.0", 0, {"koordinator.sh/rdma": 100}, healthy=False),
)
REPORT = report.build(
    ReportValues(
        "node-a",
        machine(2, 4),
        SNAPSHOT.ls_pools,
        SNAPSHOT.be_pools,
        (PodCpuAlloc("ns", "lse", "uid-lse", "0-1"),),
        (),
        Reserved(),
        NodeConfiguration(),
        DeviceReport(DEVICES),
    )
)
RESOURCES = status_text(CpuSet([0, 1]), {0: {"cpu": 2000}})


def written() -> dict[str, bytes]:
    """The contents that this version writes, by file name."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder, "journal"))
        journal.update(ORIGINALS)
        journal.update_values(VALUES)
        tree = HostTree(folder)
        install_journal.write(tree, INSTALLED)
        files = {
            "journal": Path(folder, "journal").read_bytes(),
            "install.json": Path(folder, install_journal.PATH.lstrip("/")).read_bytes(),
        }
    objects: dict[str, Any] = {
        "noderesourcetopology.json": resource_topology.encode(REPORT.topology, Version.V1ALPHA2),
        "device.json": device_object.encode("node-a", DEVICES),
        "pod-annotations.json": {RESOURCE_STATUS: RESOURCES},
    }
    files |= {name: json.dumps(each, indent=1).encode() + b"\n" for name, each in objects.items()}
    return {"snapshot.json": snapshot.encode(SNAPSHOT), **files}


def main() -> int:
    folder = FOLDER / importlib.metadata.version("topolet")
    if folder.exists():
        print(f"{folder} exists: a release does not change")
        return 1
    folder.mkdir(parents=True)
    for name, content in written().items():
        (folder / name).write_bytes(content)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
