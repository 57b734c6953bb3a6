from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agent.host import processes
from agent.host.processes import Process, ProcessGoneError
from agent.node.kubelet_process import (
    FoundKubelets,
    KubeletProcess,
    arguments_of_file,
    arguments_of_k3s,
    find,
    program_of,
    runs_kubelet,
)
from tests.node.procfs import HOST, POD, process

OWN = "/kubepods.slice/kubepods-podA.slice/cri-containerd-A.scope"
"""The agent's cgroup, in its own cgroup namespace."""


def found(root: Path, own_group: str | None = "/") -> FoundKubelets:
    return find(str(root / "proc"), own_group)


def pids(root: Path, own_group: str | None = "/") -> list[int]:
    result = found(root, own_group)
    assert result.doubts == ()
    return [each.pid for each in result.kubelets]


@pytest.mark.parametrize(
    "groups",
    [
        HOST,
        "0::/\n",
        "0::/init.scope\n",
        "0::/podruntime/kubelet\n",
        "3:cpuset:/\n1:name=systemd:/system.slice/kubelet.service\n0::/\n",
        "4:cpu,cpuacct:/system.slice\n3:cpuset:/\n",
        "0::/system.slice/kubelet.service (deleted)\n",
    ],
)
def test_the_kubelet_of_the_host(tmp_path: Path, groups: str) -> None:
    process(tmp_path, 1, "/sbin/init", groups="3:cpuset:/\n0::/init.scope\n")
    process(tmp_path, 70, "/usr/bin/kubelet", "--v=2", parent=1, groups=groups)
    (result,) = found(tmp_path).kubelets
    assert result == KubeletProcess(70, "kubelet", ("/usr/bin/kubelet", "--v=2"), 1)
    assert result.title == "kubelet 70"


OTHER_PROCESSES: list[Any] = [
    pytest.param({"uids": "1000 1000 1000 1000"}, id="another user"),
    pytest.param({"uids": "1000 0 0 0"}, id="a set-uid program"),
    pytest.param({"uids": "0 1000 0 0"}, id="root that dropped privileges"),
    pytest.param({"uids": "100000 100000 100000 100000"}, id="root of a user namespace"),
    pytest.param({"pids": (9, 1)}, id="a PID namespace below"),
    pytest.param({"pids": (9, 4, 1)}, id="two PID namespaces below"),
    pytest.param({"groups": POD}, id="a pod, v2, systemd"),
    pytest.param({"groups": "0::/kubepods/burstable/podX/ID\n"}, id="a pod, v2, cgroupfs"),
    pytest.param({"groups": "3:cpuset:/kubepods/podX/ID\n0::/\n"}, id="a pod, v1"),
    pytest.param({"groups": "3:cpuset:/\n2:memory:/kubepods/podX\n"}, id="a pod by any hierarchy"),
    pytest.param({"groups": "0::/mine/kubepods/podX/ID\n"}, id="a root of its own, cgroupfs"),
    pytest.param(
        {"groups": "0::/mine.slice/mine-kubepods.slice/x.scope\n"}, id="a root of its own, systemd"
    ),
    pytest.param({"groups": "0::/kubepods/podX/ID (deleted)\n"}, id="a pod that ends"),
    pytest.param({"name": "sleep"}, id="exec -a"),
    pytest.param({"parent": 5}, id="below a process of a pod"),
    pytest.param({"parent": 6}, id="below that"),
]


@pytest.mark.parametrize("pid", [9, 700])
@pytest.mark.parametrize("other", OTHER_PROCESSES)
def test_other_processes_named_kubelet_are_not_the_kubelet(
    tmp_path: Path, other: dict[str, Any], pid: int
) -> None:
    """Their pids are lower and higher than the pid of the kubelet."""
    process(tmp_path, 5, "/bin/sh", groups=POD, pids=(5, 1))
    process(tmp_path, 6, "/bin/sh", parent=5)
    process(tmp_path, 70, "kubelet")
    if "pids" in other:
        other = {**other, "pids": (pid, *other["pids"][1:])}
    process(tmp_path, pid, "kubelet", "--reserved-cpus=0-1", **other)
    assert pids(tmp_path) == [70]


def test_groups_are_relative_to_the_agents_namespace(tmp_path: Path) -> None:
    """An agent in a pod with a cgroup namespace reads paths without kubepods."""
    process(tmp_path, 70, "kubelet", groups="0::/../../../system.slice/kubelet.service\n")
    process(tmp_path, 71, "kubelet", groups="0::/../../kubepods-podB.slice/cri-x.scope\n")
    process(tmp_path, 72, "kubelet", groups="0::/\n")
    process(tmp_path, 73, "kubelet", groups="0::/below\n")
    assert pids(tmp_path, OWN) == [70]


