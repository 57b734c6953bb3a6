from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agent.host.files import Tree, replace


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_text(" 1 \n")
    (tmp_path / "a" / "nul").write_bytes(b"0-3\n\0rest")
    (tmp_path / "a" / "blank").write_text("\n")
    (tmp_path / "a" / "long").write_bytes(b"x" * 200_000)
    (tmp_path / "a" / "dangling").symlink_to("nowhere")
    return Tree(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a/one", "1"),
        ("a/nul", "0-3"),
        ("a/blank", None),
        ("a/none", None),
        ("a/one/below-a-file", None),
        ("none/none", None),
    ],
)
def test_text_of_a_file(tree: Tree, path: str, text: str | None) -> None:
    assert tree.text(path) == text


def test_long_file_is_read_whole_or_to_the_limit(tree: Tree) -> None:
    content = tree.read("a/long")
    assert content is not None
    assert len(content) == 200_000
    assert tree.read("a/long", limit=10) == b"x" * 10


def test_a_read_error_names_the_path(tree: Tree) -> None:
    with pytest.raises(OSError, match="/a'"):
        tree.read("a")


def test_names_and_existence(tree: Tree) -> None:
    assert sorted(tree.names("a")) == ["blank", "dangling", "long", "nul", "one"]
    assert tree.names("none") == []
    assert tree.exists("a/one")
    assert not tree.exists("a/dangling")


def test_root_folder_gives_plain_paths() -> None:
    assert Tree("/").path("sys") == "/sys"


def test_replace_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    replace("file", b"new", durable=True)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    versions = [bytes([65 + number]) * 50_000 for number in range(26)]
    replace(path, versions[0], durable=False)

    def write() -> None:
        for version in versions * 4:
            replace(path, version, durable=False)

    writer = threading.Thread(target=write)
    writer.start()
    contents = []
    while writer.is_alive():
        with open(path, "rb") as file:
            contents.append(file.read())
    writer.join()
    assert contents
    assert set(contents) <= set(versions)


@pytest.mark.parametrize("durable", [False, True])
def test_files_are_replaced_atomically(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "f"
    replace(str(path), b"one, longer", durable=durable)
    with path.open("rb") as reader:
        replace(str(path), b"two", durable=durable, mode=0o600)
        assert reader.read() == b"one, longer"
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["f"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace(str(tmp_path / "f"), b"", durable=False, mode=0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644


def test_failure_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "f/x").mkdir(parents=True)
    with pytest.raises(OSError, match="f"):
        replace(str(tmp_path / "f"), b"data", durable=False)
    assert os.listdir(tmp_path) == ["f"]
