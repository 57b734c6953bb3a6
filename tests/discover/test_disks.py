"""Disks by their names in trees like sysfs, and the mounts of pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.discover.disks import DiskError, Disks
from tests.fixtures.trees import write

BLOCK = "sys/class/block"
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
MOUNTS = "\n".join(
    (
        "22 1 0:5 / /dev rw - devtmpfs devtmpfs rw",
        "30 1 8:17 / VOLUMES/kubernetes.io~csi/pvc-1/mount rw - ext4 x rw",
        "31 1 8:16 / VOLUMES/kubernetes.io~local-volume/disk rw - xfs x rw",
        "32 1 0:57 / VOLUMES/kubernetes.io~nfs/far rw - nfs4 x rw",
        "33 1 8:0 / /data/pods/1/etc/hosts rw - ext4 x rw",
        "broken",
    )
).replace("VOLUMES", f"/var/lib/kubelet/pods/{UID}/volumes")


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    devices = {
        "sda": ("8:0", "devices/pci/block/sda"),
        "sda1": ("8:1", "devices/pci/block/sda/sda1"),
        "sdb": ("8:16", "devices/pci/block/sdb"),
        "sdb1": ("8:17", "devices/pci/block/sdb/sdb1"),
        "cciss!c0d0": ("104:0", "devices/pci/block/cciss!c0d0"),
        "dm-0": ("252:0", "devices/virtual/block/dm-0"),
        "dm-1": ("252:1", "devices/virtual/block/dm-1"),
        "dm-2": ("252:2", "devices/virtual/block/dm-2"),
    }
    files = {f"sys/{path}/dev": number for number, path in devices.values()}
    files |= {f"sys/devices/pci/block/{disk}/{disk}1/partition": "1" for disk in ("sda", "sdb")}
    files |= {
        "sys/devices/pci/block/sda/queue/scheduler": "none mq-deadline kyber [bfq]",
        "sys/devices/pci/block/sdb/queue/scheduler": "[none] mq-deadline kyber bfq",
        "sys/devices/virtual/block/dm-0/dm/name": "fast--vg-data",
        "sys/devices/virtual/block/dm-0/dm/uuid": "LVM-aaaa",
        "sys/devices/virtual/block/dm-0/slaves/dm-2/.keep": "",
        "sys/devices/virtual/block/dm-0/slaves/sdb1/.keep": "",
        "sys/devices/virtual/block/dm-1/dm/name": "fast--vg--two-data",
        "sys/devices/virtual/block/dm-1/dm/uuid": "LVM-bbbb",
        "sys/devices/virtual/block/dm-1/slaves/sdb1/.keep": "",
        "sys/devices/virtual/block/dm-2/dm/name": "luks",
        "sys/devices/virtual/block/dm-2/dm/uuid": "CRYPT-LUKS2-cccc",
        "sys/devices/virtual/block/dm-2/slaves/sda1/.keep": "",
        "proc/1/mountinfo": MOUNTS,
    }
    links = [(f"{BLOCK}/{name}", f"../../{path}") for name, (_, path) in devices.items()]
    links += [(f"sys/dev/block/{number}", f"../../{path}") for number, path in devices.values()]
    return Disks(write(str(tmp_path), files, links))


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/dev/sda", "8:0"),
        ("/dev/sda1", "8:0"),
        ("/dev/cciss/c0d0", "104:0"),
        ("/dev/dm-2", "252:2"),
        ("/dev/mapper/fast--vg-data", "252:0"),
    ],
)
def test_a_device_is_its_whole_disk(disks: Disks, path: str, number: str) -> None:
    assert disks.of_device(path) == number


@pytest.mark.parametrize(
    "path",
    ["", "sda", "/dev/", "/dev/..", "/dev/../block/sda", "/dev/sdz", "/dev/mapper/x", "/dev/sda\n"],
)
def test_other_names_are_no_disk(disks: Disks, path: str) -> None:
    with pytest.raises(DiskError):
        disks.of_device(path)


def test_a_volume_group_is_all_disks_below_its_volumes(disks: Disks) -> None:
    assert disks.of_volume_group("fast-vg") == ("8:0", "8:16")
    assert disks.of_volume_group("fast-vg-two") == ("8:16",)
    for name in ("fast", "luks", "", "fast-vg-"):
        with pytest.raises(DiskError, match="uses no volume group"):
            disks.of_volume_group(name)


def test_volumes_of_pods_are_those_that_are_mounted(disks: Disks) -> None:
    volumes = disks.pod_volumes()
    assert volumes == {(UID, "pvc-1"): "8:17", (UID, "disk"): "8:16", (UID, "far"): "0:57"}
    assert disks.of_number("8:17") == disks.of_number("8:16") == "8:16"
    with pytest.raises(DiskError, match="0:57 is not a disk"):
        disks.of_number("0:57")


def test_the_scheduler_of_a_disk(disks: Disks) -> None:
    assert disks.uses_bfq("8:0")
    assert not disks.uses_bfq("8:16")
    assert not disks.uses_bfq("252:0")
