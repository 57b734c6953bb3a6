from __future__ import annotations

from pathlib import Path

import pytest

from agent.install import unitfiles
from agent.install.tree import FileState, HostTree, TextFile


def read_unit(root: Path) -> unitfiles.Unit:
    return unitfiles.read(HostTree(str(root)), "a.service")


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_drop_in_of_etc_replaces_one_of_the_same_name(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/systemd/system/a.service", "[Service]\nExecStart=/a\n")
    put(tmp_path, "usr/lib/systemd/system/a.service.d/5.conf", "[Service]\nExecStart=\n")
    put(tmp_path, "etc/systemd/system/a.service.d/5.conf", "[Service]\nExecStart=/b\n")
    put(tmp_path, "run/systemd/system/a.service.d/7.conf", "[Service]\nExecStart=/c\n")
    put(tmp_path, "run/systemd/system/a.service.d/7.txt", "[Service]\nExecStart=/d\n")
    unit = read_unit(tmp_path)
    assert unit.values("ExecStart") == ["/a", "/b", "/c"]


def test_a_unit_of_etc_replaces_that_of_the_package(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/systemd/system/a.service", "[Service]\nExecStart=/a\n")
    put(tmp_path, "etc/systemd/system/a.service", "[Service]\nExecStart=/b\n")
    assert read_unit(tmp_path).values("ExecStart") == ["/b"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ExecStart=/a\nExecStart=\nExecStart=/b\n", ["/b"]),
        ("ExecStart=/a \\\n  --b \\\n# a comment\n  --c\n", ["/a    --b    --c"]),
        ("; ExecStart=/a\n#ExecStart=/b\nExecStart = /c\n", ["/c"]),
        ("[Unit]\nExecStart=/a\n[Service]\nExecStart=/b\n[Install]\nExecStart=/c\n", ["/b"]),
        ("ExecStart\n", []),
    ],
)
def test_the_values_of_a_key(text: str, values: list[str]) -> None:
    file = TextFile("/a", FileState(f"[Service]\n{text}"))
    assert unitfiles.Unit("a", (file,)).values("ExecStart") == values


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ('"A=1 2" B=3', {"A": "1 2", "B": "3"}),
        ("'A=x y'", {"A": "x y"}),
        ('A="x y"', {"A": "x y"}),
        ("A", {}),
        ('"A=', {}),
    ],
)
def test_environment(line: str, variables: dict[str, str]) -> None:
    file = TextFile("/a", FileState(f"[Service]\nEnvironment={line}\n"))
    assert unitfiles.Unit("a", (file,)).environment == variables


def test_a_quoted_word_is_read_unchanged() -> None:
    word = 'A=a "b" \\c %h $d'
    assert unitfiles.words(unitfiles.quoted(word)) == [word]
