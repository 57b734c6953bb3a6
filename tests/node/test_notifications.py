"""Notifications over a real socket, from a notifier to the agent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.hooks.agent_client import Notifier
from agent.hooks.requests import announced, announced_pod
from agent.host import locks
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    Created,
    Notification,
    PodAnnounced,
    PodFailed,
    SessionEnded,
    SnapshotRequest,
)
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import ANNOTATIONS, Container, ContainerState, Pod
from agent.node import notifications
from agent.node.notifications import (
    PATIENCE_SECONDS,
    AnnouncedContainer,
    AnnouncedContainers,
    AnnouncedPods,
    NotificationSocket,
)
from tests.waiting import eventually

SPAWN = multiprocessing.get_context("spawn")

ANNOUNCED = PodAnnounced("u", "ns", "n", {"é": "1"}, {"a": "{}"}, "/kubepods/podu")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notifications.sock")


@pytest.fixture
def notification_socket(path: str) -> Iterator[NotificationSocket]:
    notification_socket = NotificationSocket(path)
    yield notification_socket
    notification_socket.close()


@pytest.fixture
def notifier(path: str) -> Iterator[Notifier]:
    notifier = Notifier(path)
    yield notifier
    notifier.close()


def test_notifications_are_received_in_order(
    notification_socket: NotificationSocket, notifier: Notifier
) -> None:
    sent = [ANNOUNCED, PodFailed("u"), Created("c", LinuxResources("0-3")), SnapshotRequest()]
    for notification in sent:
        notifier.notify(notification)
    assert notification_socket.wait(10) == sent
    assert notification_socket.wait(0) == []
    assert (notifier.sent, notifier.undelivered) == (4, 0)


@pytest.mark.parametrize(
    "datagram", [b"", b"\xff", b'{"type":"failed","uid":"\xff"}', b"{}", b"[" * 90_000]
)
def test_invalid_datagram_is_dropped_and_the_next_received(
    notification_socket: NotificationSocket, notifier: Notifier, path: str, datagram: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram, path)
    notifier.notify(SnapshotRequest())
    assert notification_socket.wait(10) == [SnapshotRequest()]


def test_endless_notifications_do_not_delay_a_pass(
    notification_socket: NotificationSocket, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MAX_NOTIFICATIONS", 3)
    for _ in range(5):
        notifier.notify(SnapshotRequest())
    assert [len(notification_socket.wait(10)), len(notification_socket.wait(10))] == [3, 2]


def test_notifications_of_one_wait_are_bounded_in_bytes(
    notification_socket: NotificationSocket, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notifications of hostile pods are as large as the bounds of annotations allow."""
    monkeypatch.setattr(notifications, "MAX_BYTES", 50_000)
    annotations = dict.fromkeys(ANNOTATIONS, "x" * 200000)
    pod = announced_pod("uid", "ns", "p", {}, annotations, "/kubepods")
    for _ in range(2):
        notifier.notify(pod)
    assert notifier.undelivered == 0
    assert [len(notification_socket.wait(10)), len(notification_socket.wait(10))] == [1, 1]


def test_a_socket_that_is_lost_has_the_reason(
    notification_socket: NotificationSocket, path: str
) -> None:
    assert notification_socket.lost() == ""
    os.rename(path, f"{path}.moved")
    assert notification_socket.lost() == f"{path} was removed"
    Path(path).touch()
    assert notification_socket.lost() == f"{path} is another agent's"
    os.unlink(path)
    Path(path).symlink_to(path)  # as a folder that can't be searched: another error
    assert notification_socket.lost() == f"{path}: Too many levels of symbolic links"


def test_a_wake_before_a_wait_ends_the_wait(notification_socket: NotificationSocket) -> None:
    notification_socket.wake()
    assert notification_socket.wait(60) == []
    receive: list[list[Notification]] = []
    waiting = threading.Thread(target=lambda: receive.append(notification_socket.wait(60)))
    waiting.start()
    notification_socket.wake()
    waiting.join(10)
    assert receive == [[]]


def test_only_a_notification_ends_the_cooldown(
    notification_socket: NotificationSocket, notifier: Notifier
) -> None:
    notification_socket.wake()
    notification = threading.Timer(0.2, lambda: notifier.notify(SnapshotRequest()))
    notification.start()
    assert notification_socket.wait(60, 60) == [SnapshotRequest()]
    notification.join()
    notification_socket.wake()
    assert notification_socket.wait(60, 0.01) == [], "received after the pause"


