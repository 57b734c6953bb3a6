"""The watch of cgroups, on directories: inotify reports the events of a cgroup file system."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.triggers import CgroupWatch, GroupKind, kind_below

UID = "0a1b"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    (tmp_path / "system.slice").mkdir()
    return tmp_path


@pytest.fixture
def watch(root: Path) -> Iterator[CgroupWatch]:
    watch = CgroupWatch(str(root))
    yield watch
    watch.close()


@pytest.mark.parametrize(
    ("parent", "name", "kind"),
    [
        (GroupKind.TOP, "kubepods", GroupKind.KUBEPODS),
        (GroupKind.TOP, "kubepods.slice", GroupKind.KUBEPODS),
        (GroupKind.TOP, "system.slice", GroupKind.OTHER),
        (GroupKind.OTHER, "kubelet-kubepods.slice", GroupKind.KUBEPODS),
        (GroupKind.OTHER, "sshd.service", None),
        (GroupKind.KUBEPODS, "besteffort", GroupKind.QOS),
        (GroupKind.KUBEPODS, "kubepods-burstable.slice", GroupKind.QOS),
        (GroupKind.KUBEPODS, f"pod{UID}", GroupKind.POD),
        (GroupKind.KUBEPODS, f"kubepods-pod{UID}.slice", GroupKind.POD),
        (GroupKind.QOS, f"kubepods-burstable-pod{UID}.slice", GroupKind.POD),
        (GroupKind.POD, "cri-containerd-c1.scope", GroupKind.CONTAINER),
        (GroupKind.CONTAINER, "init.scope", None),
    ],
)
def test_paths_by_both_cgroup_drivers(parent: GroupKind, name: str, kind: GroupKind | None) -> None:
    assert kind_below(parent, name) == kind


def test_pods_and_containers_are_created_and_removed(root: Path, watch: CgroupWatch) -> None:
    assert not watch.read()
    for pod in (root / "kubepods/burstable" / f"pod{UID}", root / "kubepods" / f"pod{UID}"):
        pod.mkdir()
        assert watch.read()
        (pod / "c1").mkdir()
        assert watch.read()
        (pod / "c1").rmdir()
        assert watch.read()
        pod.rmdir()
        assert watch.read()
        watch.read()
        assert not watch.read()


def test_a_tree_that_is_created_later_is_watched_completely(root: Path, watch: CgroupWatch) -> None:
    pod = root / "kubelet.slice/kubelet-kubepods.slice" / f"kubelet-kubepods-pod{UID}.slice"
    pod.mkdir(parents=True)
    watch.read()
    (pod / "c1").mkdir()
    assert watch.read()


@pytest.mark.parametrize("file", ["cpuset.cpus", "cpu.max", "cpu.weight", "memory.max"])
def test_only_files_that_the_agent_writes_trigger_a_pass(
    root: Path, watch: CgroupWatch, file: str
) -> None:
    container = root / "kubepods" / f"pod{UID}" / "c1"
    container.mkdir(parents=True)
    for name in (file, "cgroup.procs"):
        (container / name).touch()
    watch.read()
    (container / "cgroup.procs").write_text("1")
    assert not watch.read()
    (container / file).write_text("0")
    assert watch.read()


def test_other_groups_trigger_no_pass(root: Path, watch: CgroupWatch) -> None:
    container = root / "kubepods" / f"pod{UID}" / "c1"
    container.mkdir(parents=True)
    watch.read()
    (root / "system.slice/sshd.service").mkdir()
    (root / "user.slice").mkdir()
    (container / "below").mkdir()
    assert not watch.read()


def test_recreated_pod_is_watched_again(root: Path, watch: CgroupWatch) -> None:
    pod = root / "kubepods" / f"pod{UID}"
    pod.mkdir()
    pod.rmdir()
    pod.mkdir()
    watch.read()
    (pod / "c1").mkdir()
    assert watch.read()
