"""The view of PodResources, with a gRPC server as the kubelet."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pod_resources import Allocatable
from agent.node.kubelet_view import PodResourcesAnswer, PodResourcesView
from agent.proto import podresources_pb2 as pb
from tests.kubelet.fake_kubelet import FakeKubelet, serving
from tests.waiting import eventually

ALLOCATABLE = "GetAllocatableResources"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet() -> FakeKubelet:
    """A kubelet without a server."""
    fake = FakeKubelet()
    fake.set_pods(pb.PodResources(namespace="ns", name="a"))
    fake.answers[ALLOCATABLE] = pb.AllocatableResourcesResponse(cpu_ids=[1])
    return fake


class WatchedView:
    """A view that counts its notifications."""

    def __init__(self, path: Path | str, period_seconds: float) -> None:
        self.notifications = 0
        self.view = PodResourcesView(str(path), self._count, period_seconds, 0.01, 5.0)

    def _count(self) -> None:
        self.notifications += 1

    def last(self) -> PodResourcesAnswer:
        last = self.view.last_answer()
        assert last is not None
        return last

    def names(self) -> list[str]:
        last = self.view.last_answer()
        return [] if last is None else [pod.name for pod in last.pods]


@contextlib.contextmanager
def watching(path: Path | str, period_seconds: float = 0.01) -> Iterator[WatchedView]:
    watched = WatchedView(path, period_seconds)
    try:
        yield watched
    finally:
        watched.view.close()


def test_answer_is_kept_across_the_kubelets_restart(
    path: Path, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(path) as watched:
        assert watched.view.last_answer() is None
        with serving(path, kubelet):
            eventually("the kubelet has answered", watched.view.last_answer)
            assert watched.last().allocatable == Allocatable(CpuSet([1]))
        first = watched.last().called_at
        eventually("its absence is logged", lambda: "WARNING" in levels(caplog))
        assert watched.names() == ["a"]
        restarted = FakeKubelet()
        restarted.answers = dict(kubelet.answers)
        restarted.set_pods(pb.PodResources(namespace="ns", name="b"))
        with serving(path, restarted):
            eventually("the restarted kubelet has answered", lambda: watched.names() == ["b"])
            assert watched.last().called_at > first
    assert watched.notifications == 2


def test_an_equal_answer_triggers_nothing(path: Path, kubelet: FakeKubelet) -> None:
    with serving(path, kubelet), watching(path) as watched:
        eventually("called repeatedly", lambda: kubelet.call_count("List") > 5)
        assert watched.notifications == 1
        kubelet.answers[ALLOCATABLE] = pb.AllocatableResourcesResponse(cpu_ids=[1, 2])
        eventually("the allocatable resources changed", lambda: watched.notifications == 2)


def test_hanging_kubelet_delays_nothing_and_its_last_answer_is_kept(
    path: Path, kubelet: FakeKubelet
) -> None:
    with serving(path, kubelet), watching(path) as watched:
        eventually("the kubelet has answered", watched.view.last_answer)
        kubelet.silent.set()
        before = kubelet.blocked_calls
        eventually("it hangs", lambda: kubelet.blocked_calls > before)
        assert watched.names() == ["a"], "while a call is in progress"
        kubelet.set_pods()
        kubelet.silent.clear()
        eventually("it answers again", lambda: watched.last().pods == ())


@pytest.mark.parametrize(
    "answer",
    [
        pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(name="nameless")]),
        b"\xff",
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
    ],
)
def test_failure_is_logged_once_and_leaves_the_last_answer(
    path: Path,
    kubelet: FakeKubelet,
    caplog: pytest.LogCaptureFixture,
    answer: pb.ListPodResourcesResponse | bytes | tuple[grpc.StatusCode, str],
) -> None:
    valid = kubelet.answers["List"]
    with serving(path, kubelet), watching(path) as watched:
        eventually("the kubelet has answered", watched.view.last_answer)
        for _ in range(2):
            kubelet.answers["List"] = answer
            calls = kubelet.call_count("List") + 5
            eventually(
                "called without an answer", lambda calls=calls: kubelet.call_count("List") > calls
            )
            assert watched.names() == ["a"]
            kubelet.answers["List"] = valid
            before = time.monotonic()
            eventually("it answers again", lambda before=before: watched.last().called_at > before)
    assert levels(caplog) == ["WARNING", "WARNING"], "once each time"
    assert all(f"{path}: List: " in each for each in caplog.messages)


def test_kubelet_without_get_allocatable_is_used_and_logged_once(
    path: Path, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    del kubelet.answers[ALLOCATABLE]
    with serving(path, kubelet), watching(path) as watched:
        eventually("called repeatedly", lambda: kubelet.call_count("List") > 5)
        assert watched.names() == ["a"]
        assert watched.last().allocatable is None
    (line,) = caplog.messages
    assert f"{path}: {ALLOCATABLE}: " in line


def test_absent_kubelet_gives_no_answer_and_one_info_line(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with socket.socket(socket.AF_UNIX) as listener, watching(path) as watched:
        eventually("its absence is logged", lambda: levels(caplog) == ["INFO"])
        listener.bind(str(path))
        listener.listen()
        # Until now the view found no listener, perhaps several times.
        listener.accept()[0].close()
        listener.close()
        assert watched.view.last_answer() is None
    assert levels(caplog) == ["INFO"]


def test_request_polls_before_the_period_ends(path: Path, kubelet: FakeKubelet) -> None:
    with serving(path, kubelet), watching(path, period_seconds=1000.0) as watched:
        eventually("the kubelet has answered", watched.view.last_answer)
        kubelet.set_pods()
        watched.view.refresh()
        eventually("it was called again", lambda: watched.last().pods == ())


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.levelname for each in caplog.records]
