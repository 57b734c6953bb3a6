"""Passes of an agent next to a kubelet with the static policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.kube.events import Regarding
from agent.kubelet.statefile import StateFileError
from agent.model.notifications import PodAnnounced
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import ContainerState
from agent.node.change_log import CLAIM_NOT_HONORED, INVALID_ANNOTATION, PodEvents
from tests.node.world import Recorded, World, claim

OTHER_CPUS = 'topolet_containers_with_other_cpus{{source="{}"}}'


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, cores=8)


def write_checkpoint(world: World, **pods: str) -> None:
    """The kubelet's checkpoint, of pods with a container `main`."""
    entries = {uid: {"main": cpus} for uid, cpus in pods.items()}
    text = json.dumps({"policyName": "static", "defaultCpuSet": "0-7", "entries": entries})
    (world.kubelet / "cpu_manager_state").write_text(text)


def add_api_pod(world: World, uid: str, cpus: str) -> ApiPod:
    pod = ApiPod(uid, "ns", uid, "n", Phase.PENDING, {}, claim(cpus), "guaranteed", 1)
    world.cluster_objects.pods[uid] = pod
    return pod


def test_container_with_fewer_cpus_than_the_kubelet_assigned_gets_them(world: World) -> None:
    """An agent that honoured the claims of such pods leaves this state."""
    lse = world.container(world.sandbox("lse", "LSE", "2-3", parent="/kubepods/podlse"), cpuset="0")
    ls = world.container(world.sandbox("ls", "LS"), cpuset="0,4-7")
    write_checkpoint(world, plain="2-3", lse="4-5")
    agent = world.agent()
    agent.reconcile()
    assert world.cpus(f"kubepods/podlse/{lse.id}") == "4-5"
    assert world.cpus(f"kubepods/burstable/podls/{ls.id}") == "0-1,6-7"
    assert world.metric("topolet_cpu_overlaps_total") == 1, "the LS pod ran on them"
    assert world.metric("topolet_containers_short_of_cpus") == 0
    # The scheduler corrects the annotation.
    assert world.metric(OTHER_CPUS.format("annotation")) == 1
    assert world.metric(OTHER_CPUS.format("checkpoint")) == 0
    decided = world.snapshot().pods["lse"].of("main")
    assert (decided.cpuset, decided.kubelet) == ("4-5", True)


def test_owner_that_moves_to_its_claim_is_not_an_overlap(world: World) -> None:
    """A kubelet releases the CPUs of a static pod when its file is removed, while the container
    still runs."""
    sandbox = world.sandbox("lse", "LSE", "2-3", parent="/kubepods/podlse")
    lse = world.container(sandbox, cpuset="4-5")
    ls = world.container(world.sandbox("ls", "LS"), cpuset="0-3,6-7")
    write_checkpoint(world, lse="4-5")
    agent = world.agent()
    agent.reconcile()
    write_checkpoint(world)
    agent.reconcile()
    assert world.cpus(f"kubepods/podlse/{lse.id}") == "2-3"
    assert world.cpus(f"kubepods/burstable/podls/{ls.id}") == "0-1,4-7"
    assert world.metric("topolet_cpu_overlaps_total") == 0


def test_the_claim_of_a_pod_that_the_kubelet_has_not_admitted_is_not_honoured(world: World) -> None:
    write_checkpoint(world, plain="2-3")
    agent = world.agent()
    add_api_pod(world, "lse", "4-5")
    agent.reconcile()
    assert "lse" not in world.snapshot().pods, "the creation is decided in a later pass"
    assert world.snapshot().owners == ()
    write_checkpoint(world, plain="2-3", lse="6-7")
    agent.notified([PodAnnounced("lse", "ns", "lse", {}, claim("4-5"), "/kubepods/podlse")])
    agent.reconcile()
    assert [(each.uid, each.cpuset) for each in world.snapshot().owners] == [("lse", "6-7")]


def test_without_the_static_policy_a_claim_is_honoured_before_the_pod_is_admitted(
    world: World,
) -> None:
    add_api_pod(world, "lse", "4-5")
    world.agent().reconcile()
    assert [each.cpuset for each in world.snapshot().owners] == ["4-5"]


def test_pod_that_loses_its_cpus_to_the_kubelet_gets_an_event(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    owner = world.container(world.sandbox("own", "LSE", "4-5"))
    add_api_pod(world, "own", "4-5")
    write_checkpoint(world)
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    agent.reconcile()
    assert world.cpus(f"kubepods/burstable/podown/{owner.id}") == "4-5"
    assert recorded.events == []
    write_checkpoint(world, plain="5")
    for _ in range(3):
        agent.reconcile()
    assert world.cpus(f"kubepods/burstable/podown/{owner.id}") == "4"
    assert world.metric("topolet_containers_short_of_cpus") == 1
    text = (
        f"annotation {RESOURCE_STATUS} claims CPUs 4-5, container main has CPUs 4 of its own: "
        "CPUs 5 are assigned by the kubelet"
    )
    assert recorded.events == [(Regarding("ns", "own", "own"), CLAIM_NOT_HONORED, text)]
    assert caplog.messages.count(f"pod ns/own: {text}") == 1
    write_checkpoint(world)
    agent.reconcile()
    assert world.metric("topolet_containers_short_of_cpus") == 0


def test_invalid_claim_is_reported_after_a_container_exists(world: World) -> None:
    sandbox = world.sandbox("own", "LSE", "x")
    add_api_pod(world, "own", "x")
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    agent.reconcile()
    assert recorded.events == []
    world.container(sandbox, state=ContainerState.CREATED)
    agent.reconcile()
    ((_, reason, note),) = recorded.events
    assert reason == INVALID_ANNOTATION
    assert note.startswith(f"annotation {RESOURCE_STATUS}: cpuset: ")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_torn_checkpoint_changes_no_cpus_of_the_kubelets_pods(
    world: World, restarts: bool
) -> None:
    """An agent that has not read it before changes nothing."""
    plain = world.container(world.sandbox("plain", parent="/kubepods/podplain"), cpuset="4-5")
    write_checkpoint(world, plain="4-5")
    agent = world.agent()
    agent.reconcile()
    file = world.kubelet / "cpu_manager_state"
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    ls = world.container(world.sandbox("ls", "LS"))
    groups = f"kubepods/podplain/{plain.id}", f"kubepods/burstable/podls/{ls.id}"
    if restarts:
        agent = world.agent()
        with pytest.raises(StateFileError, match=str(file)):
            agent.reconcile()
    else:
        agent.reconcile()
    assert [world.cpus(group) for group in groups] == ["4-5", "0-7" if restarts else "0-3,6-7"]
    file.write_text(whole)
    agent.reconcile()
    assert [world.cpus(group) for group in groups] == ["4-5", "0-3,6-7"]