def test_wait_collects_the_notification_that_follows_another_event(
    notification_socket: NotificationSocket, notifier: Notifier
) -> None:
    notification_socket.wake()
    notification = threading.Timer(0.2, lambda: notifier.notify(SnapshotRequest()))
    notification.start()
    assert notification_socket.wait(60, collect_seconds=60) == [SnapshotRequest()]
    notification.join()
    notification_socket.wake()
    assert notification_socket.wait(60, collect_seconds=0.01) == [], "ends also without one"


def test_notifications_are_received_again_after_the_agents_restart(
    path: str, notifier: Notifier
) -> None:
    notifier.notify(SnapshotRequest())
    first = NotificationSocket(path)
    notifier.notify(SnapshotRequest())
    assert first.wait(10) == [SnapshotRequest()]
    first.close()
    notifier.notify(SnapshotRequest())
    second = NotificationSocket(path)
    notifier.notify(ANNOUNCED)
    assert second.wait(10) == [ANNOUNCED]
    assert (notifier.sent, notifier.undelivered) == (4, 2)
    second.close()


def test_socket_left_by_a_killed_agent_is_replaced_and_private(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as closed:
        closed.bind(path)
    notification_socket = NotificationSocket(path)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    notification_socket.close()
    assert not Path(path).exists()


def announce_and_stay(state_dir: str, uid: str) -> None:
    session = locks.lock_for_relay(state_dir).session()
    notifier = Notifier(f"{state_dir}/notifications.sock", session)
    notifier.notify(msgspec.structs.replace(ANNOUNCED, uid=uid))
    notifier.notify(
        ContainerAnnounced(
            msgspec.structs.replace(ANNOUNCED, uid=uid), "main", LinuxResources(shares=1024)
        )
    )
    signal.pause()


def test_killed_proxy_ends_its_announcements_and_no_others(
    notification_socket: NotificationSocket, notifier: Notifier, path: str
) -> None:
    """Announcements of another proxy, which drains or has just connected, stay, and so do those of
    an NRI plugin: they name no session, because the runtime continues the calls."""
    state_dir = os.path.dirname(path)
    killed, other = (
        SPAWN.Process(target=announce_and_stay, args=(state_dir, uid))
        for uid in ("killed", "other")
    )
    received: list[Notification | SessionEnded] = []
    try:
        for each in (killed, other):
            each.start()
            received += receive(notification_socket, 2)
        notifier.notify(msgspec.structs.replace(ANNOUNCED, uid="plugin"))
        received += receive(notification_socket, 1)
        killed.kill()
        killed.join()
        notifier.notify(SnapshotRequest())
        received += receive(notification_socket, 2)
        later = notification_socket.wait(0)
    finally:
        for each in (killed, other):
            each.kill()
    pods, containers = AnnouncedPods(), AnnouncedContainers()
    for notification in received:
        if isinstance(notification, PodAnnounced):
            pods.add(notification, 0.0, 0)
        elif isinstance(notification, ContainerAnnounced):
            containers.add(notification, 0.0, 0)
        elif isinstance(notification, SessionEnded):
            pods.session_ended(notification.session)
            containers.session_ended(notification.session)
    pods_left = pods.missing_from([], 0.0)
    assert [each.uid for each in pods_left] == ["other", "plugin"]
    sandbox_exists = announced(msgspec.structs.replace(ANNOUNCED, uid="killed"), 0)
    containers_left = containers.missing_from([*pods_left, sandbox_exists], 0.0)
    assert [each.uid for each in containers_left] == ["other"]
    assert not any(isinstance(each, SessionEnded) for each in later), "the end is reported once"


def receive(
    notification_socket: NotificationSocket, number: int
) -> list[Notification | SessionEnded]:
    found: list[Notification | SessionEnded] = []

    def all_received() -> bool:
        found.extend(notification_socket.wait(1))
        return len(found) >= number

    eventually(f"{number} notifications", all_received)
    return found


NOTIFICATION = PodAnnounced("u", "ns", "n", {}, {"k": "1"}, "/kubepods/burstable/podu")


def test_announced_pod_is_kept_until_the_runtime_lists_it() -> None:
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    (pod,) = announced.missing_from([], 1.0)
    assert (pod.uid, pod.title, pod.kube_class, pod.created_at) == ("u", "ns/n", "burstable", 7)
    assert announced.cgroup_parents == {"u": "/kubepods/burstable/podu"}
    assert announced.missing_from(["u"], 2.0) == ()
    assert announced.cgroup_parents == {}
    assert announced.missing_from([], 3.0) == (), "a pod that was listed has ended"


def test_repeated_notification_keeps_the_first_time() -> None:
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    changed = msgspec.structs.replace(NOTIFICATION, annotations={"k": "2"})
    announced.add(changed, PATIENCE_SECONDS - 1, 99)
    (pod,) = announced.missing_from([], PATIENCE_SECONDS + 1)
    assert (pod.created_at, pod.annotations) == (7, {"k": "2"})


def test_announced_pod_expires() -> None:
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    assert announced.missing_from([], PATIENCE_SECONDS) == ()


def test_failed_sandbox_can_be_dropped_twice() -> None:
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    announced.drop("u")
    announced.drop("u")
    assert announced.missing_from([], 0.0) == ()


def pod(*names: str) -> Pod:
    containers = tuple(Container(name, name, ContainerState.CREATED) for name in names)
    return Pod("u", "ns", "n", {}, {}, "guaranteed", 0, containers)


def test_announced_container_is_kept_until_its_pod_has_it_or_ends() -> None:
    announced = AnnouncedContainers()
    announced.add(ContainerAnnounced(NOTIFICATION, "a", LinuxResources(shares=1024)), 0.0, 7)
    requested = LinuxResources(shares=2048, hugepages={2 << 20: 4 << 20})
    announced.add(ContainerAnnounced(NOTIFICATION, "a", requested), 1.0, 9)
    (container,) = announced.missing_from([pod("b")], 2.0)
    assert container == AnnouncedContainer("u", "a", requested, 7)
    assert announced.missing_from([pod("a", "b")], 2.0) == ()
    assert announced.missing_from([pod("b")], 2.0) == (), "it has ended"
    announced.add(ContainerAnnounced(NOTIFICATION, "a", LinuxResources(shares=1024)), 3.0, 11)
    assert announced.missing_from([], 3.0) == ()


def test_announced_container_is_dropped_or_expires() -> None:
    announced = AnnouncedContainers()
    for name in ("a", "b"):
        announced.add(ContainerAnnounced(NOTIFICATION, name, LinuxResources(shares=1024)), 0.0, 7)
    announced.drop("u", "a")
    announced.drop("u", "a")
    assert [each.name for each in announced.missing_from([pod()], 0.0)] == ["b"]
    assert announced.missing_from([pod()], PATIENCE_SECONDS) == ()


def in_api(uid: str, phase: Phase = Phase.PENDING) -> dict[str, ApiPod]:
    metadata = {"uid": uid, "namespace": "ns", "name": "n"}
    return {uid: apiobjects.from_object({"metadata": metadata, "status": {"phase": phase}})}


OTHER = msgspec.structs.replace(NOTIFICATION, uid="other", session=(1, 2))


def test_announcement_of_a_pod_that_the_api_server_removed_ends() -> None:
    announced = AnnouncedPods()
    announced.in_api(in_api("u"))
    announced.add(NOTIFICATION, 0.0, 7)
    announced.in_api(in_api("u"))
    assert len(announced.missing_from([], 0.0)) == 1
    announced.in_api({})
    assert announced.missing_from([], 0.0) == ()


def test_announcement_of_a_pod_that_was_removed_before_the_next_pass_ends() -> None:
    announced = AnnouncedPods()
    announced.in_api(in_api("u"))
    announced.add(NOTIFICATION, 0.0, 7)
    announced.in_api({})
    assert announced.missing_from([], 0.0) == ()


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED])
def test_announcement_of_a_pod_that_ended_in_the_api_ends(phase: Phase) -> None:
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    announced.in_api(in_api("u", phase))
    assert announced.missing_from([], 0.0) == ()


