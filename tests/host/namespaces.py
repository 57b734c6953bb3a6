"""Processes in network namespaces of their own, by unshare(1) and ip(8); needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or not os.path.exists("/dev/net/tun"),
    reason="needs root, ip(8) and the driver tun",
)
BUS = "tap"
"""The kernel's bus address of an interface of tun."""


TAP = "ip tuntap add dev tap0 mode tap"


@contextlib.contextmanager
def process_in_namespace(command: str = TAP) -> Iterator[int]:
    """A process in a network namespace with `lo` and what the command makes there, by default an
    interface `tap0`."""
    script = f"{command}; echo; read end"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        try:
            yield process.pid
        finally:
            process.kill()
