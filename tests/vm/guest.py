"""An emulated machine with 16 CPUs on 4 NUMA nodes and cgroup v2 that runs the tests of tests/vm.

Two sockets of four cores of two threads; NUMA nodes 0-3, 4-7, 8-11 and 12-15, two a socket. It has
this machine's files read-only, so it has the same Python, containerd and runc.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import itertools
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence

import msgspec

from tests.fixtures import containerd

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NODES = ("0-3", "4-7", "8-11", "12-15")
CHAIN_KERNEL, REMOTE_KERNEL = "6.1", "6.12"
"""Those of Debian 12 and 13. The second one has remote cpuset partitions."""
DISTANCES = ((10, 12, 21, 21), (12, 10, 21, 21), (21, 21, 10, 12), (21, 21, 12, 10))
_MEMORY_GB = 1
_PRIORITIZED = '{ echo -3 >/proc/self/autogroup; } 2>/dev/null; exec nice -n -5 "$@"'
FAR_NODE, FAR_BUS = 2, 64
FAR_PORT = (
    f"pxb-pcie,id=far,bus_nr={FAR_BUS},bus=pcie.0,numa_node={FAR_NODE}",
    "pcie-root-port,id=entry,bus=far,chassis=1,slot=1",
)
"""A bus of NUMA node 2 with the port `entry`."""
_DEVICES = (
    *FAR_PORT,
    "x3130-upstream,id=upper,bus=entry",
    "xio3130-downstream,id=beside,bus=upper,chassis=2,slot=2",
    "xio3130-downstream,id=below,bus=upper,chassis=3,slot=3",
    "x3130-upstream,id=lower,bus=below",
    "xio3130-downstream,id=left,bus=lower,chassis=4,slot=4",
    "xio3130-downstream,id=right,bus=lower,chassis=5,slot=5",
    "pcie-root-port,id=network,bus=far,chassis=6,slot=6",
    "e1000e,bus=network",
    "virtio-rng-pci,bus=beside",
    "virtio-rng-pci,bus=left",
    "nvme-subsys,id=disks",
    "nvme,serial=1,subsys=disks,bus=right,max_ioqpairs=6,msix_qsize=5"
    ",sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2",
    "virtio-blk-pci,drive=zeros,num-queues=1,bus=pcie.0",
)
"""Below the port, a switch below a switch, and a disk with virtual functions there; a network card
beside the switches; and a disk without a driver until a test loads it."""
_ZEROS = "driver=null-co,node-name=zeros,size=268435456,read-zeroes=on,latency-ns=1000000"
"""A disk that forgets what is written, and takes a millisecond for everything."""


class GuestError(RuntimeError):
    """The guest returned no result; the text ends with its output."""


class Case(msgspec.Struct, frozen=True):
    """One test in the guest; `outcome` is `passed`, `skipped`, `failed` or `error`."""

    name: str
    outcome: str
    seconds: float
    text: str = ""


def lacking(version: str = CHAIN_KERNEL) -> list[str]:
    """The reason why no guest with this kernel can be started here; empty if one can."""
    reasons = []
    if platform.machine() != "x86_64":
        reasons.append("the guest is an x86_64 machine")
    if os.geteuid():
        reasons.append("needs root")
    programs = ("qemu-system-x86_64", "vng", "virtme-run", "modprobe")
    missing = [name for name in programs if shutil.which(name, path=_path()) is None]
    missing += containerd.missing()
    if kernel(version) is None:
        missing.append(f"a kernel {version} below {_cache()}")
    if missing:
        reasons.append(f"missing: {', '.join(missing)} (tests/vm/prepare installs it)")
    return reasons


def kernel(version: str = CHAIN_KERNEL) -> pathlib.Path | None:
    """The image of this version that tests/vm/prepare fetched last."""
    images = _cache().glob(f"kernel-{version}.*/boot/vmlinuz-*")
    return max(images, key=lambda image: image.stat().st_ctime, default=None)


@contextlib.contextmanager
def guest_lock() -> Iterator[None]:
    """Locks the machine for one guest. Two guests and other tests would leave each guest too little
    CPU time for the deadlines of its kubelet and its runtime."""
    _cache().mkdir(parents=True, exist_ok=True)
    with open(_cache() / "guest.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(
    share: pathlib.Path, paths: list[str], limit_seconds: float, version: str = CHAIN_KERNEL
) -> tuple[int, list[Case]]:
    """pytest's exit code and outcomes of `paths` (below the repository) in a fresh guest.

    `share` is an empty folder, which gets the guest's output; `version` is the kernel's. A guest
    that ends before its first step is booted once more, because qemu itself sometimes crashes.
    Raises GuestError.
    """
    # The guest cannot write compiled files.
    for folder in ("agent", "demo"):
        compileall.compile_dir(REPOSITORY / folder, quiet=1)
    deadline = time.monotonic() + limit_seconds
    for last in (False, True):
        ended = _boot(share, paths, deadline, version)
        code, report = _text(share / "code").strip(), share / "junit.xml"
        if code and report.exists():
            return int(code), _cases(report)
        if last or (share / "output.txt").exists() or time.monotonic() > deadline:
            break
    raise GuestError(
        f"the guest {ended}\n--- its console\n{_text(share / 'console.txt')[-6000:]}"
        f"\n--- its output\n{_text(share / 'output.txt')}"
    )


def _boot(share: pathlib.Path, paths: list[str], deadline: float, version: str) -> str:
    """Returns when the guest has ended; the result describes how."""
    with (share / "console.txt").open("wb") as console:
        emulator = subprocess.Popen(
            command(share, paths, version),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            cwd=REPOSITORY,
            env=environment(),
            start_new_session=True,
        )
    try:
        return f"ended with code {emulator.wait(max(deadline - time.monotonic(), 1.0))}"
    except subprocess.TimeoutExpired:
        return "did not end in time"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(emulator.pid, signal.SIGKILL)
        emulator.wait()


def environment() -> dict[str, str]:
    """The environment of the emulator's command."""
    return {**os.environ, "PATH": _path()}