def test_announcement_of_a_pod_that_the_api_server_never_reported_stays() -> None:
    """For example a static pod, or a pod that the kubelet's watch reported first."""
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    for pods in ({}, in_api("v", Phase.FAILED), {}):
        announced.in_api(pods)
        assert len(announced.missing_from([], 0.0)) == 1


def test_a_deletion_request_does_not_end_an_announcement() -> None:
    """The kubelet may still wait for the call."""
    announced = AnnouncedPods()
    announced.add(NOTIFICATION, 0.0, 7)
    announced.in_api({"u": msgspec.structs.replace(in_api("u")["u"], deleted=True)})
    assert len(announced.missing_from([], 0.0)) == 1


def test_a_call_that_another_proxy_repeats_belongs_to_that_proxy() -> None:
    announced, containers = AnnouncedPods(), AnnouncedContainers()
    repeated = msgspec.structs.replace(OTHER, session=(1, 3))
    for pod in (OTHER, repeated):
        announced.add(pod, 0.0, 7)
        containers.add(ContainerAnnounced(pod, "a", LinuxResources(shares=1024)), 0.0, 7)
    for each in (announced, containers):
        each.session_ended((1, 2))
    (kept,) = announced.missing_from([], 0.0)
    assert len(containers.missing_from([kept], 0.0)) == 1
    for each in (announced, containers):
        each.session_ended((1, 3))
    assert announced.missing_from([], 0.0) == ()
    assert containers.missing_from([kept], 0.0) == ()
