import os
import subprocess
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import CgroupError, GroupGone, Handles, Hierarchy, Populated
from agent.model.cpu.cpuset import EMPTY, CpuSet


def v1(root: Path, mount: str = "cpuset") -> Path:
    top = root / mount
    group(top, cpus="0-7", effective_cpus="0-7", mems="0-1", effective_mems="0-1")
    return top


def v2(top: Path, controllers: str = "cpuset cpu io memory") -> Path:
    top.mkdir(parents=True, exist_ok=True)
    (top / "cgroup.controllers").write_text(controllers + "\n")
    (top / "cpuset.cpus.effective").write_text("0-7\n")
    (top / "cpuset.mems.effective").write_text("0-1\n")
    return top


def group(path: Path, **files: str) -> None:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / f"cpuset.{name.replace('__', '.')}").write_text(text + "\n")


def test_v1_is_found_next_to_an_unrelated_v2(tmp_path: Path) -> None:
    v1(tmp_path)
    v2(tmp_path / "unified", controllers="")
    found = Hierarchy(str(tmp_path))
    assert (found.version, found.path) == (1, str(tmp_path / "cpuset"))


def test_v1_is_found_in_a_shared_mount(tmp_path: Path) -> None:
    v1(tmp_path, "cpu,cpuset")
    assert Hierarchy(str(tmp_path)).version == 1


@pytest.mark.parametrize("folder", [".", "unified"])
def test_v2_is_found(tmp_path: Path, folder: str) -> None:
    v2(tmp_path / folder)
    (tmp_path / "memory").mkdir()
    assert Hierarchy(str(tmp_path)).version == 2


def test_an_empty_v1_folder_does_not_hide_v2(tmp_path: Path) -> None:
    (tmp_path / "cpuset").mkdir()
    v2(tmp_path / "unified")
    assert Hierarchy(str(tmp_path)).version == 2


def test_a_machine_without_a_cpuset_controller_is_an_error(tmp_path: Path) -> None:
    v2(tmp_path, controllers="cpu memory")
    with pytest.raises(CgroupError, match=r"no cpuset controller below .*cgroup\.controllers"):
        Hierarchy(str(tmp_path))
    with pytest.raises(CgroupError, match="No such file"):
        Hierarchy(str(tmp_path / "absent"))


def test_v1_reads(tmp_path: Path) -> None:
    top = v1(tmp_path)
    group(top / "a/b", cpus="0-3", effective_cpus="0-2", mems="0", effective_mems="0")
    h = Hierarchy(str(tmp_path))
    assert h.own_cpus("/a/b") == CpuSet.parse("0-3")
    assert h.effective_cpus("/a/b") == CpuSet.parse("0-2")
    assert h.effective_mems("/a/b") == CpuSet([0])
    assert h.own_cpus("/") == CpuSet.parse("0-7")
    assert h.children("/") == ("/a",)
    assert h.children("/a") == ("/a/b",)
    assert h.children("/a/b") == ()
    assert h.exists("/a/b")
    assert not h.exists("/a/c")


def test_v1_without_effective_files_uses_the_configured_cpuset(tmp_path: Path) -> None:
    top = v1(tmp_path)
    group(top / "a", cpus="1", mems="0")
    assert Hierarchy(str(tmp_path)).effective_cpus("/a") == CpuSet([1])


def test_v2_reads(tmp_path: Path) -> None:
    v2(tmp_path)
    group(tmp_path / "a", cpus="", cpus__effective="0-7", mems="", mems__effective="0-1")
    (tmp_path / "a/without").mkdir()
    h = Hierarchy(str(tmp_path))
    assert h.own_cpus("/a") == EMPTY
    assert h.effective_cpus("/a") == CpuSet.parse("0-7")
    assert h.effective_mems("/a") == CpuSet.parse("0-1")
    # The controller is not enabled for this group: its parent's CPUs apply.
    assert h.own_cpus("/a/without") == EMPTY
    assert h.effective_cpus("/a/without") == CpuSet.parse("0-7")
    with pytest.raises(CgroupError, match=r"write '1' to .*without/cpuset\.cpus.*No such file"):
        h.write("/a/without", CpuSet([1]))
    assert not (tmp_path / "a/without/cpuset.cpus").exists()


def test_cpus_of_partitions_are_the_machines_too(tmp_path: Path) -> None:
    root = v2(tmp_path / "cgroup")
    (root / "cpuset.cpus.effective").write_text("0-1\n")
    hierarchy = Hierarchy(str(root), str(tmp_path / "proc"))
    assert hierarchy.machine_cpus() == CpuSet.parse("0-1")
    cpus = tmp_path / "sys/devices/system/cpu"
    for folder in (cpus, tmp_path / "proc"):
        folder.mkdir(parents=True)
    (cpus / "online").write_text("0-3\n")
    assert hierarchy.machine_cpus() == CpuSet.parse("0-3")