def test_without_a_known_namespace_root_no_kubelet_is_found(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", groups="0::/../../../system.slice/kubelet.service\n")
    result = found(tmp_path, None)
    assert result.kubelets == ()
    assert "kubelet.service is outside of the agent's cgroup namespace" in result.doubts[0]
    process(tmp_path, 70, "kubelet", groups="0::/../../../../../x\n")
    (doubt,) = found(tmp_path, OWN).doubts
    assert "is not on the host" in doubt


def incomplete_status(folder: Path) -> None:
    (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")


def without_namespaces(folder: Path) -> None:
    text = (folder / "status").read_text()
    (folder / "status").write_text(text.replace("NSpid:\t70\n", ""))


def without_cpuset(folder: Path) -> None:
    (folder / "cgroup").write_text("2:memory:/\n")


def endless_command_line(folder: Path) -> None:
    (folder / "cmdline").write_bytes(b"kubelet\0" + b"x" * (1 << 20))


def own_ancestor(folder: Path) -> None:
    text = (folder / "status").read_text()
    (folder / "status").write_text(text.replace("PPid:\t0", "PPid:\t70"))


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (incomplete_status, "its status: KeyError('PPid')"),
        (without_namespaces, "its status has no NSpid"),
        (without_cpuset, "names no cgroup of the cpuset hierarchy"),
        (endless_command_line, "its command line is longer than 262144 bytes"),
        (own_ancestor, "it has more than 64 ancestors"),
    ],
)
def test_an_uncertain_process_is_a_doubt(tmp_path: Path, change: Any, doubt: str) -> None:
    change(process(tmp_path, 70, "kubelet"))
    result = found(tmp_path)
    assert result.kubelets == ()
    assert len(result.doubts) == 1
    assert "70" in result.doubts[0]
    assert doubt in result.doubts[0]


def test_without_a_procfs(tmp_path: Path) -> None:
    result = found(tmp_path)
    assert result.kubelets == ()
    assert result.doubts == (f"{tmp_path}/proc: No such file or directory",)


@pytest.mark.parametrize(
    "argv",
    [
        (b"\xff\xfe/kubelet", b"--\xff=\xfe"),
        (b"a\nb/kubelet", b"\n", b""),
        (b"/" + b"d/" * 1000 + b"kubelet",),
    ],
)
def test_arguments_of_any_bytes(tmp_path: Path, argv: tuple[bytes, ...]) -> None:
    process(tmp_path, 70, *argv)
    (result,) = found(tmp_path).kubelets
    assert [os.fsencode(each) for each in result.argv] == list(argv)


def test_an_endless_and_an_empty_argv0_are_not_a_kubelet(tmp_path: Path) -> None:
    process(tmp_path, 70, b"x" * (3 << 20) + b"/kubelet", name="kubelet")
    process(tmp_path, 71)
    process(tmp_path, 72, "", "kubelet")
    assert pids(tmp_path) == []


def test_more_supplementary_groups_than_a_page_holds(tmp_path: Path) -> None:
    folder = process(tmp_path, 70, "kubelet")
    groups = " ".join(str(4_000_000_000 + each) for each in range(65_536))
    text = (folder / "status").read_text().replace("Groups:\t0 ", f"Groups:\t{groups} ")
    (folder / "status").write_text(text)
    assert pids(tmp_path) == [70]


def test_a_forked_child_before_exec_is_not_another_kubelet(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--v=2")
    process(tmp_path, 71, "kubelet", "--v=2", parent=70)
    assert pids(tmp_path) == [70]
    process(tmp_path, 71, "kubelet", "--v=3", parent=70)
    assert pids(tmp_path) == [70, 71]


@pytest.mark.parametrize("file", ["cmdline", "comm", "status", "cgroup"])
def test_a_process_that_ends_between_two_reads_is_ignored(tmp_path: Path, file: str) -> None:
    process(tmp_path, 70, "kubelet")
    (process(tmp_path, 9, "kubelet") / file).unlink()
    assert pids(tmp_path) == [70]


def test_a_reused_pid_is_not_the_same_process(tmp_path: Path) -> None:
    """All values belong to one process, even if another process gets its pid."""
    folder = process(tmp_path, 9, "kubelet")
    with Process(str(tmp_path / "proc"), 9) as result:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        process(tmp_path, 9, "other")
        with pytest.raises(ProcessGoneError):
            result.argv0()


def test_a_parent_process_that_ends_during_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 70, "kubelet", parent=50)
    read_file = Process.status
    reads = []

    def status(self: Process) -> processes.ProcessStatus:
        reads.append(self.pid)
        if len(reads) == 2:  # the first read is of the kubelet's users and namespaces
            process(tmp_path, 70, "kubelet", parent=1)
            process(tmp_path, 1, "/sbin/init")
        return read_file(self)

    monkeypatch.setattr(Process, "status", status)
    assert pids(tmp_path) == [70]


