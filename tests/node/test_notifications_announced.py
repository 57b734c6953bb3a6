import msgspec
import pytest

from agent.model.linux_resources import LinuxResources
from agent.model.notifications import ContainerAnnounced, PodAnnounced
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.notifications import (
    PATIENCE_SECONDS,
    AnnouncedContainer,
    AnnouncedContainers,
    AnnouncedPods,
)

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