def command(share: pathlib.Path, paths: list[str], version: str = CHAIN_KERNEL) -> list[str]:
    """The command that boots the guest."""
    start = pathlib.Path(__file__).with_name("start.sh")
    words = [start, share, REPOSITORY, sys.executable, _cache(), *paths]
    # Sixteen threads on a few CPUs would mostly wait for each other.
    options = [
        "-accel tcg,thread=single",
        f"-blockdev {_ZEROS}",
        *(f"-device {each}" for each in _DEVICES),
    ]
    return emulator(share, list(map(str, words)), _MEMORY_GB, options, version)


def emulator(
    share: pathlib.Path,
    words: list[str],
    memory_gb: int,
    options: Sequence[str],
    version: str = CHAIN_KERNEL,
) -> list[str]:
    """The command that boots a guest and runs `words` in it; `memory_gb`: of each NUMA node."""
    image = kernel(version)
    assert image is not None
    numa = [f"--numa={memory_gb}G,cpus={cpus}" for cpus in NODES]
    numa += [
        f"--numa-distance={one},{other}={DISTANCES[one][other]}"
        for one, other in itertools.combinations(range(len(NODES)), 2)
    ]
    # A second mount of this machine's files, whose reads are cached.
    everything = [
        "-cpu Skylake-Server",
        "-fsdev local,id=whole,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device virtio-9p-pci,fsdev=whole,mount_tag=whole",
        *options,
    ]
    # All programs in a guest wait for the emulator, and the whole run waits for the guests.
    return prioritized(
        *("vng", "--run", str(image), "--disable-kvm", "--force-9p", "--user=root", "--verbose"),
        *("--cpus=16,sockets=2,cores=4,threads=2", f"--memory={memory_gb * len(NODES)}G"),
        *numa,
        f"--qemu-opts={' '.join(everything)}",
        "--append=mitigations=off",
        f"--rwdir={share}",
        *("--exec", shlex.join(words)),
    )


def prioritized(*words: str) -> list[str]:
    """The command with twice the share of the CPUs that others have: more would end the waits of
    the suites beside it. Where sessions share the CPUs (sched_autogroup_enabled), the nice value of
    a process counts within its session only, and that of its session among all (sched(7))."""
    return ["sh", "-c", _PRIORITIZED, "sh", *words]


def _cases(report: pathlib.Path) -> list[Case]:
    cases = []
    for each in ElementTree.parse(report).getroot().iter("testcase"):
        outcome, text = "passed", ""
        for kind, word in (("skipped", "skipped"), ("failure", "failed"), ("error", "error")):
            found = each.find(kind)
            if found is not None:
                outcome, text = word, found.text or ""
        name = f"{each.get('classname')}::{each.get('name')}"
        cases.append(Case(name, outcome, float(each.get("time", 0)), text))
    return cases


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _cache() -> pathlib.Path:
    return pathlib.Path(os.environ.get("TOPOLET_CACHE") or "~/.cache/topolet").expanduser()


def _path() -> str:
    own = pathlib.Path(sys.executable).parent
    return f"{own}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
