"""Both ends of the doorbell over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model import doorbell as rings
from agent.model.doorbell import Asked, Created, Look, PodComes, PodFailed
from agent.node import doorbell
from agent.node.doorbell import Doorbell
from agent.proxy.bell import Bell

COMES = PodComes("u", "ns", "n", {"é": "1"}, {"a": "{}"}, "/kubepods/podu")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "doorbell.sock")


@pytest.fixture
def ears(path: str) -> Iterator[Doorbell]:
    it = Doorbell(path)
    yield it
    it.close()


@pytest.fixture
def bell(path: str) -> Iterator[Bell]:
    it = Bell(path)
    yield it
    it.close()


def test_every_ring_is_heard_in_order(ears: Doorbell, bell: Bell) -> None:
    sent = [COMES, PodFailed("u"), Created("c", Asked("0-3")), Look()]
    for ring in sent:
        bell.ring(ring)
    assert ears.wait(10) == sent
    assert ears.wait(0) == []
    assert (bell.rings, bell.undelivered) == (4, 0)


@pytest.mark.parametrize(
    "datagram", [b"", b"\xff", b'{"type":"failed","uid":"\xff"}', b"{}", b"[" * 90_000]
)
def test_hostile_datagram_is_dropped_and_the_next_heard(
    ears: Doorbell, bell: Bell, path: str, datagram: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(datagram, path)
    bell.ring(Look())
    assert ears.wait(10) == [Look()]


def test_who_rings_without_end_does_not_keep_the_agent_from_looking(
    ears: Doorbell, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "MOST_RINGS", 3)
    for _ in range(5):
        bell.ring(Look())
    assert [len(ears.wait(10)), len(ears.wait(10))] == [3, 2]


def test_wake_ends_a_wait_and_is_heard_even_before_it(ears: Doorbell) -> None:
    ears.wake()
    assert ears.wait(60) == []
    heard: list[list[rings.Ring]] = []
    waiting = threading.Thread(target=lambda: heard.append(ears.wait(60)))
    waiting.start()
    ears.wake()
    waiting.join(10)
    assert heard == [[]]


def test_only_a_ring_ends_a_rest(ears: Doorbell, bell: Bell) -> None:
    ears.wake()
    ring = threading.Timer(0.2, lambda: bell.ring(Look()))
    ring.start()
    assert ears.wait(60, 60) == [Look()]
    ring.join()
    ears.wake()
    assert ears.wait(60, 0.01) == [], "heard when the rest is over"


def test_agent_that_is_away_and_returns(path: str, bell: Bell) -> None:
    bell.ring(Look())
    first = Doorbell(path)
    bell.ring(Look())
    assert first.wait(10) == [Look()]
    first.close()
    bell.ring(Look())
    second = Doorbell(path)
    bell.ring(COMES)
    assert second.wait(10) == [COMES]
    assert (bell.rings, bell.undelivered) == (4, 2)
    second.close()


def test_socket_left_by_a_killed_agent_is_replaced_and_private(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(path)
    ears = Doorbell(path)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    ears.close()
    assert not Path(path).exists()
