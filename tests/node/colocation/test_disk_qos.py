"""Limits, weights and costs of a disk of its own, on the real kernel with cgroup v1 or v2."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup.hierarchy import Controllers, mounted
from agent.discover.disks import Disks
from agent.model.node_slo import (
    BlkioQos,
    CgroupRoot,
    IoBlock,
    IoConfig,
    NodeSlo,
    QosClass,
    ResourceQos,
)
from agent.model.pod.annotations import BLKIO_QOS
from agent.node.colocation.disk_qos import RESOLVE_SECONDS, DiskQos
from agent.node.sources import SourceName
from agent.usage.strategies import Strategies, with_pods
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ROOT, ColocatedNode
from tests.vm import guest
from tests.waiting import eventually

MIB: Final = 1 << 20
_ADD, _REMOVE = 0x4C80, 0x4C81
"""LOOP_CTL_ADD and LOOP_CTL_REMOVE (linux/loop.h)."""
_FIRST: Final = 1024 + 2 * (os.getpid() % 100_000)
"""Other runs of the tests have other numbers."""


class Loop:
    """A disk that is a file."""

    def __init__(self, folder: Path, number: int) -> None:
        self.minor = number
        self.name = f"loop{number}"
        self.path = f"/dev/{self.name}"
        self._control(_ADD)
        file = folder / self.name
        file.touch()
        os.truncate(file, 64 * MIB)
        subprocess.run(["losetup", self.path, file], check=True)
        self.number = Path(f"/sys/class/block/{self.name}/dev").read_text().strip()

    def schedule(self, scheduler: str) -> None:
        Path(f"/sys/class/block/{self.name}/queue/scheduler").write_text(scheduler)

    def remove(self) -> None:
        if Path(f"/sys/class/block/{self.name}").exists():
            self.schedule("none")
            subprocess.run(["losetup", "-d", self.path], check=True)
            eventually("the disk is not in use", self._free)

    def _free(self) -> bool:
        try:
            self._control(_REMOVE)
        except OSError:
            return False
        return True

    def _control(self, request: int) -> None:
        control = os.open("/dev/loop-control", os.O_RDWR)
        try:
            fcntl.ioctl(control, request, self.minor)
        finally:
            os.close(control)


class DiskNode(ColocatedNode):
    """A node with two disks."""

    def __init__(self, folder: Path, groups: RealGroups, disks: list[Loop]) -> None:
        super().__init__(folder, groups, Controllers(ROOT))
        self.real = groups
        self.disk, self.other = disks
        self.v1 = self.controllers.version("blkio") == 1

    def want(
        self, be: IoConfig | None = None, machine: IoConfig | None = None, name: str = ""
    ) -> None:
        of_be, of_machine = (
            BlkioQos(
                enable=True, blocks=(IoBlock(name or self.disk.path, type="device", io_cfg=config),)
            )
            if config is not None
            else BlkioQos()
            for config in (be, machine)
        )
        qos = ResourceQos(
            be_class=QosClass(blkio_qos=of_be), cgroup_root=CgroupRoot(blkio_qos=of_machine)
        )
        self.strategies = with_pods(
            Strategies(NodeSlo(resource_qos_strategy=qos)), self.api_pods.values()
        )

    def step(self) -> None:
        """After the time in which everything is looked up again."""
        self.now += RESOLVE_SECONDS
        self.colocation.step()

    def files(self, group: str) -> dict[str, str]:
        """All that is set of disks, without the code under test."""
        names = (
            [f"blkio.throttle.{way}_{what}_device" for way in ("read", "write") for what in _WHAT]
            if self.v1
            else ["io.max"]
        )
        paths = [self.real.path(group, name) for name in names]
        return {path.name: path.read_text() for path in paths}

    def set_limit(self, group: str, disk: Loop, written_bytes: int) -> None:
        """As a runtime does."""
        if self.v1:
            path = self.real.path(group, "blkio.throttle.write_bps_device")
            path.write_text(f"{disk.number} {written_bytes}")
        else:
            path = self.real.path(group, "io.max")
            path.write_text(f"{disk.number} wbps={written_bytes}")

    def read_seconds(self, *groups: str) -> float:
        """The time in which each group reads two megabytes, past the page cache."""
        read = f"dd if={self.disk.path} of=/dev/null bs=256k count=8 iflag=direct 2>&1"
        readers = [self.real.process(group, "sh", "-c", read) for group in groups]
        outputs = [reader.stdout.read() for reader in readers if reader.stdout is not None]
        assert all("copied" in output for output in outputs), outputs
        return max(float(output.split(", ")[-2].removesuffix(" s")) for output in outputs)

    def read_limit(self, group: str) -> str:
        name = f"blkio.throttle.read_bps_device {self.disk.number}"
        return self.value(group, name if self.v1 else f"io.max {self.disk.number} rbps")

    @property
    def problem(self) -> str:
        return self.colocation.state.wanted[DiskQos.name].problem


_WHAT: Final = ("bps", "iops")


def modules() -> None:
    """Loads what a guest's kernel has as modules."""
    if (image := guest.kernel()) is not None and os.environ.get("TOPOLET_GUEST"):
        for module in ("loop", "bfq"):
            subprocess.run(["modprobe", "-d", str(image.parents[1]), module], check=True)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Loop]]:
    if os.geteuid():
        pytest.skip("loop devices can't be made here")
    modules()
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("this kernel has no loop devices")
    loops = [Loop(tmp_path, number) for number in (_FIRST, _FIRST + 1)]
    yield loops
    for loop in loops:
        loop.remove()


