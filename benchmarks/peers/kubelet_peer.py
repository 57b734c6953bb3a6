"""The decisions of a kubelet, asked of a Go program of ours that links the published module.

It is built once (minutes, with network) and kept in the cache folder, named by what it is built of.
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
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCE = Path(__file__).resolve().parent / "kubelet"
BUILD_SECONDS = 1_800


class PeerError(Exception):
    """No answer can be had, and why."""


class KubeletPeer:
    """One process that is asked in turns. Raises PeerError where it can't be started."""

    def __init__(self, program: Path) -> None:
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen([str(program)], stdin=pipe, stdout=pipe)
        except OSError as error:
            raise PeerError(str(error)) from None

    def __enter__(self) -> KubeletPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, question: dict[str, Any], calls: int, within_seconds: float) -> dict[str, Any]:
        """The answer to the last of so many calls, with `ns` of each. Raises PeerError, after which
        no more can be asked."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(json.dumps({"calls": calls, **question}).encode() + b"\n")
            asked.flush()
        except BrokenPipeError:
            raise PeerError("it ended") from None
        if not select.select([answers], [], [], within_seconds)[0]:
            raise PeerError(f"no answer within {within_seconds:g} s")
        answer: dict[str, Any] = json.loads(answers.readline() or '{"error": "it ended"}')
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer


def program(build: bool) -> Path:
    """The built program, from the cache folder if it is there; else it is built, or PeerError."""
    sources = sorted(SOURCE.iterdir())
    version = re.search(r"k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text())
    assert version is not None
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    home = Path(os.environ.get("TOPOLET_CACHE") or Path.home() / ".cache" / "topolet")
    built = home / f"kubelet-peer-{version[1]}-{digest[:8]}"
    if built.exists():
        return built
    if not build:
        raise PeerError("the kubelet's code is not built yet: run once without --quick")
    if shutil.which("go") is None:
        raise PeerError("no go here")
    print("building the kubelet's code: minutes, the first time", file=sys.stderr)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            fresh = Path(folder) / built.name
            _build(fresh)
            fresh.replace(built)
    except OSError as error:
        raise PeerError(f"cache folder: {error}") from None
    return built


def _build(target: Path) -> None:
    flags = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w")
    try:
        done = subprocess.run(
            ["go", "build", *flags, "-o", str(target), "."],
            cwd=SOURCE,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"go build takes more than {BUILD_SECONDS} s") from None
    if done.returncode:
        raise PeerError(f"go build: {(done.stderr.strip().splitlines() or ['fails'])[-1]}")
