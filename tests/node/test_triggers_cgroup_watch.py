"""On real directories: inotify reports the same events as on a cgroup file system."""

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
def tree(root: Path) -> Iterator[CgroupWatch]:
    it = CgroupWatch(str(root))
    yield it
    it.close()


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


def test_pods_and_containers_are_created_and_removed(root: Path, tree: CgroupWatch) -> None:
    assert not tree.read()
    for pod in (root / "kubepods/burstable" / f"pod{UID}", root / "kubepods" / f"pod{UID}"):
        pod.mkdir()
        assert tree.read()
        (pod / "c1").mkdir()
        assert tree.read()
        (pod / "c1").rmdir()
        assert tree.read()
        pod.rmdir()
        assert tree.read()
        tree.read()
        assert not tree.read()


def test_tree_that_appears_later_is_watched_completely(root: Path, tree: CgroupWatch) -> None:
    pod = root / "kubelet.slice/kubelet-kubepods.slice" / f"kubelet-kubepods-pod{UID}.slice"
    pod.mkdir(parents=True)
    tree.read()
    (pod / "c1").mkdir()
    assert tree.read()


@pytest.mark.parametrize("file", ["cpuset.cpus", "cpu.max", "cpu.weight", "memory.max"])
def test_only_files_that_the_agent_writes_trigger_a_pass(
    root: Path, tree: CgroupWatch, file: str
) -> None:
    container = root / "kubepods" / f"pod{UID}" / "c1"
    container.mkdir(parents=True)
    for name in (file, "cgroup.procs"):
        (container / name).touch()
    tree.read()
    (container / "cgroup.procs").write_text("1")
    assert not tree.read()
    (container / file).write_text("0")
    assert tree.read()


def test_other_groups_trigger_no_pass(root: Path, tree: CgroupWatch) -> None:
    container = root / "kubepods" / f"pod{UID}" / "c1"
    container.mkdir(parents=True)
    tree.read()
    (root / "system.slice/sshd.service").mkdir()
    (root / "user.slice").mkdir()
    (container / "below").mkdir()
    assert not tree.read()


def test_recreated_pod_is_watched_again(root: Path, tree: CgroupWatch) -> None:
    pod = root / "kubepods" / f"pod{UID}"
    pod.mkdir()
    pod.rmdir()
    pod.mkdir()
    tree.read()
    (pod / "c1").mkdir()
    assert tree.read()
