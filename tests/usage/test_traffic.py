"""The traffic of disks and networks: recorded texts, and network namespaces of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.files import Tree
from agent.usage.traffic import (
    DiskTraffic,
    NetworkTraffic,
    PodNetworks,
    disks,
    disks_of_v1,
    disks_of_v2,
    interfaces,
)

DISKSTATS = """\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 195352 0 7383850 5 40636 0 24918144 9 0 7 8 3 0 4096 1 2 3
 259       1 nvme0n1p1 195 0 738 5 406 0 249 9 0 7 8
 104       0 cciss/c0d0 1 2 3 4 5 6 7 8 9 10 11
   8       0 sda 1 2 3 4 5 6
   8      16 sdb 1 2 x 4 5 6 7 8 9 10 11
"""
NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0
  eth0:741178706   24293    0    5    0     0          0         0  1605952   13376    0    7    0
"""


def test_the_disks_of_the_machine_are_whole_ones() -> None:
    assert disks(DISKSTATS, ["nvme0n1", "cciss!c0d0", "sda", "sdb"]) == {
        "259:0": ("nvme0n1", DiskTraffic(7383850 * 512, 24918144 * 512, 195352, 40636)),
        "104:0": ("cciss/c0d0", DiskTraffic(3 * 512, 7 * 512, 1, 5)),
    }


def test_the_disks_of_a_group_of_v2() -> None:
    """The text of Linux 6.1; 5.15 also lists disks without counters, in the line of the next."""
    text = (
        "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n"
        "253:0 7:1 8:0 rbytes=90430464 wbytes=299008000 rios=8950 wios=1252 dbytes=1 dios=2\n"
        "8:32 rbytes=1 wbytes=x rios=1 wios=1\n"
        "7:2\n"
    )
    assert disks_of_v2(text) == {
        "8:16": DiskTraffic(1459200, 314773504, 192, 353),
        "8:0": DiskTraffic(90430464, 299008000, 8950, 1252),
    }
    assert disks_of_v2("") == {}


def test_the_disks_of_a_group_of_v1() -> None:
    """The texts of Linux 6.1."""
    sizes = (
        "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 4096\n8:0 Async 8192\n8:0 Discard 0\n"
        "8:0 Total 12288\n8:16 Read 1\n8:16 Write 2\n8:16 Total 3\nTotal 12291\n"
    )
    operations = "8:0 Read 1\n8:0 Write 2\n8:0 Sync 1\n8:0 Total 3\n8:16 Read 1\nTotal 4\n"
    assert disks_of_v1(sizes, operations) == {"8:0": DiskTraffic(4096, 8192, 1, 2)}
    assert disks_of_v1("Total 0", "Total 0") == {}


def test_the_interfaces_of_a_namespace() -> None:
    assert interfaces(NET_DEV) == {
        "lo": NetworkTraffic(3193, 3193, 29, 29),
        "eth0": NetworkTraffic(741178706, 1605952, 24293, 13376),
    }
    assert interfaces("eth0: 1 2 3\neth1: 1 x 0 0 0 0 0 0 3 4\n") == {}


@pytest.fixture
def pid() -> Iterator[int]:
    """A process in a network namespace with two devices, of which one has sent packets."""
    if os.geteuid():
        pytest.skip("only root can make a network namespace")
    script = (
        "ip link add one type veth peer name two && ip link set lo up && ip link set two up &&"
        " ip link set one up && ip address add 10.99.0.1/24 dev one &&"
        " python3 -c 'import socket; s = socket.socket(type=socket.SOCK_DGRAM);"
        ' s.setsockopt(1, 6, 1); s.bind(("10.99.0.1", 0));'
        ' s.sendto(bytes(1000), ("10.99.0.255", 9)); s.sendto(b"", ("127.0.0.1", 9))\''
        " && echo sent && exec sleep 1000"
    )
    command = ["unshare", "--net", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "sent\n":
                pytest.skip("no network devices can be made here")
            yield process.pid
        finally:
            process.kill()


def test_a_pod_has_the_traffic_of_its_own_namespace(pid: int) -> None:
    networks = PodNetworks(Tree("/"))
    traffic = networks.read(
        {
            "pod": ("/", pid),
            "of the host": ("/", os.getpid()),
            "of another container": ("nowhere", pid),
            "ended": ("/", 1 << 22),
        }
    )
    assert traffic.keys() == {"pod"}, "each cgroup has a / in its path"
    assert traffic["pod"].sent_bytes >= 1000
    assert traffic["pod"].sent_bytes == traffic["pod"].received_bytes, "by the two ends of a pair"
    assert networks.read({"pod": ("/", 1)}) == {}


def test_a_process_with_the_pid_of_an_ended_one_is_not_of_the_pod(pid: int) -> None:
    networks = PodNetworks(Tree("/"))
    assert networks.read({"pod": ("/", pid)})
    with subprocess.Popen(["unshare", "--net", "sleep", "1000"]) as sleeper:
        try:
            assert networks.read({"pod": ("/", sleeper.pid)}) == {}
        finally:
            sleeper.kill()


def test_where_the_network_of_the_host_is_not_known_no_pod_has_traffic(
    tmp_path: Path, pid: int
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / f"proc/{pid}").symlink_to(f"/proc/{pid}")
    networks = PodNetworks(Tree(str(tmp_path)))
    assert networks.read({"pod": ("/", pid)}) == {}
    (tmp_path / "proc/1").symlink_to("/proc/1")
    assert networks.read({"pod": ("/", pid)})
