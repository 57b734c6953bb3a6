"""A private containerd in one folder: its own socket, state and image, beside any other."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable

from agent.cri.client import Cri
from agent.rpc.grpc import RpcError
from demo import image, runtime_config
from demo.pods import remove_pod

REQUIRED = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")


class ContainerdError(RuntimeError):
    """containerd could not be started or used; the text ends with what it logged."""


def missing(programs: pathlib.Path | None = None) -> list[str]:
    """Programs that a private containerd needs and neither `programs` nor this machine has."""
    lacking = [name for name in REQUIRED if shutil.which(name, path=_path(programs)) is None]
    return lacking + (["busybox"] if image.busybox() is None else [])


class Containerd:
    """Starts on `start`, ends with all its containers on `stop`; `kill` is SIGKILL.

    A folder whose containerd was killed can be started again: its containers are still there.
    `programs`: a folder with another containerd, shim and ctr than those of PATH.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        snapshotter: str = "overlayfs",
        programs: pathlib.Path | None = None,
    ) -> None:
        self.folder = folder
        self.socket = str(folder / "containerd.sock")
        self.nri_socket = str(folder / "nri.sock")
        """Where plugins connect; only containerd 2 listens there."""
        self._snapshotter = snapshotter
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> pathlib.Path:
        return self.folder / "containerd.log"

    def start(self, deadline_seconds: float = 30.0) -> None:
        """Returns when the runtime answers and the image is there. Raises ContainerdError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._end_leftover()
        config = self.folder / "config.toml"
        config.write_text(
            runtime_config.text(
                _major(self._programs), self.folder, self.socket, image.NAME, self._snapshotter
            )
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [_program("containerd", self._programs), "-c", str(config)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _path(self._programs)},
                start_new_session=True,
            )
        (self.folder / "pid").write_text(str(self._process.pid))
        self._wait_until_it_answers(deadline_seconds)
        import_image(self.socket, self._programs)

    def kill(self) -> None:
        """SIGKILL; shims and containers live on."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Removes every pod, then ends the runtime."""
        if self._process is None:
            return
        remove_all_pods(self.socket)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        (self.folder / "pid").unlink(missing_ok=True)

    def death(self) -> str:
        """How it ended, "" while it runs."""
        code = self._process.poll() if self._process else None
        return "" if code is None else f"exit code {code}"

    def import_full_image(self, name: str) -> None:
        """One more image, which has all of busybox's applets. Raises ContainerdError."""
        _import(self.socket, self._programs, name, image.all_applets(_busybox()))

    def ctr(self, *words: str) -> str:
        """Runs `ctr` in the CRI's namespace. Raises ContainerdError."""
        return ctr(self.socket, *words, programs=self._programs)

    def _wait_until_it_answers(self, deadline_seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + deadline_seconds
        cri = Cri(self.socket, 2.0)
        try:
            while True:
                try:
                    cri.version()
                    return
                except RpcError as error:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        tail = self.log.read_text(errors="replace")[-2000:]
                        raise ContainerdError(
                            f"containerd does not answer: {error}\n{tail}"
                        ) from None
                    time.sleep(0.05)
        finally:
            cri.close()

    def _end_leftover(self) -> None:
        """A containerd that an earlier run left in this folder would hold its database's lock."""
        try:
            pid = int((self.folder / "pid").read_text())
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return
        if str(self.folder / "config.toml").encode() not in command:
            return
        os.kill(pid, signal.SIGKILL)
        while pathlib.Path(f"/proc/{pid}/stat").exists():
            time.sleep(0.01)


def ctr(socket: str, *words: str, programs: pathlib.Path | None = None) -> str:
    """Runs `ctr` in the CRI's namespace of a containerd. Raises ContainerdError."""
    return _output(_program("ctr", programs), "-a", socket, "-n", "k8s.io", *words)


def import_image(socket: str, programs: pathlib.Path | None = None) -> None:
    """Makes the image known to a containerd that has it not. Raises ContainerdError."""
    if image.NAME not in ctr(socket, "images", "ls", "-q", programs=programs).split():
        _import(socket, programs, image.NAME, ("sh",))


def remove_all_pods(socket: str) -> None:
    """Stops and removes every sandbox of a runtime, with its containers."""
    cri = Cri(socket)
    try:
        for sandbox in cri.sandboxes():
            remove_pod(cri, sandbox.id)
    finally:
        cri.close()


def _import(socket: str, programs: pathlib.Path | None, name: str, applets: Iterable[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = pathlib.Path(folder, "image.tar")
        image.write_archive(archive, _busybox(), name, applets)
        ctr(socket, "images", "import", str(archive), programs=programs)


def _busybox() -> str:
    binary = image.busybox()
    if binary is None:
        raise ContainerdError("busybox is missing (Debian: busybox-static)")
    return binary


def _major(programs: pathlib.Path | None) -> int:
    """The first number of containerd's version, such as 1 or 2. Raises ContainerdError."""
    said = _output(_program("containerd", programs), "--version")
    version = re.search(r" v?(\d+)\.", said)
    if version is None:
        raise ContainerdError(f"containerd --version: no version in {said!r}")
    return int(version[1])


def _program(name: str, programs: pathlib.Path | None) -> str:
    """Its path. Raises ContainerdError."""
    found = shutil.which(name, path=_path(programs))
    if found is None:
        raise ContainerdError(f"{name} is missing (Debian: containerd)")
    return found


def _output(program: str, *words: str) -> str:
    done = subprocess.run(
        [program, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": _path()},
        check=False,
    )
    if done.returncode:
        raise ContainerdError(
            f"{pathlib.Path(program).name} {' '.join(words)}: {done.stderr.strip()}"
        )
    return done.stdout


def _path(programs: pathlib.Path | None = None) -> str:
    first = f"{programs}:" if programs else ""
    return first + os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
