"""Which process is this node's kubelet.

Any process may call itself `kubelet`. The node's kubelet runs as uid 0 in the PID namespace of the
host's procfs, and neither it nor any of its ancestors belongs to a pod. `/proc/PID/exe` can't help:
an agent without capabilities may not read it (ptrace(2)), and the file behind a link named kubelet
may have any name. comm is the name of the executed file, so it shows a process that only set the
first word of its command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.cgroup import names
from agent.cgroup.names import absolute
from agent.host import processes
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.kubelet import programs
from agent.kubelet.configuration import flags

_ROOT_UIDS: Final = (0, 0, 0, 0)
_MOST_ABOVE: Final = 64
"""Ancestors of a kubelet."""
_MOST_DOUBTS: Final = 8
"""Of one search: a pod may have thousands of processes that call themselves kubelet."""
_TRIES: Final = 3
"""When an ancestor ends, its child gets another parent."""


class KubeletProcess(msgspec.Struct, frozen=True):
    """`program`: `kubelet`, or the one that has a kubelet inside; `words`: its command line."""

    pid: int
    program: str
    words: tuple[str, ...]
    parent: int = 0

    @property
    def title(self) -> str:
        return f"{self.program} {self.pid}"


class FoundKubelets(msgspec.Struct, frozen=True):
    """`doubts`: why other processes may be kubelets too."""

    kubelets: tuple[KubeletProcess, ...] = ()
    doubts: tuple[str, ...] = ()


def find(proc: str, own_group: str | None = "/") -> FoundKubelets:
    """`own_group`: the root of this process's cgroup namespace, None when unknown."""
    try:
        pids = processes.pids(proc)
    except OSError as error:
        return FoundKubelets(doubts=(f"{proc}: {error.strerror}",))
    found: list[KubeletProcess] = []
    doubts = []
    for pid in pids:
        try:
            with Process(proc, pid) as process:
                if each := _kubelet(proc, process, own_group):
                    found.append(each)
        except ProcessGoneError:
            continue
        except UnreadableError as error:
            doubts.append(str(error))
    # A kubelet that starts a program is there twice until its child executes it.
    alike = {(each.pid, each.words) for each in found}
    kubelets = [each for each in found if (each.parent, each.words) not in alike]
    return FoundKubelets(tuple(kubelets), tuple(doubts[:_MOST_DOUBTS]))


def _kubelet(proc: str, process: Process, own_group: str | None) -> KubeletProcess | None:
    """None for any other process. The cheapest checks come first: a pod may have thousands of
    processes that call themselves kubelet. Raises GoneError, UnreadableError."""
    try:
        program = programs.program(process.first_word())
    except UnreadableError:
        return None  # /proc is mounted with hidepid, or the process is another's
    if program is None or _of_pods(process, own_group):
        return None
    if not process.name().startswith(program):
        return None
    status = process.status()
    if status.uids != _ROOT_UIDS or len(status.pids) > 1:
        return None
    if not status.pids:
        raise UnreadableError(f"{program} {process.pid}: the kernel tells no NSpid")
    words = tuple(process.words())
    if not programs.runs_kubelet(words) or _below_pods(proc, process, own_group):
        return None
    return KubeletProcess(process.pid, program, words, status.parent)


def _below_pods(proc: str, process: Process, own_group: str | None) -> bool:
    """Whether an ancestor belongs to a pod. Raises ProcessGoneError, UnreadableError."""
    for _ in range(_TRIES):
        parent = process.status().parent
        try:
            return _one_of_pods(proc, parent, own_group)
        except ProcessGoneError:
            continue
    raise UnreadableError(f"process {process.pid}: its ancestors come and go")


def _one_of_pods(proc: str, pid: int, own_group: str | None) -> bool:
    """Whether this process or an ancestor belongs to a pod. Raises ProcessGoneError,
    UnreadableError."""
    for _ in range(_MOST_ABOVE):
        if pid == 0:
            return False
        with Process(proc, pid) as above:
            if _of_pods(above, own_group):
                return True
            pid = above.status().parent
    raise UnreadableError(f"process {pid}: it has more than {_MOST_ABOVE} ancestors")


def _of_pods(process: Process, own_group: str | None) -> bool:
    """Raises ProcessGoneError, UnreadableError."""
    groups = process.groups()
    if any(map(names.of_pods, groups.values())):
        return True
    group = _of_cpuset(groups)
    if group is None:
        raise UnreadableError(
            f"process {process.pid}: /proc names no cgroup of the cpuset hierarchy"
        )
    if own_group is None:
        if group.startswith("/.."):
            raise UnreadableError(
                f"process {process.pid}: its cgroup {group} is outside of our cgroup namespace, "
                "whose root is not known"
            )
        own_group = "/"
    full = absolute(group.removesuffix(" (deleted)"), own_group)
    if full is None:
        raise UnreadableError(f"process {process.pid}: its cgroup {group} is not on the host")
    return names.of_pods(full)


def _of_cpuset(groups: Mapping[str, str]) -> str | None:
    """The group in v1's cpuset hierarchy, else in v2."""
    of_v1 = (group for names_, group in groups.items() if "cpuset" in names_.split(","))
    return next(of_v1, groups.get(""))


def ours(
    kubelets: tuple[KubeletProcess, ...], root: str, kubelet_dir: str
) -> KubeletProcess | None:
    """The only kubelet, or of several the only one whose --root-dir below `root` is
    `kubelet_dir`."""
    if len(kubelets) == 1:
        return kubelets[0]

    def folder(each: KubeletProcess) -> str:
        return os.path.normpath(os.path.join(root, _root_dir(each).lstrip("/")))

    matching = [each for each in kubelets if folder(each) == os.path.normpath(kubelet_dir)]
    return matching[0] if len(matching) == 1 else None


def keeps_state_elsewhere(proc: str, kubelet: KubeletProcess, kubelet_dir: str) -> bool:
    """Whether the kernel shows that this kubelet keeps its state in another folder than
    `kubelet_dir`. False where that is not certain: programs with a kubelet inside have more sources
    of flags than their command line."""
    folder = _root_dir(kubelet)
    if kubelet.program != programs.KUBELET or not os.path.isabs(folder):
        return False
    try:
        # The folder as the process sees it: it may have a mount namespace of its own.
        return not os.path.samefile(f"{proc}/{kubelet.pid}/root{folder}", kubelet_dir)
    except OSError:
        return False


def _root_dir(kubelet: KubeletProcess) -> str:
    named = flags(programs.own_words(kubelet.words)).get("root-dir", "")
    return named or programs.DEFAULT_ROOT_DIR
