"""A private containerd for benchmarks, with a pod for created containers, and more pods."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.cri.client import Cri
from agent.proto import cri_pb2 as pb
from tests import tools
from tests.fixtures import containerd
from tests.fixtures.cgroups import OwnCgroup, make_cgroup
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)

_BARE = "sandbox-"
_PROGRAM = "/program"


class NoRuntimeError(Exception):
    """The reason why no runtime can run here."""


def with_events() -> Path:
    """The programs of a containerd that sends events to every client: 2 and later. Raises
    NoRuntimeError."""
    programs = tools.built("containerd")
    if isinstance(programs, str):
        raise NoRuntimeError(programs)
    return programs


def workloads(folder: Path, name: str = "load") -> Path:
    """The program of load.c, or of another one here, compiled in the folder. Raises
    NoRuntimeError."""
    if shutil.which("gcc") is None:
        raise NoRuntimeError("gcc is not installed")
    source, program = Path(__file__).with_name(f"{name}.c"), folder / name
    words = ["gcc", "-O2", "-static", "-pthread", "-o", str(program), str(source)]
    subprocess.run(words, check=True)
    return program


class Program:
    """A pod of `Runtime.run_program`."""

    def __init__(self, cri: Cri, spec: PodSpec, sandbox: str, container: str) -> None:
        self.spec = spec
        self.group = f"{spec.cgroup_parent()}/{container}"
        self._cri, self._sandbox, self._container = cri, sandbox, container

    def update(self, **resources: int | str) -> None:
        """`resources`: fields of a LinuxContainerResources."""
        update_container(self._cri, self._container, **resources)

    def remove(self) -> None:
        remove_pod(self._cri, self._sandbox)


class Runtime:
    """`programs`: a folder with another containerd than that of this machine. Raises
    NoRuntimeError."""

    def __init__(self, programs: Path | None = None) -> None:
        if os.geteuid():
            raise NoRuntimeError("needs root: containers and cgroups are real")
        if lacking := containerd.missing(programs):
            raise NoRuntimeError(f"not installed: {', '.join(lacking)}")
        self._folder = Path(tempfile.mkdtemp(prefix="topolet-"))
        self._cgroup = OwnCgroup("topolet-benchmark", self._folder.name)
        self._containerd = containerd.Containerd(self._folder, programs=programs)
        self.socket = self._containerd.socket
        self._numbers = itertools.count(1)
        try:
            self._cgroup.claim()
            self._containerd.start()
            self._cri = Cri(self.socket)
            self._spec = PodSpec("benchmark", "LS", cgroup_root=self._cgroup.root)
            self._sandbox = run_sandbox(self._cri, self._spec)
        except (containerd.ContainerdError, OSError) as error:
            self._close()
            raise NoRuntimeError(str(error)[-200:]) from None

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cri.close()
        self._close()

    def create_request(self) -> bytes:
        """A request for a container with a new name."""
        name = f"c{next(self._numbers)}"
        return create_request(self._spec, self._sandbox, name).SerializeToString()

    def sandbox_request(self) -> bytes:
        """A request for the sandbox of a new pod, whose cgroup exists as under a kubelet."""
        spec = PodSpec(f"{_BARE}{next(self._numbers)}", "LS", cgroup_root=self._cgroup.root)
        make_cgroup(spec.cgroup_parent())
        return pb.RunPodSandboxRequest(config=spec.config()).SerializeToString()

    def remove_sandboxes(self) -> None:
        """Removes the pods of `sandbox_request`."""
        for sandbox in self._cri.sandboxes():
            if sandbox.name.startswith(_BARE):
                remove_pod(self._cri, sandbox.id)

    def run_owner(self) -> None:
        """Starts a pod that owns the last CPU of this machine."""
        last = str(max(os.sched_getaffinity(0)))
        run_pod(self._cri, PodSpec("owner", "LSE", last, cgroup_root=self._cgroup.root))

    def run(self, name: str, uid: str) -> None:
        """Starts a pod, as the kubelet does for a pod of the API."""
        run_pod(self._cri, PodSpec(name, "LS", uid=uid, cgroup_root=self._cgroup.root))

    def run_program(
        self,
        spec: PodSpec,
        program: Path,
        *words: str,
        device: str = "",
        cpus: str = "",
        folders: Sequence[str] = (),
    ) -> Program:
        """Starts a pod with one container that runs a program. The spec's root is ignored.

        `device`: the path of a device that it may write.
        `cpus`: where it may run; all CPUs if empty.
        `folders`: those of the machine that it has too, such as those of its libraries."""
        spec.cgroup_root = self._cgroup.root
        sandbox = run_sandbox(self._cri, spec)
        request = create_request(spec, sandbox)
        del request.config.command[:]
        request.config.command.extend((_PROGRAM, *words))
        request.config.mounts.add(container_path=_PROGRAM, host_path=str(program), readonly=True)
        for folder in folders:
            request.config.mounts.add(container_path=folder, host_path=folder)
        if device:
            request.config.devices.add(container_path=device, host_path=device, permissions="rw")
        request.config.linux.resources.cpuset_cpus = cpus
        container = create_container(self._cri, request)
        start_container(self._cri, container)
        return Program(self._cri, spec, sandbox, container)

    def clear(self) -> None:
        """Removes all pods."""
        containerd.remove_all_pods(self.socket)

    def containers(self) -> int:
        """The number of containers."""
        return len(self._cri.containers())

    def _close(self) -> None:
        self._containerd.stop()
        self._cgroup.remove()
        shutil.rmtree(self._folder, ignore_errors=True)
