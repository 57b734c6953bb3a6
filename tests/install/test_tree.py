from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.install.tree import ABSENT, FileState, HostTree, TreeError


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    for folder in ("etc", "run", "usr/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "lib").symlink_to("usr/lib")
    return HostTree(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/etc/hosts", "/etc/hosts"),
        ("/var/run/x.sock", "/run/x.sock"),
        ("/lib/systemd/a", "/usr/lib/systemd/a"),
        ("/etc/../../../etc/./hosts", "/etc/hosts"),
        ("/", "/"),
    ],
)
def test_links_are_resolved_below_the_root(tree: HostTree, path: str, real: str) -> None:
    assert tree.real(path) == real
    assert tree.path(path) == f"{tree.root}{real}".rstrip("/")


def test_links_in_a_circle_are_named(tree: HostTree) -> None:
    os.symlink("/etc/b", f"{tree.root}/etc/a")
    os.symlink("/etc/a", f"{tree.root}/etc/b")
    with pytest.raises(TreeError, match="/etc/a: too many symbolic links"):
        tree.real("/etc/a")


def test_a_file_is_put_and_removed(tree: HostTree) -> None:
    state = FileState("text\n", mode=0o600, uid=os.getuid(), gid=os.getgid())
    tree.put("/var/run/new/folder/file", state)
    assert tree.state("/run/new/folder/file") == state
    tree.put("/run/new/folder/file", ABSENT)
    assert tree.state("/run/new/folder/file") == ABSENT
    tree.put("/run/new/folder/file", ABSENT)


def test_a_link_replaces_a_link_and_is_not_followed(tree: HostTree) -> None:
    tree.put("/etc/current", FileState(link="1"))
    tree.put("/etc/current", FileState(link="2"))
    assert tree.state("/etc/current") == FileState(link="2")
    assert tree.names("/etc") == ["current"]


def test_a_file_that_is_not_text_is_named(tree: HostTree) -> None:
    os.mkfifo(f"{tree.root}/etc/pipe")
    Path(tree.root, "etc/binary").write_bytes(b"\xff")
    with pytest.raises(TreeError, match="/etc/pipe: is not a regular file"):
        tree.state("/etc/pipe")
    with pytest.raises(TreeError, match="/etc/binary: is not UTF-8"):
        tree.state("/etc/binary")


def test_a_file_behind_a_link_has_its_own_path(tree: HostTree) -> None:
    tree.put("/usr/lib/a", FileState("x"))
    os.symlink("/lib/a", f"{tree.root}/etc/a")
    found = tree.file("/etc/a")
    assert found is not None
    assert (found.path, found.text) == ("/usr/lib/a", "x")
    assert tree.file("/etc/none") is None
