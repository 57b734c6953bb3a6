"""The file that registers the hook server with koord-runtime-proxy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent.koordinator.server import Registration

SOCKET = "/run/topolet/hooks.sock"


def registration(folder: Path, socket: str = SOCKET) -> Registration:
    return Registration(str(folder), socket, "Fail", ("PreRunPodSandbox", "PreCreateContainer"))


def content(folder: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((folder / "topolet.json").read_bytes())
    return loaded


def test_the_proxy_finds_endpoint_policy_and_hooks(tmp_path: Path) -> None:
    registration(tmp_path / "hookserver.d").write()
    assert content(tmp_path / "hookserver.d") == {
        "remote-endpoint": SOCKET,
        "failure-policy": "Fail",
        "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer"],
    }
    assert os.listdir(tmp_path / "hookserver.d") == ["topolet.json"]


@pytest.mark.parametrize("stale", [b"", b"{", b'{"remote-endpoint": "/elsewhere"}'])
def test_a_stale_file_is_replaced(tmp_path: Path, stale: bytes) -> None:
    (tmp_path / "topolet.json").write_bytes(stale)
    registration(tmp_path).write()
    assert content(tmp_path)["remote-endpoint"] == SOCKET


def test_a_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    """koord-runtime-proxy exits on a file that it cannot parse, so the file is never written in
    place."""
    registration(tmp_path).write()
    with (tmp_path / "topolet.json").open() as reader:
        registration(tmp_path, "/another").write()
        assert json.load(reader)["remote-endpoint"] == SOCKET


def test_a_correct_file_is_not_rewritten(tmp_path: Path) -> None:
    """A killed agent left it; the proxy need not read it again."""
    registration(tmp_path).write()
    before = os.stat(tmp_path / "topolet.json")
    registration(tmp_path).write()
    after = os.stat(tmp_path / "topolet.json")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_withdrawn_registration_lists_no_hook(tmp_path: Path) -> None:
    """It is changed in place: for the proxy, a new inode would be a new file."""
    it = registration(tmp_path)
    it.write()
    inode = os.stat(tmp_path / "topolet.json").st_ino
    it.withdraw()
    assert os.stat(tmp_path / "topolet.json").st_ino == inode
    assert content(tmp_path) == {"remote-endpoint": SOCKET, "failure-policy": "Ignore"}
    it.remove()
    assert os.listdir(tmp_path) == []
    it.remove()


def test_a_later_registration_of_another_server_is_kept(tmp_path: Path) -> None:
    it = registration(tmp_path)
    it.write()
    registration(tmp_path, "/another").write()
    it.withdraw()
    it.remove()
    assert content(tmp_path)["remote-endpoint"] == "/another"


def test_other_servers_with_the_same_hooks_are_named(tmp_path: Path) -> None:
    it = registration(tmp_path)
    it.write()
    (tmp_path / "koordlet.json").write_text('{"runtime-hooks": ["PreCreateContainer"]}')
    (tmp_path / "other.json").write_text('{"runtime-hooks": ["PostStopContainer"]}')
    (tmp_path / "torn.json").write_text('{"runtime-hooks": [')
    assert it.others() == ["koordlet.json"]
