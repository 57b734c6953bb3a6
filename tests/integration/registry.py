"""Debian's docker-registry on a loopback address, for which containerd uses plain HTTP."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests import tools
from tests.fixtures.containerd import Containerd
from tests.fixtures.ports import free_port
from tests.waiting import eventually


class Registry:
    """`address`: the host and port in the names of its images."""

    def __init__(self, address: str) -> None:
        self.address = address

    def push(self, runtime: Containerd, name: str) -> str:
        """Pushes a busybox image and removes it from the runtime; its full name."""
        full = f"{self.address}/{name}"
        before = set(runtime.ctr("images", "ls", "-q").split())
        runtime.import_full_image(full)
        runtime.ctr("images", "push", "--plain-http", full)
        # The CRI plugin adds a second name, the image's id.
        added = set(runtime.ctr("images", "ls", "-q").split()) - before
        runtime.ctr("images", "rm", "--sync", *added)
        return full


@contextlib.contextmanager
def running(
    folder: pathlib.Path, http: Mapping[str, Any] | None = None, **sections: Any
) -> Iterator[Registry]:
    """An empty registry that stores images below `folder`. Skips the test without a program.

    `http`: fields of that section of its configuration. `sections`: its further sections."""
    program = tools.unpacked("docker-registry")
    if program is None:
        pytest.skip("no docker-registry here (tests/tools/prepare fetches it)")
    port = free_port()
    config = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"127.0.0.1:{port}", **(http or {})},
        **sections,
    }
    path = folder / "registry.yml"
    path.write_text(json.dumps(config))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(path)], stdout=log, stderr=log)
    try:
        eventually("the registry accepts", lambda: _accepts(port))
        yield Registry(f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