def test_a_kubelet_that_ends_while_its_parents_are_read_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = process(tmp_path, 70, "kubelet", parent=50)
    read_file = Process.argv

    def argv(self: Process) -> list[str]:
        found = read_file(self)
        (folder / "status").unlink()
        return found

    monkeypatch.setattr(Process, "argv", argv)
    assert found(tmp_path) == FoundKubelets()


def test_many_uncertain_processes_give_few_doubts(tmp_path: Path) -> None:
    for pid in range(50):
        process(tmp_path, 100 + pid, "kubelet", groups="0::/../podX\n")
    assert len(found(tmp_path, None).doubts) == 8


def test_parent_processes_that_keep_changing_are_a_doubt(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", parent=50)
    (doubt,) = found(tmp_path).doubts
    assert "keep changing" in doubt


def test_the_kubelet_with_the_configured_folder_is_chosen(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--root-dir=/a")
    process(tmp_path, 71, "kubelet", "--root-dir", "/b/")
    process(tmp_path, 72, "k3s", "server", name="k3s-server")
    kubelets = found(tmp_path).kubelets

    def pid_of_folder(root: str, folder: str) -> int:
        result = FoundKubelets(kubelets).of_folder(root, folder)
        return result.pid if result else 0

    assert pid_of_folder("/", "/b") == 71
    assert pid_of_folder("/host", "/host/a") == 70
    assert pid_of_folder("/host", "/host/var/lib/kubelet") == 72
    assert pid_of_folder("/", "/c") == 0
    assert FoundKubelets(kubelets[:1]).of_folder("/", "/c") == kubelets[0]
    assert FoundKubelets((*kubelets, kubelets[0])).of_folder("/", "/a") is None


@pytest.mark.parametrize(
    ("argv0", "name"),
    [
        ("kubelet", "kubelet"),
        ("/var/lib/k0s/bin/kubelet", "kubelet"),
        ("/usr/local/bin/k3s", "k3s"),
        ("/snap/microk8s/7/kubelite", "kubelite"),
        ("/usr/local/bin/k3s server", "k3s"),
        ("k3s agent", "k3s"),
        ("k3s kubectl", None),
        ("kubelet server", None),
        ("kubelet-wrapper", None),
        ("/kubelet/", None),
        ("kubelet\n", None),
        ("", None),
    ],
)
def test_program(argv0: str, name: str | None) -> None:
    assert program_of(argv0) == name


@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        (["kubelet"], True),
        (["kubelet", "--v=2"], True),
        (["kubelet", "--version"], False),
        (["kubelet", "--help"], False),
        (["k3s", "server"], True),
        (["k3s", "agent", "--token", "x"], True),
        (["k3s", "server", "--disable-agent"], False),
        (["k3s", "kubectl", "get", "nodes"], False),
        (["k3s"], False),
        (["/usr/local/bin/k3s server", "", ""], True),
        (["kubelite", "--kubelet-args-file=/a"], True),
    ],
)
def test_which_command_lines_run_a_kubelet(argv: list[str], runs: bool) -> None:
    assert runs_kubelet(argv) is runs


def test_flags_in_the_file_of_a_kubelite() -> None:
    text = """# mine
--cpu-manager-policy="static"

  --reserved-cpus 0-1
--config='${SNAP_DATA}/args/kubelet.yaml'
--root-dir=$SNAP_COMMON/var/lib/kubelet"""
    assert arguments_of_file("/var/snap/microk8s/7/args/kubelet", text) == [
        "--cpu-manager-policy=static",
        "--reserved-cpus",
        "0-1",
        "--config=/var/snap/microk8s/7/args/kubelet.yaml",
        "--root-dir=/var/snap/microk8s/common/var/lib/kubelet",
    ]


def test_later_files_of_k3s_replace_or_append() -> None:
    contents: list[dict[str, Any]] = [
        {"kubelet-arg": ["a=1", "b=2"]},
        {},
        {"kubelet-arg+": "c=3"},
    ]
    assert arguments_of_k3s(contents, "here") == ["--a=1", "--b=2", "--c=3"]
    contents.append({"kubelet-arg": ["d=4"]})
    assert arguments_of_k3s(contents, "here") == ["--d=4"]