@pytest.fixture
def disk_groups(disks: list[Loop]) -> Iterator[RealGroups]:
    mounts = {
        each: mount
        for each in ("cpu", "cpuacct", "blkio", "io")
        if (mount := mounted(ROOT, each)) is not None
    }
    if mounts.keys().isdisjoint({"blkio", "io"}):
        pytest.skip("no cgroups that limit disks can be made here")
    groups = RealGroups(mounts)
    yield groups
    groups.close()


@pytest.fixture
def node(tmp_path: Path, disk_groups: RealGroups, disks: list[Loop]) -> DiskNode:
    return DiskNode(tmp_path, disk_groups, disks)


def annotation(disk: Loop, **config: int) -> Mapping[str, str]:
    block = {"name": disk.path, "type": "device", "ioCfg": config}
    return {BLKIO_QOS: json.dumps({"blocks": [block]})}


def test_a_pod_reads_as_slowly_as_its_annotation_says(node: DiskNode) -> None:
    pod = node.run(
        "batch", "burstable", annotations=annotation(node.disk, readBPS=MIB, writeIOPS=0)
    )
    container = f"{pod}/main"
    limited = container if node.v1 else pod
    for disk in (node.disk, node.other):
        node.set_limit(limited, disk, 5 * MIB)
    before = node.files(limited)
    node.want()
    node.step()
    assert node.read_limit(limited) == str(MIB)
    slow = node.read_seconds(container)
    assert slow > 1.5, "it takes two seconds"
    node.pods = {}
    node.step()
    assert node.files(limited) == before
    assert node.read_seconds(container) < slow / 2
    assert not node.journal.values
    assert not node.problem


def test_be_pods_together_have_the_limit_of_their_class(node: DiskNode) -> None:
    pods = [node.run(name, "besteffort") for name in ("one", "two")]
    containers = [f"{pod}/main" for pod in pods]
    service = node.run("api", "burstable")
    node.want(be=IoConfig(read_bps=2 * MIB))
    node.step()
    slow = node.read_seconds(*containers)
    assert slow > 1.5, "two megabytes each take two seconds"
    assert node.read_seconds(f"{service}/main") < slow / 2
    if node.v1:
        assert [node.read_limit(each) for each in containers] == [str(MIB)] * 2
    else:
        assert node.read_limit(f"{pods[0].rpartition('/')[0]}") == str(2 * MIB)
    node.strategies = Strategies()
    node.start().step()  # the agent was killed
    assert node.read_seconds(*containers) < slow / 2
    assert not node.journal.values


