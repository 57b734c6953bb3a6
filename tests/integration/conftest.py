"""One containerd a session; a node of our own processes a test."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from demo import containerd as private
from demo.containerd import Containerd
from tests.integration.harness import TestNode, fresh_node


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A private one, below a short path: a socket's may have 107 characters."""
    if os.geteuid():
        pytest.skip("needs root: containers and cgroups are real")
    if lacking := private.missing():
        pytest.skip(f"not on this machine: {', '.join(lacking)}")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two CPUs")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    runtime = Containerd(folder)
    runtime.start()
    yield runtime
    runtime.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(containerd: Containerd) -> Iterator[TestNode]:
    """Agent and proxy are started by the test."""
    with fresh_node(containerd) as it:
        yield it
