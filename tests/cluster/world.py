"""Namespaces in which a node has its own paths, ports and cgroups, like a machine.

A world has network, mount, pid, IPC and cgroup namespaces with its own /var/lib/kubelet, /run, /etc
and /sys/fs/cgroup. It does not affect anything outside, so several worlds can run at the same time.
The first process of the pid namespace ends with the test session, also if that is killed, and all
other processes of the world end with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.cluster.machine import Machine
from tests.fixtures.cgroups import MOUNTS, remove_cgroups
from tests.integration.kubelet.standalone import TUNABLES
from tests.waiting import DEADLINE_SECONDS, eventually

ADDRESS = "192.0.2.10"
PROGRAMS = ("unshare", "setpriv", "mount", "ip", "iptables")
_PREFIX, _LOCK = "topolet-cluster-", "lock"

_FOLDERS = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "run-containerd": "/run/containerd",
    "kubernetes": "/etc/kubernetes",
    "cni": "/etc/cni",
    "log-pods": "/var/log/pods",
    "log-containers": "/var/log/containers",
}
"""The paths that a node writes, by the names of the world's own folders below `folder`."""

_ENTER = """name=$1; shift
for group in /sys/fs/cgroup/$name /sys/fs/cgroup/*/$name; do
    [ ! -e $group/cgroup.procs ] || echo $$ >$group/cgroup.procs
done
exec "$@"
"""

# Unmounts mounts of other programs of this machine, which the world would keep busy. Changes of
# /etc, /var/lib and /var/log go to a layer in memory; their submounts are not visible. The state
# folder has a file system of its own, so that it can be full.
_PREPARE = """folder=$1; shift
while read -r _ where kind _; do
    case $kind:$where in
    overlay:/tmp/* | tmpfs:/tmp/* | nsfs:/run/* | overlay:/run/*) umount -l "$where" || true ;;
    esac
done </proc/mounts
mount -t tmpfs tmpfs /run
for each in etc var/lib var/log; do
    mkdir -p /run/layers/$each/upper /run/layers/$each/work
    mount -t overlay overlay /$each \
        -o lowerdir=/$each,upperdir=/run/layers/$each/upper,workdir=/run/layers/$each/work
done
mount --make-rshared /
while [ $# -gt 0 ]; do
    mkdir -p "$folder/$1" "$2"
    mount --bind "$folder/$1" "$2"
    mount --make-shared "$2"
    shift 2
done
mkdir -p /run/topolet
mount -t tmpfs -o size=32m tmpfs /run/topolet
mount --make-shared /run/topolet
mkdir -p /var/lib/cni
for file in "$folder"/tunables/*; do
    mount --bind "$file" "/proc/sys/$(basename "$file" | tr . /)"
done
"""

# Both ends are in the world: it needs a device that is up, and not every kernel has dummy devices.
_NETWORK = f"""ip link set lo up
ip link add node0 type veth peer name node0p
ip link set node0p up
ip addr add {ADDRESS}/24 dev node0
ip link set node0 up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
"""


class World(Machine):
    """`folder` has the same path inside. Logs of processes are below it."""

    def __init__(self, folder: Path, path: str) -> None:
        super().__init__(folder / "inside.sock", folder / "logs", {"PATH": path})
        self.folder = folder
        self.path = path


def lacking() -> list[str]:
    """The programs that a world needs and this machine does not have; "root" without root."""
    if os.geteuid():
        return ["root"]
    path = _path("")
    return [each for each in PROGRAMS if shutil.which(each, path=path) is None]