def test_a_disk_that_disappears_is_no_failure(node: DiskNode) -> None:
    node.run("batch", "besteffort")
    node.want(be=IoConfig(read_bps=MIB))
    node.step()
    node.disk.remove()
    node.step()
    assert node.problem.startswith("resourceQOSStrategy.beClass.blkioQOS.blocks[0].name: ")
    assert node.disk.name in node.problem
    assert not node.colocation.state.failed
    assert not node.journal.values
    assert node.problems[SourceName.COLOCATION.value] == 1


def test_weights_of_a_disk_with_bfq_come_and_go(node: DiskNode) -> None:
    pod = node.run("batch", "burstable", annotations=annotation(node.disk, ioWeightPercent=30))
    node.want()
    node.step()
    assert "ioWeightPercent has no effect" in node.problem
    node.disk.schedule("bfq")
    node.step()
    assert not node.problem
    file = "blkio.bfq.weight_device" if node.v1 else "io.bfq.weight"
    path = node.real.path(pod, file)
    assert path.read_text().splitlines() == ["default 100", f"{node.disk.number} 30"]
    node.pods = {}
    node.step()
    assert path.read_text().splitlines() == ["default 100"]
    assert not node.journal.values


def test_a_scheduler_that_cannot_be_read_is_a_problem(
    node: DiskNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Disks, number: str) -> bool:
        raise OSError(errno.EIO, "Input/output error", number)

    monkeypatch.setattr(Disks, "uses_bfq", unreadable)
    config = annotation(node.disk, readBPS=MIB, ioWeightPercent=50)
    pod = node.run("batch", "burstable", annotations=config)
    node.want()
    node.step()
    assert node.read_limit(f"{pod}/main" if node.v1 else pod) == str(MIB)
    place = "pod ns/batch: koordinator.sh/blkioQOS: blocks[0].ioCfg"
    assert node.problem == f"{place}: {node.disk.number}: Input/output error"


def test_the_cost_of_a_disk_is_of_the_machine(node: DiskNode) -> None:
    batch = node.run("batch", "besteffort")
    above = batch.rpartition("/")[0]
    node.want(be=IoConfig(io_weight_percent=20), machine=IoConfig(read_latency=900))
    node.step()
    if node.v1:
        assert "there is no blkio.cost.qos: this kernel does not have it" in node.problem
        return
    assert not node.problem
    assert not node.colocation.state.failed
    cost = Path(ROOT, "io.cost.qos")
    line = next(each for each in cost.read_text().splitlines() if node.disk.number in each.split())
    assert {"enable=1", "rlat=900", "wlat=3000"} <= set(line.split())
    weight = node.real.path(above, "io.weight")
    assert f"{node.disk.number} 20" in weight.read_text().splitlines()
    node.strategies = Strategies()
    node.start().step()
    assert weight.read_text().splitlines() == ["default 100"]
    assert "enable=1" not in cost.read_text().split()
    assert not node.journal.values


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/dev/absent", "/sys/class/block has no 'absent'"),
        ("/dev/../etc", "is not the path of a device"),
        ("", "is not the path of a device"),
        ("/dev/mapper/absent", "this machine has no '/dev/mapper/absent'"),
    ],
)
def test_a_bad_name_is_a_problem_with_its_place(node: DiskNode, name: str, reason: str) -> None:
    node.run("batch", "besteffort")
    node.want(be=IoConfig(read_bps=MIB), name=name or " ")
    node.step()
    assert node.problem.startswith("resourceQOSStrategy.beClass.blkioQOS.blocks[0].name: ")
    assert reason in node.problem
    assert not node.journal.values
