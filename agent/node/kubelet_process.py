"""The process that is this node's kubelet, and its command line.

Any process may call itself `kubelet`. The node's kubelet runs as uid 0 in the PID namespace of the
host's procfs, and neither it nor any of its ancestors belongs to a pod. `/proc/PID/exe` is not
used: an agent without capabilities may not read it (ptrace(2)), and a link named kubelet may point
to a file of any name. `/proc/PID/comm` is compared too: it has the name of the executed file, also
if a process changed the first word of its command line.

Some programs contain a kubelet and take its flags from elsewhere. k3s passes on the values of
`--kubelet-arg`, or of `kubelet-arg` in its own files (docs.k3s.io, Configuration Options); the
kubelite of MicroK8s reads the flags from a file, one a line. k0s and RKE2 start a kubelet as a
process of its own.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.cgroup import names
from agent.cgroup.names import absolute, of_cpuset
from agent.host import processes
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.kubelet.configuration import ConfigurationError, flags

KUBELET: Final = "kubelet"
K3S: Final = "k3s"
KUBELITE: Final = "kubelite"
_NAMES: Final = (KUBELET, K3S, KUBELITE)
DEFAULT_ROOT_DIR: Final = "/var/lib/kubelet"
K3S_CONFIG: Final = "/etc/rancher/k3s/config.yaml"
K3S_ENDPOINT: Final = "unix:///run/k3s/containerd/containerd.sock"
"""The runtime that k3s starts for its kubelet."""
KUBELITE_ARGS_FLAG: Final = "kubelet-args-file"

_ARG: Final = "kubelet-arg"
_ARG_FLAG: Final = f"--{_ARG}"
_K3S_COMMANDS: Final = frozenset({"server", "agent"})
_K3S_TITLES: Final = frozenset(f"{K3S} {command}" for command in _K3S_COMMANDS)
_ANSWERS: Final = frozenset({"version", "help", "h"})
"""Flags with which a kubelet only prints text and exits."""


_QUOTES: Final = re.compile("[\"']")
_ROOT_UIDS: Final = (0, 0, 0, 0)
_MAX_ABOVE: Final = 64
"""Ancestors of a kubelet."""
_MAX_DOUBTS: Final = 8
"""Reported by one search: a pod may have thousands of processes that call themselves kubelet."""
_TRIES: Final = 3
"""How often the ancestors are read: when one ends, its child gets another parent."""


class KubeletProcess(msgspec.Struct, frozen=True):
    """A process that is the node's kubelet."""

    pid: int
    program: str
    """`kubelet`, or the program that contains the kubelet."""
    argv: tuple[str, ...]
    parent: int = 0

    @property
    def title(self) -> str:
        return f"{self.program} {self.pid}"


