"""Fixtures: a relay process between the sockets `front` and `back`. The tests serve `back`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.relay_child import relay_process


@pytest.fixture
def front(tmp_path: Path) -> Path:
    return tmp_path / "front.sock"


@pytest.fixture
def relay(front: Path, back: Path) -> Iterator[subprocess.Popen[bytes]]:
    with relay_process(front, back) as process:
        yield process
