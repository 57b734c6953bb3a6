"""What doctor says about a node that koordlet ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal, OriginalValue
from agent.cri.client import VerboseStatus
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.pod.pods import Container, ContainerState
from agent.model.settings.agent import KubeletStateSettings
from agent.node import koordlet_findings
from agent.node.node_findings import NodeCode
from agent.node.runtime_view import RuntimeState
from tests.builders import pod

BATCH, SERVICE = "/kubepods/besteffort/podbatch", "/kubepods/burstable/podservice"
FILES = {
    "": {"cgroup.controllers": "cpuset cpu memory", "cpuset.cpus.effective": "0-7"},
    "/kubepods": {"cpuset.cpus": ""},
    "/kubepods/burstable": {"memory.oom.group": "1"},
    "/kubepods/besteffort": {"cpuset.cpus": "0-1", "cpu.max": "2000 100000", "cpu.idle": "0"},
    BATCH: {"cpuset.cpus": "0-1", "cpu.weight": "33"},
    f"{BATCH}/main": {"cpuset.cpus": "", "cpu.weight": "33"},
    SERVICE: {"cpu.max": "300000 100000", "memory.min": "4096"},
    f"{SERVICE}/main": {"cpu.max": "300000 100000", "cpu.max.burst": "100000"},
}


class LeftNode:
    """A machine with cgroup v2 in regular files."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.state = folder / "state"
        self.state.mkdir()
        for group, files in FILES.items():
            for file, text in files.items():
                path = folder / f"cgroup{group}" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{text}\n")
        (folder / "proc").mkdir()

    def findings(self) -> dict[NodeCode, str]:
        settings = KubeletStateSettings(
            root=str(self.root), cgroup_root=f"{self.root}/cgroup", state_dir=str(self.state)
        )
        pods = tuple(
            pod(
                name,
                containers=(Container(name, "main", ContainerState.RUNNING, f"{group}/main"),),
            )
            for name, group in (("batch", BATCH), ("service", SERVICE))
        )
        status = VerboseStatus(resources=LinuxResources(quota=CpuQuota(100_000)))
        return koordlet_findings.find(
            settings,
            Hierarchy(settings.cgroup_root),
            RuntimeState(pods, {"service": status}),
            KubeletConfiguration("here"),
        )


@pytest.fixture
def left(tmp_path: Path) -> LeftNode:
    return LeftNode(tmp_path)


def test_each_kind_of_value_is_a_finding_with_group_and_value(left: LeftNode) -> None:
    assert left.findings() == {
        NodeCode.LEFT_DANGER: "/kubepods/burstable memory.oom.group is 1, not 0",
        NodeCode.LEFT_QUOTAS: "/kubepods/besteffort cpu.max is 2000 100000, not max 100000; "
        f"{SERVICE}/main cpu.max.burst is 100000, not 0; "
        f"{SERVICE}/main cpu.max is 300000 100000, not 100000 100000; "
        f"{SERVICE} cpu.max is 300000 100000, not 100000 100000",
        NodeCode.LEFT_MEMORY: f"{SERVICE} memory.min is 4096, not 0",
        NodeCode.LEFT_BATCH: f"{BATCH}/main cpu.weight is 33, not 1; "
        f"{BATCH} cpu.weight is 33, not 1",
        NodeCode.LEFT_CPUS: "/kubepods/besteffort cpuset.cpus is 0-1, not empty; "
        f"{BATCH} cpuset.cpus is 0-1, not empty",
    }


def test_the_overhead_of_a_pod_is_no_limit_of_koordlet(left: LeftNode) -> None:
    (left.root / f"cgroup{BATCH}/main/cpu.weight").write_text("1\n")
    assert NodeCode.LEFT_BATCH not in left.findings()


def test_values_of_the_agent_are_not_those_of_koordlet(left: LeftNode) -> None:
    values = [
        OriginalValue("/kubepods/burstable", "memory.oom.group", "0", ("1",)),
        OriginalValue(f"{SERVICE}/main", "cpu.max", "100000 100000", ("300000 100000",)),
    ]
    Journal(left.state / "journal").update_values(values)
    found = left.findings()
    assert NodeCode.LEFT_DANGER not in found
    assert f"{SERVICE}/main cpu.max is" not in found[NodeCode.LEFT_QUOTAS]


def test_groups_of_resctrl_and_files(left: LeftNode) -> None:
    for name in ("", "info", "BE", "LS", "LSR", "koordlet-uid", "other"):
        folder = left.root / "sys/fs/resctrl" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schemata").write_text("L3:0=1\n")
    (left.root / "run/koordlet").mkdir(parents=True)
    names = ("BE", "LS", "LSR", "koordlet-uid")
    text = "; ".join(f"the group /{name} of resctrl" for name in names)
    assert left.findings()[NodeCode.LEFT_RESCTRL] == text
    assert left.findings()[NodeCode.LEFT_FILES] == "/run/koordlet"
    journal = Journal(left.state / "journal")
    journal.update_values([OriginalValue("/BE", "resctrl.schemata", "")])
    assert "/BE" not in left.findings()[NodeCode.LEFT_RESCTRL]


def test_throttles_of_disks_are_listed(left: LeftNode) -> None:
    folder = left.root / "cgroup/blkio"
    (folder / "kubepods/besteffort").mkdir(parents=True)
    (folder / "blkio.throttle.io_service_bytes").write_text("")
    file = folder / "kubepods/besteffort/blkio.throttle.read_bps_device"
    file.write_text("8:0 1048576\n8:16 4096\n")
    text = f"/kubepods/besteffort {file.name} is 8:0 1048576 8:16 4096"
    assert left.findings()[NodeCode.LEFT_DISKS] == text


def test_values_of_a_koordlet_that_runs_are_no_findings(left: LeftNode) -> None:
    process = left.root / "proc/13"
    process.mkdir()
    (process / "cmdline").write_bytes(b"/koordlet\0")
    (process / "comm").write_text("koordlet\n")
    (process / "status").write_text("PPid:\t1\nUid:\t0 0 0 0\nNSpid:\t13\n")
    assert not left.findings()