def test_write_and_inherit(tmp_path: Path) -> None:
    v2(tmp_path)
    group(tmp_path / "a", cpus="0-3,5,7")
    h = Hierarchy(str(tmp_path))
    h.write("/a", CpuSet.parse("2"))
    assert (tmp_path / "a/cpuset.cpus").read_bytes() == b"2\n"
    h.inherit("/a")
    assert (tmp_path / "a/cpuset.cpus").read_bytes() == b"\n"


def test_a_group_with_processes_that_cannot_inherit_is_a_separate_error(tmp_path: Path) -> None:
    v2(tmp_path)
    group(tmp_path / "a")
    (tmp_path / "a/cpuset.cpus").symlink_to("/dev/full")  # fails with ENOSPC, as in the kernel
    with pytest.raises(Populated, match=r"write '' to .*/a/cpuset\.cpus.*No space"):
        Hierarchy(str(tmp_path)).inherit("/a")


def test_an_empty_cpuset_is_never_written(tmp_path: Path) -> None:
    top = v1(tmp_path)
    group(top / "a", cpus="1")
    h = Hierarchy(str(tmp_path))
    with pytest.raises(ValueError, match="never written"):
        h.write("/a", EMPTY)
    with pytest.raises(ValueError, match="can't inherit"):
        h.inherit("/a")
    assert (top / "a/cpuset.cpus").read_text() == "1\n"


def test_a_removed_group_is_a_separate_error(tmp_path: Path) -> None:
    v1(tmp_path)
    h = Hierarchy(str(tmp_path))
    for call in (
        lambda: h.own_cpus("/removed"),
        lambda: h.effective_cpus("/removed"),
        lambda: h.children("/removed"),
        lambda: h.write("/removed", CpuSet([1])),
    ):
        with pytest.raises(GroupGone, match=r"'.*/removed"):
            call()


def test_an_error_names_file_value_and_reason(tmp_path: Path) -> None:
    top = v1(tmp_path)
    (top / "a/cpuset.cpus").mkdir(parents=True)
    (top / "b").mkdir()
    (top / "b/cpuset.cpus").write_text("zero\n")
    h = Hierarchy(str(tmp_path))
    with pytest.raises(
        CgroupError, match=r"write '3' to .*a/cpuset\.cpus': Is a directory"
    ) as error:
        h.write("/a", CpuSet([3]))
    assert not isinstance(error.value, GroupGone)
    with pytest.raises(CgroupError, match=r"b/cpuset\.cpus': CPU list 'zero"):
        h.own_cpus("/b")


@pytest.mark.parametrize(
    "name", ["", "a", "a/b", "//a", "/a/", "/a/../b", "/..", "/a/./b", "/a\0b"]
)
def test_an_invalid_group_path_is_refused(tmp_path: Path, name: str) -> None:
    v1(tmp_path)
    with pytest.raises(CgroupError, match="is not a cgroup path"):
        Hierarchy(str(tmp_path)).own_cpus(name)


V1_LINES = "5:cpu,cpuacct:/other\n3:cpu,cpuset:/kubepods/podX/ID\n1:name=systemd:/s\n0::/unified\n"


@pytest.mark.parametrize(
    ("version", "text", "found"),
    [
        (1, V1_LINES, "/kubepods/podX/ID"),
        (1, "3:cpuset:/\n0::/x\n", "/"),
        (1, "3:cpuset:/with:colon\n", "/with:colon"),
        (1, "4:cpu:/x\x1c3:cpuset:/forged\n3:cpuset:/real\n", "/real"),
        (1, "3:cpuset:/../outside\n", None),
        (2, V1_LINES, "/unified"),
        (2, "0::/a.slice/b.scope\n", "/a.slice/b.scope"),
        (2, "0::/a.slice/b.scope (deleted)\n", None),
        (2, "0::/../../x\n", None),
    ],
)
def test_group_of_a_process(tmp_path: Path, version: int, text: str, found: str | None) -> None:
    v1(tmp_path) if version == 1 else v2(tmp_path)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(text)
    assert Hierarchy(str(tmp_path), str(tmp_path / "proc")).group_of(7) == found


def test_group_of_an_ended_process_or_an_invalid_file(tmp_path: Path) -> None:
    v1(tmp_path)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/only-v2\n")
    h = Hierarchy(str(tmp_path), str(tmp_path / "proc"))
    assert h.group_of(8) is None
    with pytest.raises(CgroupError, match="7/cgroup' names no group of the cgroup v1"):
        h.group_of(7)


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    top = v1(tmp_path)
    os.makedirs(os.fsencode(top) + b"/a/\xff\n")
    h = Hierarchy(str(tmp_path))
    (odd,) = h.children("/a")
    assert h.exists(odd)
    with pytest.raises(CgroupError) as error:
        h.write(odd, CpuSet([1]))
    assert str(error.value).isprintable()


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