@contextlib.contextmanager
def created(programs: str) -> Iterator[World]:
    """A world, removed at the end of the block. `programs`: folders for PATH, colon-separated."""
    _remove_stale_worlds()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    group = folder.name
    process: subprocess.Popen[bytes] | None = None
    lock = _locked(folder)
    try:
        _make_group(group)
        _copy_tunables(folder / "tunables")
        process = _enter(folder, group)
        alive = process
        sock = folder / "inside.sock"

        def answers() -> bool:
            assert alive.poll() is None, (folder / "world.log").read_text()
            return sock.exists()

        eventually("the world answers", answers)
        world = World(folder, _path(programs))
        try:
            pairs = [word for pair in _FOLDERS.items() for word in pair]
            world.run("sh", "-ec", _PREPARE, "sh", folder, *pairs)
            world.run("sh", "-ec", _mount_cgroups())
            world.run("sh", "-ec", _NETWORK)
            yield world
        finally:
            world.close()
    finally:
        if process is not None:
            process.kill()
            process.wait()
        _remove_group(group)
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def _enter(folder: Path, group: str) -> subprocess.Popen[bytes]:
    """Starts the first process of the world: the world ends with it."""
    inside = Path(__file__).with_name("inside.py")
    with (folder / "world.log").open("ab") as log:
        return subprocess.Popen(
            [
                *("setpriv", "--pdeathsig=KILL", "sh", "-ec", _ENTER, "sh", group),
                *("unshare", "--mount", "--net", "--pid", "--ipc", "--cgroup", "--fork"),
                *("--kill-child=KILL", "--mount-proc", "--propagation=private"),
                *(sys.executable, str(inside), str(folder / "logs")),
                *("unix", str(folder / "inside.sock")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
        )


def _hierarchies() -> list[tuple[Path, str, str]]:
    """Mount point, type and options of each below /sys/fs/cgroup."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and Path(where).is_relative_to(MOUNTS):
            own = [
                each
                for each in options.split(",")
                if each not in ("rw", "ro", "relatime", "noatime", "nosuid", "nodev", "noexec")
            ]
            named = any(each.startswith("name=") for each in own)
            wanted = ["none", *own] if named else own
            found.append((Path(where), kind, ",".join(wanted) if kind == "cgroup" else ""))
    return found


def _make_group(name: str) -> None:
    """Creates the world's root cgroup in every hierarchy, on v1 with all CPUs. It has the weight of
    ten programs outside: by that of one, a full machine has hardly any time for a whole node."""
    for mount, kind, _ in _hierarchies():
        if kind == "cgroup2" and mount == MOUNTS:
            controllers = (mount / "cgroup.controllers").read_text().split()
            (mount / "cgroup.subtree_control").write_text(" ".join(f"+{e}" for e in controllers))
        (mount / name).mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if kind == "cgroup" and (mount / file).exists():
                (mount / name / file).write_text((mount / file).read_text())
        for file, weight in (("cpu.shares", "10240"), ("cpu.weight", "1000")):
            if (mount / name / file).exists():
                (mount / name / file).write_text(weight)


def _mount_cgroups() -> str:
    """A script that mounts the same hierarchies with the world's root as their root. On v2 a group
    that delegates controllers, such as that root, cannot have processes."""
    lines = []
    if all(mount != MOUNTS for mount, _, _ in _hierarchies()):
        lines.append(f"mount -t tmpfs tmpfs {MOUNTS}")
    for mount, kind, options in _hierarchies():
        given = f" -o {options}" if options else ""
        lines += [f"mkdir -p {mount}", f"mount -t {kind}{given} cgroup {mount}"]
        if kind == "cgroup2" and mount == MOUNTS:
            lines += [
                f"mkdir {mount}/daemons",
                f"while read pid; do echo $pid >{mount}/daemons/cgroup.procs || true; done"
                f" <{mount}/cgroup.procs",
                f"for each in $(cat {mount}/cgroup.controllers); do"
                f" echo +$each >{mount}/cgroup.subtree_control; done",
            ]
    return "\n".join(lines)


def _remove_group(name: str) -> None:
    """Retries, because the end of the last process takes a moment."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        remove_cgroups(name)
        remaining = [mount / name for mount, _, _ in _hierarchies() if (mount / name).exists()]
        if not remaining or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _copy_tunables(folder: Path) -> None:
    """A kubelet in the world sets these copies, not the machine's files."""
    folder.mkdir()
    for file in TUNABLES:
        if file.exists():
            name = str(file.relative_to("/proc/sys")).replace("/", ".")
            (folder / name).write_text(file.read_text())


def _locked(folder: Path) -> IO[str]:
    """Locks a world for the test session."""
    lock = (folder / "unlocked").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "unlocked").rename(folder / _LOCK)
    return lock


def _remove_stale_worlds() -> None:
    """Removes the worlds of killed test sessions."""
    for file in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), file.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_group(file.parent.name)
            shutil.rmtree(file.parent, ignore_errors=True)


def _path(programs: str) -> str:
    own = Path(sys.executable).parent
    known = f"{own}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    return f"{programs}:{known}" if programs else known
