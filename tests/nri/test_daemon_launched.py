"""Variables and socket that a runtime passes to a plugin that it starts."""

from __future__ import annotations

import os
import socket

import pytest

from agent.nri.daemon import LaunchError, launched


def test_a_plugin_that_was_not_launched_by_the_runtime() -> None:
    environment = {"NRI_PLUGIN_NAME": "left", "PATH": "/bin"}
    assert launched(environment) is None
    assert environment == {"PATH": "/bin"}


def test_socket_name_and_index_come_from_the_runtime() -> None:
    ours, theirs = socket.socketpair()
    os.set_inheritable(ours.fileno(), True)
    environment = {
        "NRI_PLUGIN_SOCKET": str(ours.detach()),
        "NRI_PLUGIN_NAME": "topolet",
        "NRI_PLUGIN_IDX": "07",
    }
    found = launched(environment)
    assert found is not None
    assert (found.name, found.index, environment) == ("topolet", "07", {})
    assert not found.socket.get_inheritable(), "it is not for children"
    theirs.send(b"x")
    assert found.socket.recv(1) == b"x"
    found.socket.close()
    theirs.close()


@pytest.mark.parametrize("number", ["x", "-1", "100000"])
def test_an_invalid_socket_number_is_named(number: str) -> None:
    with pytest.raises(LaunchError, match=f"NRI_PLUGIN_SOCKET={number} is not a socket"):
        launched({"NRI_PLUGIN_SOCKET": number})