class FoundKubelets(msgspec.Struct, frozen=True):
    """Which processes of a machine are kubelets."""

    kubelets: tuple[KubeletProcess, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why others may be kubelets too."""

    def of_folder(self, root: str, kubelet_dir: str) -> KubeletProcess | None:
        """The only kubelet, or the only one of several whose --root-dir below `root` is
        `kubelet_dir`; None while there are doubts."""
        if self.doubts:
            return None
        if len(self.kubelets) == 1:
            return self.kubelets[0]

        def folder(each: KubeletProcess) -> str:
            return os.path.normpath(os.path.join(root, _root_dir(each).lstrip("/")))

        matching = [each for each in self.kubelets if folder(each) == os.path.normpath(kubelet_dir)]
        return matching[0] if len(matching) == 1 else None


def find(proc: str, own_group: str | None = "/") -> FoundKubelets:
    """Searches a procfs for kubelets.

    `own_group`: the root of this process's cgroup namespace, None if unknown."""
    try:
        pids = processes.pids(proc)
    except OSError as error:
        return FoundKubelets(doubts=(f"{proc}: {error.strerror}",))
    candidates: list[KubeletProcess] = []
    doubts = []
    for pid in pids:
        try:
            with Process(proc, pid) as process:
                if kubelet := _kubelet(proc, process, own_group):
                    candidates.append(kubelet)
        except ProcessGoneError:
            continue
        except UnreadableError as error:
            doubts.append(str(error))
    # A kubelet that starts a program appears twice until its child executes it.
    alike = {(kubelet.pid, kubelet.argv) for kubelet in candidates}
    kubelets = [kubelet for kubelet in candidates if (kubelet.parent, kubelet.argv) not in alike]
    return FoundKubelets(tuple(kubelets), tuple(doubts[:_MAX_DOUBTS]))


def _kubelet(proc: str, process: Process, own_group: str | None) -> KubeletProcess | None:
    """The kubelet, None for any other process. The cheapest checks come first: a pod may have
    thousands of processes that call themselves kubelet.

    Raises ProcessGoneError, UnreadableError."""
    try:
        program = program_of(process.argv0())
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
        raise UnreadableError(f"{program} {process.pid}: its status has no NSpid")
    argv = tuple(process.argv())
    if not runs_kubelet(argv) or _below_pods(proc, process, own_group):
        return None
    return KubeletProcess(process.pid, program, argv, status.parent)


def _below_pods(proc: str, process: Process, own_group: str | None) -> bool:
    """Whether an ancestor belongs to a pod.

    Raises ProcessGoneError, UnreadableError."""
    for _ in range(_TRIES):
        parent = process.status().parent
        try:
            return _one_of_pods(proc, parent, own_group)
        except ProcessGoneError:
            continue
    raise UnreadableError(f"process {process.pid}: its ancestors keep changing")


def _one_of_pods(proc: str, pid: int, own_group: str | None) -> bool:
    """Whether this process or an ancestor belongs to a pod. Raises ProcessGoneError,
    UnreadableError."""
    for _ in range(_MAX_ABOVE):
        if pid == 0:
            return False
        with Process(proc, pid) as above:
            if _of_pods(above, own_group):
                return True
            pid = above.status().parent
    raise UnreadableError(f"process {pid}: it has more than {_MAX_ABOVE} ancestors")


def _of_pods(process: Process, own_group: str | None) -> bool:
    """Whether the process is in a cgroup of pods. Raises ProcessGoneError, UnreadableError."""
    groups = process.groups()
    if any(map(names.of_pods, groups.values())):
        return True
    group = of_cpuset(groups)
    if group is None:
        raise UnreadableError(
            f"process {process.pid}: /proc names no cgroup of the cpuset hierarchy"
        )
    if own_group is None:
        if group.startswith("/.."):
            raise UnreadableError(
                f"process {process.pid}: its cgroup {group} is outside of the "
                "agent's cgroup namespace, whose root is not known"
            )
        own_group = "/"
    full = absolute(group.removesuffix(" (deleted)"), own_group)
    if full is None:
        raise UnreadableError(f"process {process.pid}: its cgroup {group} is not on the host")
    return names.of_pods(full)


def keeps_state_elsewhere(proc: str, kubelet: KubeletProcess, kubelet_dir: str) -> bool:
    """Whether the kernel shows that this kubelet keeps its state in another folder than
    `kubelet_dir`. False when that is not certain: programs that contain a kubelet have more sources
    of flags than their command line."""
    folder = _root_dir(kubelet)
    if kubelet.program != KUBELET or not os.path.isabs(folder):
        return False
    try:
        # The folder as the process sees it: it may have a mount namespace of its own.
        return not os.path.samefile(f"{proc}/{kubelet.pid}/root{folder}", kubelet_dir)
    except OSError:
        return False


def _root_dir(kubelet: KubeletProcess) -> str:
    named = flags(own_arguments(kubelet.argv)).get("root-dir", "")
    return named or DEFAULT_ROOT_DIR


def program_of(word: str) -> str | None:
    """The program that the first word of a command line names."""
    name = os.path.basename(word)
    if name in _K3S_TITLES:
        return K3S
    return name if name in _NAMES else None


def hides_flags(argv: Sequence[str]) -> bool:
    """Whether k3s has replaced its command line by its name and command, as one word: flags may
    contain secrets (k3s pkg/cli/server/server.go and agent/agent.go, SetProcTitle)."""
    return os.path.basename(argv[0]) in _K3S_TITLES


def runs_kubelet(argv: Sequence[str]) -> bool:
    """Whether the program runs a kubelet: k3s has many commands."""
    if hides_flags(argv):
        return True
    if program_of(argv[0]) == K3S:
        with_kubelet = len(argv) > 1 and argv[1] in _K3S_COMMANDS
        return with_kubelet and "--disable-agent" not in argv
    return not _ANSWERS & flags(argv).keys()


def own_arguments(argv: Sequence[str]) -> list[str]:
    """The kubelet's arguments in the command line of its program."""
    if program_of(argv[0]) == KUBELET:
        return list(argv)
    passed = [
        word.partition("=")[2] if word.startswith(f"{_ARG_FLAG}=") else word
        for before, word in itertools.pairwise(argv)
        if word.startswith(f"{_ARG_FLAG}=") or before == _ARG_FLAG
    ]
    return [argv[0], *map(_flag, passed)]


def arguments_of_file(path: str, text: str) -> list[str]:
    """The flags in the file that a kubelite reads, as it reads them: without quotes, lines that
    begin with `#` ignored, and with the variables of snapd for its folders, which follow from the
    path of the file (canonical/microk8s, Kubelite-integration.patch; snapcraft.io: Environment
    variables)."""
    data = os.path.dirname(os.path.dirname(path))
    common = os.path.join(os.path.dirname(data), "common")
    for variable, value in (("SNAP_DATA", data), ("SNAP_COMMON", common)):
        text = text.replace(f"${{{variable}}}", value).replace(f"${variable}", value)
    lines = (line.strip() for line in text.splitlines())
    return [word for line in lines if line[:1] != "#" for word in _QUOTES.sub("", line).split()]


def arguments_of_k3s(contents: Sequence[Mapping[str, Any]], source: str) -> list[str]:
    """The kubelet's flags in the files of k3s, in their order: a later `kubelet-arg` replaces the
    earlier ones, a `kubelet-arg+` appends to them. Raises ConfigurationError."""
    passed: list[str] = []
    for content in contents:
        if _ARG in content:
            passed = _args(content[_ARG], source)
        passed += _args(content.get(f"{_ARG}+"), source)
    return list(map(_flag, passed))


def _args(value: Any, source: str) -> list[str]:
    many = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(each, str) for each in many):
        raise ConfigurationError(f"{source}: {_ARG}: must be a list of strings")
    return list(many)


def _flag(word: str) -> str:
    return f"--{word.lstrip('-')}"
