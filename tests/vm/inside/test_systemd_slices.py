"""A systemd that runs the host and the agent write the CPUs of the same slices, on cgroup v2."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.host_slices import SliceCpus
from agent.model.cpu.cpuset import CpuSet
from agent.node.quiet.host_slices import HostSlices
from tests.cgroup.real_groups import RealGroups
from tests.node.quiet.quiet_host import QuietHost
from tests.waiting import eventually

ROOT: Final = "/sys/fs/cgroup"
UNIT: Final = "busy.service"
_BOOT: Final = """
mkdir -p /run/units
cd /usr/lib/systemd/system
for name in sysinit basic sockets timers paths slices local-fs local-fs-pre shutdown umount; do
    cp $name.target /run/units/
done
cd /
printf '[Unit]\\nDescription=node\\n' >/run/units/node.target
printf '[Service]\\nExecStart=/bin/sh -c "while :; do :; done"\\n' >/run/units/busy.service
mount --bind /run/units /usr/lib/systemd/system
mount -t tmpfs tmpfs /etc/systemd
mount -t tmpfs tmpfs /usr/lib/systemd/system-generators
exec env -i container=topolet PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=node.target --show-status=0
"""


class Systemd:
    """The first process of a PID namespace."""

    def __init__(self, folder: Path) -> None:
        words = ("unshare", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc")
        with (folder / "systemd.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "--propagation=private", "sh", "-ec", _BOOT], stdout=log, stderr=log
            )
        self.pid = 0

        def runs() -> bool:
            assert self._process.poll() is None, (folder / "systemd.log").read_text()
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            self.pid = int(children.read_text() or 0)
            ready = self.pid and self.run("systemctl", "is-system-running", check=False)
            return ready in ("running", "degraded")

        eventually("systemd runs", runs)

    def run(self, *words: str, check: bool = True) -> str:
        nsenter = ("nsenter", f"--target={self.pid}", "--pid", "--mount", "--root", "--")
        return subprocess.run(
            [*nsenter, *words], check=check, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def close(self) -> None:
        """Ends it with all of its processes, and removes its groups."""
        self._process.kill()
        self._process.wait()
        for top in ("system.slice", "user.slice", "init.scope"):
            for folder, _, _ in os.walk(Path(ROOT, top), topdown=False):
                eventually("it is empty", partial(_removed, folder))


def _removed(folder: str) -> bool:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    return not os.path.exists(folder)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    """It finds groups with cpusets, as those of pods are: else it takes the controller away."""
    if shutil.which("systemctl") is None:
        pytest.skip("this machine has no systemd")
    pods = RealGroups({"cpuset": (2, ROOT)})
    pods.make("/pod")
    running = Systemd(tmp_path)
    yield running
    running.close()
    pods.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[QuietHost]:
    hierarchy = Hierarchy(ROOT)
    others = {"slice": lambda: SliceCpus(hierarchy)}
    controllers = Controllers(ROOT, hierarchy.handles, others)
    host = QuietHost(
        tmp_path, controllers, lambda journal: HostSlices(controllers, hierarchy, journal)
    )
    host.cpus = CpuSet(os.sched_getaffinity(0))
    yield host
    hierarchy.close()


def test_a_service_stays_away_from_an_owner_whatever_systemd_does(
    systemd: Systemd, host: QuietHost
) -> None:
    systemd.run("systemctl", "start", UNIT)
    procs = Path(ROOT, "system.slice", UNIT, "cgroup.procs")

    def daemon() -> CpuSet:
        return CpuSet(os.sched_getaffinity(int(procs.read_text())))

    host.own(host.cpus - CpuSet([0, 1]))
    host.step()
    assert not host.quiet.state.failed
    assert daemon() == CpuSet([0, 1])
    for verb in (["daemon-reload"], ["restart", UNIT]):
        systemd.run("systemctl", *verb)
        assert daemon() == CpuSet([0, 1]), verb

    systemd.run("systemctl", "set-property", "--runtime", "system.slice", "AllowedCPUs=1-3")
    host.step()
    assert daemon() == CpuSet([1])
    host.start()
    assert limits.restore(host.controllers, host.journal).ok
    assert daemon() == CpuSet([1, 2, 3])
    allowed = systemd.run("systemctl", "show", "--property=AllowedCPUs", "--value", "system.slice")
    assert allowed == "1-3", "systemd keeps what the operator has set"
