from __future__ import annotations

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
