"""A hostile container runtime neither blocks nor exhausts the agent."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cri.client import Cri
from agent.cri.events import ContainerEvents
from agent.model.linux_resources import LinuxResources
from agent.rpc.grpc import RpcError
from tests.cri.hostile import (
    ANSWERS,
    Answer,
    endless_headers,
    endless_pings,
    serving,
    wrong_bytes,
    wrong_status,
)
from tests.waiting import eventually

CALL_SECONDS = 1.0
MAX_SECONDS = 20.0
MAX_GROWTH_BYTES = 96 << 20
"""A reply may have 16 MiB, which are in memory as bytes and as a message."""

CALLS: dict[str, Callable[[Cri], object]] = {
    "Version": Cri.version,
    "ListPodSandbox": Cri.sandboxes,
    "ListContainers": Cri.containers,
    "PodSandboxStatus": lambda cri: cri.sandbox_status("s"),
    "ContainerStatus": lambda cri: cri.container_status("c", carriers=True),
    "UpdateContainerResources": lambda cri: cri.update("c", LinuxResources("0-3")),
}


def _grown_bytes(before: int) -> int:
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before


@pytest.mark.timeout(len(CALLS) * MAX_SECONDS)
@pytest.mark.parametrize("answer", ANSWERS, ids=[each.__name__ for each in ANSWERS])
def test_every_call_ends_with_an_answer_or_an_rpc_error(tmp_path: Path, answer: Answer) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    path = tmp_path / "cri"
    with serving(path, answer):
        for call in CALLS.values():
            cri = Cri(str(path), CALL_SECONDS)
            with contextlib.suppress(RpcError):
                call(cri)
            cri.close()
    assert _grown_bytes(before) < MAX_GROWTH_BYTES


@pytest.mark.parametrize("answer", [endless_headers, endless_pings, wrong_bytes, wrong_status])
def test_events_of_a_hostile_runtime_do_not_end_the_thread(tmp_path: Path, answer: Answer) -> None:
    ends: list[None] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    path = tmp_path / "cri"
    with serving(path, answer):
        events = ContainerEvents(str(path), lambda: ends.append(None))
        eventually("two connections have ended", lambda: len(ends) >= 2)
        events.close()
    assert _grown_bytes(before) < MAX_GROWTH_BYTES
