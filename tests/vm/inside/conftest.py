"""One containerd for all tests in the guest."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.fixtures.containerd import Containerd
from tests.waiting import DEADLINE_SECONDS


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """Its files are on tmpfs, which does not support overlays."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    runtime = Containerd(folder, snapshotter="native")
    runtime.start(DEADLINE_SECONDS)
    yield runtime
    runtime.stop()
    shutil.rmtree(folder, ignore_errors=True)
