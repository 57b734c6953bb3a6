import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model import doorbell
from agent.model.doorbell import Asked, Created, Look, Ring
from agent.proxy.bell import MOST_KEPT, Bell


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Bell]:
    bell = Bell(str(tmp_path / "bell"))
    yield bell
    bell.close()


def heard(path: Path, bell: Bell, then: Ring) -> list[Ring]:
    """What an agent hears that comes just before one more ring."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ear:
        ear.bind(str(path))
        bell.ring(then)
        rings = []
        while True:
            try:
                rings.append(doorbell.decode(ear.recv(1 << 16)))
            except BlockingIOError:
                path.unlink()
                return rings


def test_creations_are_told_when_the_agent_is_back_and_once(bell: Bell, tmp_path: Path) -> None:
    for ring in (Created("c1", Asked("0-1")), Look(), Created("c2", Asked())):
        bell.ring(ring)
    path = tmp_path / "bell"
    assert heard(path, bell, Look()) == [
        Look(),
        Created("c1", Asked("0-1")),
        Created("c2", Asked()),
    ]
    assert heard(path, bell, Look()) == [Look()]
    assert (bell.rings, bell.undelivered) == (5, 3)


def test_agent_that_stays_away_costs_bounded_memory(bell: Bell, tmp_path: Path) -> None:
    for number in range(MOST_KEPT + 5):
        bell.ring(Created(f"c{number}", Asked()))
    told: list[Ring] = []
    while (rings := heard(tmp_path / "bell", bell, Look())) != [Look()]:
        told += [ring for ring in rings if ring != Look()]
    assert told == [Created(f"c{number}", Asked()) for number in range(5, MOST_KEPT + 5)]
