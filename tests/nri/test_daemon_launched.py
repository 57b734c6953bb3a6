"""The variables and the socket that a runtime passes to a plugin that it launches."""

from __future__ import annotations

import os
import socket

import pytest

from agent.nri.daemon import LaunchError, launched


def test_without_a_socket_the_plugin_was_not_launched_by_the_runtime() -> None:
    environment = {"NRI_PLUGIN_NAME": "ignored", "PATH": "/bin"}
    assert launched(environment) is None
    assert environment == {"PATH": "/bin"}


def test_socket_name_and_index_come_from_the_runtime() -> None:
    plugin_end, runtime_end = socket.socketpair()
    os.set_inheritable(plugin_end.fileno(), True)
    environment = {
        "NRI_PLUGIN_SOCKET": str(plugin_end.detach()),
        "NRI_PLUGIN_NAME": "topolet",
        "NRI_PLUGIN_IDX": "07",
    }
    found = launched(environment)
    assert found is not None
    assert (found.name, found.index, environment) == ("topolet", "07", {})
    assert not found.socket.get_inheritable(), "child processes do not inherit it"
    runtime_end.send(b"x")
    assert found.socket.recv(1) == b"x"
    found.socket.close()
    runtime_end.close()


@pytest.mark.parametrize("number", ["x", "-1", "100000"])
def test_an_invalid_socket_number_is_named(number: str) -> None:
    with pytest.raises(LaunchError, match=f"NRI_PLUGIN_SOCKET={number} is not a socket"):
        launched({"NRI_PLUGIN_SOCKET": number})
