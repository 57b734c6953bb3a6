from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.discover.pci import DEVICES
from agent.host.kernel_events import Uevents
from agent.model.settings.agent import AgentSettings
from agent.node.notifications import NotificationSocket
from agent.node.triggers import (
    FIRST_PAUSE_SECONDS,
    SUBSYSTEMS,
    CgroupWatch,
    GroupKind,
    Trigger,
    Triggers,
    kind_below,
)
from tests.cri.event_stream import Runtime, serving
from tests.waiting import eventually

SETTINGS = AgentSettings(period_seconds=10)
NOW = 1000.0


@pytest.fixture
def triggers(tmp_path: Path) -> Iterator[Triggers]:
    """The triggers without a runtime."""
    socket = NotificationSocket(str(tmp_path / "notifications.sock"))
    triggers = Triggers(socket, str(tmp_path), str(tmp_path), str(tmp_path / "runtime.sock"))
    yield triggers
    triggers.close()
    socket.close()


@pytest.fixture
def streaming(tmp_path: Path) -> Iterator[Triggers]:
    """The triggers with a runtime that streams its events."""
    runtime = Runtime()
    runtime.queue.put(b"")
    with serving(tmp_path / "runtime.sock", runtime):
        socket = NotificationSocket(str(tmp_path / "notifications.sock"))
        streaming = Triggers(socket, str(tmp_path), str(tmp_path), str(tmp_path / "runtime.sock"))
        eventually("an event", lambda: streaming.cooldown(0.0) > FIRST_PAUSE_SECONDS)
        yield streaming
        streaming.close()
        socket.close()


@pytest.mark.parametrize(
    ("runtime", "pass_seconds", "seconds"),
    [
        ("triggers", 0.001, 0.02),
        ("triggers", 0.05, 0.05),
        ("streaming", 0.001, 0.1),
        ("streaming", 0.05, 0.1),
        ("streaming", 0.2, 0.2),
        ("streaming", 10.0, 0.5),
    ],
)
def test_cooldown_is_as_long_as_the_pass_within_bounds(
    request: pytest.FixtureRequest, runtime: str, pass_seconds: float, seconds: float
) -> None:
    triggers: Triggers = request.getfixturevalue(runtime)
    assert triggers.cooldown(pass_seconds) == seconds


def test_while_a_frontend_notifies_other_events_wait_longer(streaming: Triggers) -> None:
    streaming.pause(SETTINGS, True, {Trigger.NOTIFICATION}, NOW)
    assert streaming.cooldown(0.001) == 0.25
    streaming.pause(SETTINGS, True, {Trigger.TREE}, NOW + 4.9)
    assert streaming.cooldown(0.001) == 0.25
    streaming.pause(SETTINGS, True, {Trigger.TREE}, NOW + 5)
    assert streaming.cooldown(0.001) == 0.1


def test_without_an_event_a_full_pass_is_due_after_its_period(triggers: Triggers) -> None:
    assert triggers.pause(SETTINGS, True, {Trigger.CLOCK}, NOW) == 10.0
    assert triggers.pause(SETTINGS, False, {Trigger.CLOCK}, NOW) == 0.5
    assert triggers.pause(SETTINGS, True, {Trigger.TREE}, NOW) == FIRST_PAUSE_SECONDS
    assert triggers.pause(SETTINGS, True, {Trigger.CLOCK}, NOW + 60) == 10.0


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


def test_a_uevent_of_a_pci_function_is_received() -> None:
    """The test requests a uevent of the first PCI function of this machine, without a change."""
    function = next(iter(sorted(Path("/", DEVICES).glob("*"))), None)
    if function is None:
        pytest.skip("no PCI on this machine")
    try:
        uevents = Uevents()
    except OSError as error:
        pytest.skip(f"no uevents: {error.strerror}")
    try:
        try:
            (function / "uevent").write_text("change")
        except OSError as error:
            pytest.skip(f"{function}/uevent: {error.strerror}")
        if not select.select([uevents.fileno()], [], [], 5)[0]:
            pytest.skip("uevents do not reach this network namespace")
        assert uevents.read(SUBSYSTEMS)
    finally:
        uevents.close()
