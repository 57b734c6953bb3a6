import os
from pathlib import Path

import pytest

from agent.host.files import replace


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
