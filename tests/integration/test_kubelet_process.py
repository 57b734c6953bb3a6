"""Processes named kubelet, in addition to a real one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Hierarchy
from agent.model.settings.agent import AgentSettings
from agent.node import kubelet_configuration
from agent.node.kubelet_process import FoundKubelets, KubeletProcess, find
from tests.fixtures.cgroups import remove_cgroups
from tests.integration.kubelet.standalone import Kubelet
from tests.waiting import eventually

FLAGS = ("--cpu-manager-policy=static", "--reserved-cpus=0-1", "--config=/nonexistent")
NOBODY = 65534


class Impostors:
    """Starts shells named kubelet, each in another way."""

    def __init__(self, folder: Path, pods: str) -> None:
        """`pods`: a cgroup below a root of pods."""
        self.file = folder / "kubelet"
        self.file.symlink_to("/bin/sh")
        self.ended = contextlib.ExitStack()
        self._pods = pods
        self._hierarchy = Hierarchy()

    def words(self, first: str, script: str = "read line") -> list[str]:
        return [first, "-c", script, "sh", *FLAGS]

    def start(self, *words: str, **options: object) -> int:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,  # type: ignore[call-overload]
        )
        self.ended.callback(self._end, process)
        return int(process.pid)

    def in_a_pid_namespace(self) -> int:
        pid = self.start("unshare", "--pid", "--fork", *self.words(str(self.file)))
        return _only_child(pid)

    def in_a_pod(self) -> int:
        join = f'echo $$ >{self._folder(self._pods)}/cgroup.procs && exec "$@"'
        pid = self.start("sh", "-c", join, "sh", *self.words(str(self.file)))
        eventually("it is the kubelet of a pod", lambda: _name(pid) == "kubelet")
        return pid

    def below_a_pod(self) -> int:
        """A child of a process of a pod, which left its cgroup."""
        leave = f'echo $$ >{self._folder("/")}/cgroup.procs && exec "$@"'
        join = f"echo $$ >{self._folder(self._pods)}/cgroup.procs && sh -c '{leave}' sh \"$@\"; :"
        pid = self.start("sh", "-c", join, "sh", *self.words(str(self.file)))
        return _only_child(pid)

    def of_another_user(self) -> int:
        return self.start(*self.words(str(self.file)), user=NOBODY)

    def by_its_argv0(self) -> int:
        return self.start(*self.words("kubelet"), executable="/bin/sh")

    def of_the_host(self) -> int:
        """A process that can't be distinguished from a kubelet."""
        return self.start(*self.words(str(self.file)))

    def _folder(self, group: str) -> str:
        return self._hierarchy.path + group.rstrip("/")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
        process.kill()
        process.communicate()


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _calls_itself_kubelet(pid: int) -> bool:
    """Whether the process has its arguments: during execve it has none for a moment."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"kubelet")


def _only_child(pid: int) -> int:
    def child_is_kubelet() -> bool:
        return any(_name(each) == "kubelet" for each in _children(pid))

    eventually("its child is named kubelet", child_is_kubelet)
    (child,) = _children(pid)
    return child


IMPOSTORS = [
    Impostors.in_a_pid_namespace,
    Impostors.in_a_pod,
    Impostors.below_a_pod,
    Impostors.of_another_user,
    Impostors.by_its_argv0,
]


@pytest.fixture
def impostors() -> Iterator[Impostors]:
    # Pytest's folders are accessible to root only.
    with tempfile.TemporaryDirectory(prefix="topolet-") as name:
        os.chmod(name, 0o755)
        yield from _impostors(Path(name))


def _impostors(folder: Path) -> Iterator[Impostors]:
    top = f"topolet-test-{uuid.uuid4().hex[:8]}"
    hierarchy = Hierarchy()
    group = Path(hierarchy.path) / top / "kubepods" / "podx"
    group.mkdir(parents=True)
    if hierarchy.version == 1:
        for each in (group.parent.parent, group.parent, group):
            for file in ("cpuset.cpus", "cpuset.mems"):
                (each / file).write_text((each.parent / file).read_text())
    it = Impostors(folder, f"/{top}/kubepods/podx")
    try:
        with it.ended:
            yield it
    finally:
        eventually("its cgroups are removed", lambda: remove_cgroups(top) or not group.exists())


def found() -> dict[int, KubeletProcess]:
    """All kubelets that are found, by pid: other tests may run some at the same time."""
    it = find("/proc")
    assert it.doubts == ()
    return {each.pid: each for each in it.kubelets}


def test_a_process_of_the_host_counts_as_the_kubelet(impostors: Impostors) -> None:
    """A counter-check: without the differences above, the process is found."""
    pid = impostors.of_the_host()
    eventually("it is found", lambda: pid in found())


def test_the_kubelet_is_found_among_all_of_them(impostors: Impostors, kubelet: Kubelet) -> None:
    strangers = {impostor(impostors) for impostor in IMPOSTORS}
    for pid in strangers:
        eventually("it calls itself kubelet", lambda pid=pid: _calls_itself_kubelet(pid))
    all_found = found()
    assert kubelet.pid in all_found
    assert not strangers & all_found.keys()
    it = FoundKubelets(tuple(all_found.values())).of_folder("/", str(kubelet.root))
    assert it is not None
    assert it.pid == kubelet.pid
    settings = AgentSettings(kubelet_dir=str(kubelet.root))
    reading = kubelet_configuration.read(settings, lambda: "/")
    assert not any(reading.problems.values()), reading.problems
    assert reading.whole is not None
    assert (reading.whole.static, reading.whole.reserved_cpus) == (True, kubelet.reserved)
    assert reading.whole.source == f"kubelet {kubelet.pid}, {kubelet.folder / 'config.json'}"
