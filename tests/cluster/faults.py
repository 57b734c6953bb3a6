"""What goes wrong on a node while its pods come and go, and what can't go wrong there."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, NamedTuple

from agent.model.cpu.cpuset import CpuSet
from tests.cluster.cluster import GUEST, HOST, Cluster
from tests.cluster.guest import CARD
from tests.cluster.node import Node, start_containerd

SECONDS: Final = 15.0
"""The length of a fault that does not end by itself."""
CLOCK_JUMP: Final = "clock jump"
CLOCK_SECONDS: Final = 600
UNPLUGGED: Final = CpuSet((15,))
"""The CPUs of the guest that are taken out of it."""
_FILLED: Final = "/run/topolet/filled"
_OTHERS: Final = ("kubelet", "containerd")
"""The processes of a node that are not Topolet's."""
_COMMANDS: Final = frozenset({"agent", "proxy", "nri", "nri-guard", "scheduler", "webhook"})


class NotNowError(Exception):
    """The fault can't happen at this moment, since its process does not run."""


class Fault(NamedTuple):
    """`during`: breaks something, and mends at the end of the block what does not mend itself.
    `seconds`: the length of the block."""

    name: str
    during: Callable[[], AbstractContextManager[None]]
    seconds: float = 0.0


def processes(node: Node) -> dict[str, list[int]]:
    """The processes of Topolet on the node, by their commands."""
    processes: dict[str, list[int]] = {}
    for path, text in node.machine.read("/proc/[0-9]*/cmdline").items():
        words = text.split("\0")[:3]
        if (name := _command(words)) is not None:
            processes.setdefault(name, []).append(int(path.split("/")[2]))
    return processes


def _command(words: list[str]) -> str | None:
    """The command of Topolet that a process runs, by the first words of its command line: with
    those of the interpreter, or without."""
    for place, word in enumerate(words[:-1]):
        program = "" if word.startswith("-") else word.rpartition("/")[2]
        if program == "topolet" and words[place + 1] in _COMMANDS:
            return words[place + 1]
    return None


def kill(node: Node, name: str) -> Fault:
    """SIGKILL of a process that something starts again."""
    if name in _OTHERS:
        return Fault(f"kill {name}", partial(_started_anew, node, name, signal.SIGKILL))

    @contextlib.contextmanager
    def during() -> Iterator[None]:
        if name == "proxy":
            node.kill_proxy()
        else:
            pids = processes(node).get(name, [])
            if not pids:
                raise NotNowError(name)
            node.machine.run("kill", "-KILL", *map(str, pids))
        yield

    return Fault(f"kill {name}", during)


def possible(cluster: Cluster, name: str) -> tuple[list[Fault], dict[str, str]]:
    """The faults that can happen on a node, and why the others can't, by name."""
    node = cluster.nodes[name]
    faults = [kill(node, process) for process in ("agent", "proxy", *_OTHERS)]
    faults += [
        *(
            Fault(f"restart {process}", partial(_started_anew, node, process, signal.SIGTERM))
            for process in _OTHERS
        ),
        Fault("replace proxy", partial(_proxy_replaced, node)),
        Fault("disk full", partial(_disk_full, node), SECONDS),
        Fault("API server away", cluster.without_api_server, SECONDS),
    ]
    absent: dict[str, str] = dict.fromkeys(
        ("kill nri", "kill nri-guard"), "the node has the proxy in the place of the NRI plugin"
    )
    absent["kill webhook"] = "the cluster has admission policies instead of the webhook"
    if name == HOST:
        faults.append(kill(node, "scheduler"))
        absent |= dict.fromkeys(
            (CLOCK_JUMP, "CPU unplugged"), "the node has clock and CPUs of the whole machine"
        )
        absent["card lost"] = "the node has no card"
    elif name == GUEST:
        faults += [
            Fault(CLOCK_JUMP, partial(_clock_ahead, node), SECONDS),
            Fault("CPU unplugged", partial(_unplugged, node), 2 * SECONDS),
            Fault("card lost", partial(_card_lost, node), 2 * SECONDS),
        ]
        absent["kill scheduler"] = "the scheduler runs on another node"
    return faults, absent


@contextlib.contextmanager
def _started_anew(node: Node, name: str, number: int) -> Iterator[None]:
    """`number`: the signal that ends the process."""
    node.machine.end(name, number)
    if name == "kubelet":
        node.restart_kubelet()
    else:
        start_containerd(node.machine)
    yield


@contextlib.contextmanager
def _proxy_replaced(node: Node) -> Iterator[None]:
    """SIGTERM, as at an upgrade: the proxy drains, and the next one serves the same socket."""
    node.machine.run("kill", "-TERM", str(node.proxy_pid))
    yield


@contextlib.contextmanager
def _disk_full(node: Node) -> Iterator[None]:
    fill = f"head -c 1G /dev/zero >{_FILLED} 2>/dev/null || :"
    node.machine.run("sh", "-c", fill)
    try:
        yield
    finally:
        node.machine.remove(_FILLED)


@contextlib.contextmanager
def _clock_ahead(node: Node) -> Iterator[None]:
    """The wall clock is ahead during the block, and jumps back at its end."""
    _step_clock(node, CLOCK_SECONDS)
    try:
        yield
    finally:
        _step_clock(node, -CLOCK_SECONDS)


def _step_clock(node: Node, seconds: int) -> None:
    node.machine.run("sh", "-ec", f'date -s "@$(($(date +%s) + {seconds}))"')


@contextlib.contextmanager
def _unplugged(node: Node) -> Iterator[None]:
    files = [f"/sys/devices/system/cpu/cpu{cpu}/online" for cpu in UNPLUGGED]
    for file in files:
        node.machine.write(file, "0")
    try:
        yield
    finally:
        for file in files:
            node.machine.write(file, "1")


@contextlib.contextmanager
def _card_lost(node: Node) -> Iterator[None]:
    """The card loses its RDMA device, as when its driver lets it go."""
    folder = f"/sys/bus/pci/devices/{CARD}"
    node.machine.run("mv", f"{folder}/infiniband", f"{folder}/lost")
    try:
        yield
    finally:
        node.machine.run("mv", f"{folder}/lost", f"{folder}/infiniband")
