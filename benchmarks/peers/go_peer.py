"""Decisions of other implementations: Go programs that link the published modules and answer
requests.

Each program is built once (minutes, with network) and kept in the cache folder; its name has the
module's version and a digest of its sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

BUILD_SECONDS = 1_800


class PeerError(Exception):
    """The program can't be built or started, or does not answer; the message has the reason."""


class Source(NamedTuple):
    """A program in a folder next to this file. `copied`: packages of the module, below its root.
    Their files are compiled together with the program's in folders of the same names, so that the
    program can use what they do not export."""

    name: str
    module: str
    copied: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return Path(__file__).resolve().parent / self.name

    @property
    def version(self) -> str:
        pins = (self.folder / "go.mod").read_text()
        found = re.search(rf"{re.escape(self.module)} (v\S+)", pins)
        assert found is not None
        return found[1]


KUBELET = Source("kubelet", "k8s.io/kubernetes")
KOORDINATOR = Source(
    "koordinator",
    "github.com/koordinator-sh/koordinator",
    copied=(
        "pkg/scheduler/plugins/deviceshare",
        "pkg/scheduler/plugins/nodenumaresource",
    ),
)
SCHEDULER_PLUGINS = Source(
    "scheduler-plugins",
    "sigs.k8s.io/scheduler-plugins",
    copied=("pkg/noderesourcetopology",),
)


class GoPeer:
    """One process that answers requests one after the other. Raises PeerError if it can't start."""

    def __init__(self, program: Path) -> None:
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen([str(program)], stdin=pipe, stdout=pipe)
        except OSError as error:
            raise PeerError(str(error)) from None

    def __enter__(self) -> GoPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def call(
        self, request: dict[str, Any], calls: int, within_seconds: float, context: str
    ) -> dict[str, Any]:
        """Returns the reply to the last of `calls` calls, with the nanoseconds of each (`ns`).
        Without a reply the benchmark ends with an error that begins with `context`."""
        try:
            return self._call(request, calls, within_seconds)
        except PeerError as error:
            raise SystemExit(f"{context}: {error}") from None

    def _call(self, request: dict[str, Any], calls: int, within_seconds: float) -> dict[str, Any]:
        """Raises PeerError; after that the process answers no more requests."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            requests.write(json.dumps({"calls": calls, **request}).encode() + b"\n")
            requests.flush()
        except BrokenPipeError:
            raise PeerError("it ended") from None
        if not select.select([replies], [], [], within_seconds)[0]:
            raise PeerError(f"no reply within {within_seconds:g} s")
        reply: dict[str, Any] = json.loads(replies.readline() or '{"error": "it ended"}')
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply


def run_peer(stack: ExitStack, source: Source, *, build: bool) -> GoPeer | str:
    """Starts a program, which runs until the stack ends, or returns the reason why it can't.
    `build`: see `program`."""
    try:
        return stack.enter_context(GoPeer(program(source, build)))
    except PeerError as error:
        return str(error)


def program(source: Source, build: bool) -> Path:
    """The program in the cache folder. Builds a missing program if `build` is true, otherwise
    raises PeerError."""
    files = sorted(each for each in source.folder.rglob("*") if each.is_file())
    digest = hashlib.sha256(b"\0".join(each.read_bytes() for each in files)).hexdigest()
    home = Path(os.environ.get("TOPOLET_CACHE") or Path.home() / ".cache" / "topolet")
    built = home / f"{source.name}-peer-{source.version}-{digest[:8]}"
    if built.exists():
        return built
    if not build:
        raise PeerError(f"the code of {source.name} is not built yet: run once without --quick")
    if shutil.which("go") is None:
        raise PeerError("go is not installed")
    print(f"building the code of {source.name}: minutes, the first time", file=sys.stderr)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            fresh = Path(folder) / built.name
            _build(source, Path(folder) / "source", fresh)
            fresh.replace(built)
    except OSError as error:
        raise PeerError(f"cache folder: {error}") from None
    return built


def _build(source: Source, folder: Path, target: Path) -> None:
    """Builds in a copy of the program's folder."""
    shutil.copytree(source.folder, folder)
    if source.copied:
        module = _go(folder, "mod", "download", "-json", f"{source.module}@{source.version}")
        root = Path(json.loads(module)["Dir"])
        for package in (root / each for each in source.copied):
            for each in package.glob("*.go"):
                if not each.name.endswith("_test.go"):
                    shutil.copyfile(each, folder / package.name / each.name)
    flags = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w")
    _go(folder, "build", *flags, "-o", str(target), ".")


def _go(folder: Path, *words: str) -> str:
    """Returns the output of the command. Raises PeerError."""
    try:
        done = subprocess.run(
            ["nice", "-n", "15", "go", *words],
            cwd=folder,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"go {words[0]} takes more than {BUILD_SECONDS} s") from None
    if done.returncode:
        raise PeerError(f"go {words[0]}: {(done.stderr.strip().splitlines() or ['fails'])[-1]}")
    return done.stdout
