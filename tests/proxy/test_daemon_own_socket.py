"""The file of the proxy's socket is removed or replaced."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.listener import Listener
from agent.proxy.daemon import OwnSocket


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(str(tmp_path / "cri.sock"))
    yield made
    made.close()


def not_called(listening: socket.socket) -> None:
    raise AssertionError("no new socket was needed")


def accepts(listening: socket.socket, path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        accepted, _ = listening.accept()
        accepted.close()
    return True


def test_a_removed_socket_is_made_again(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    own, found = OwnSocket(listener.path, listener), list[socket.socket]()
    own.check(not_called)
    assert own.lost() == ""
    former = listener.socket
    os.unlink(listener.path)
    assert own.lost() == (
        f"{listener.path} does not exist: the proxy makes it again as soon as the path is free"
    )
    own.check(found.append)
    assert found == [listener.socket]
    assert former.fileno() == -1
    assert own.lost() == ""
    assert own.recreated == 1
    assert accepts(listener.socket, listener.path)
    assert os.stat(listener.path).st_mode & 0o777 == 0o600
    assert f"{listener.path} did not exist: the proxy made it again" in caplog.text


def test_a_socket_of_somebody_else_stays(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own = OwnSocket(listener.path, listener)
    os.unlink(listener.path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(listener.path)
        for _ in range(2):
            own.check(not_called)
        assert caplog.text.count(f"{listener.path} is not the proxy's") == 1
        assert own.lost()
    os.unlink(listener.path)
    own.check(lambda listening: None)
    assert own.lost() == ""
    assert "clients find the proxy" in caplog.text


def test_a_folder_that_is_gone_is_awaited(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    listener = Listener(str(folder / "cri.sock"))
    own = OwnSocket(listener.path, listener)
    folder.rename(tmp_path / "moved")
    own.check(not_called)
    assert "does not exist" in own.lost()
    folder.mkdir()
    own.check(lambda listening: None)
    assert own.lost() == ""
    listener.close()


def test_the_service_manager_makes_its_socket_again(tmp_path: Path) -> None:
    """Also a proxy that starts while the file is missing says so."""
    path = str(tmp_path / "cri.sock")
    text = f"{path} does not exist: systemctl restart topolet-proxy.socket makes it again"
    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(path)
        own = OwnSocket(path, None)
        assert own.lost() == ""
        os.unlink(path)
        own.check(not_called)
        assert own.lost() == OwnSocket(path, None).lost() == text
