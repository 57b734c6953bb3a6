import os
import subprocess
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Handles


def open_files() -> list[str]:
    """Open files of this process, by path."""
    paths = []
    for each in os.listdir("/proc/self/fd"):
        try:
            paths.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return paths


def test_regular_files_are_opened_for_each_read(tmp_path: Path) -> None:
    path = tmp_path / "cpuset.cpus"
    path.write_text("0-3\n")
    handles = Handles()
    assert handles.read(str(path)) == b"0-3\n"
    (tmp_path / "new").write_text("1\n")
    (tmp_path / "new").rename(path)
    assert handles.read(str(path)) == b"1\n"
    handles.write(str(path), b"")
    assert path.read_bytes() == b""
    assert str(path) not in open_files()


def test_the_number_of_open_files_is_limited() -> None:
    paths = [f"/proc/sys/kernel/{name}" for name in ("ostype", "osrelease", "hostname")]
    handles = Handles(limit=2)
    for path in paths:
        assert handles.read(path) == Path(path).read_bytes()
    assert [path in open_files() for path in paths] == [False, True, True]
    handles.read(paths[1])
    handles.read(paths[0])
    assert [path in open_files() for path in paths] == [True, True, False]
    handles.close()
    assert not set(paths) & set(open_files())


def test_files_that_the_kernel_removed_are_closed() -> None:
    handles = Handles()
    for _ in range(300):
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
            path = f"/proc/{process.pid}/comm"
            handles.read(path)
            handles.read("/proc/sys/kernel/ostype")
            assert path in open_files()
    opened = [each for each in open_files() if each.startswith("/proc/")]
    assert len(opened) <= 65
    assert "/proc/sys/kernel/ostype" in opened
    handles.close()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Handles().read(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        Handles().write(str(tmp_path / "none"), b"0")
