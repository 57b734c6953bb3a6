"""The relay between a client and a server of Go's gRPC, as in kubelets and runtimes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tools
from tests.relay.relay_child import TAIL, peak_mb, relay_process

CLIENT_SECONDS = 90
PEAK_MB = 96
"""64 MiB messages pass, including those that are too large for hooks: Limits.held_bytes, the
decompressed size of one request, and the windows."""


@pytest.fixture(scope="module")
def peer() -> Path:
    where = tools.built("grpc-peer")
    if isinstance(where, str):
        pytest.skip(where)
    return where / "grpc-peer"


@pytest.fixture
def back(peer: Path, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "back.sock"
    with subprocess.Popen([peer, "serve", path], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield path
        server.kill()


def outcome(peer: Path, path: Path, tail_bytes: int) -> list[str]:
    """The results that the client of grpc-peer prints."""
    done = subprocess.run(
        [peer, "call", path, str(tail_bytes)],
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(4 * CLIENT_SECONDS)
def test_all_calls_at_once_on_one_connection_have_the_same_results_as_directly(
    peer: Path, back: Path, tmp_path: Path
) -> None:
    """Calls of all sizes, compressed ones, streams, deadlines, cancelled calls, statuses with
    details, 64 MiB messages."""
    direct = outcome(peer, back, 0)
    with relay_process(tmp_path / "front.sock", back) as relay:
        assert outcome(peer, tmp_path / "front.sock", len(TAIL)) == direct
        assert peak_mb(relay.pid) < PEAK_MB
    assert not [line for line in direct if "right false" in line]
