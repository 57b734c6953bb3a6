"""Answers that a real runtime does not give on request; tests/integration covers the others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.allocate.device_holders.reported_devices import Carriers
from agent.cgroup.hierarchy import Hierarchy
from agent.cri.client import VerboseStatus
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.model.pod.pods import ContainerState, Pod
from agent.model.verdict import Code
from agent.node.runtime_view import MAX_LIVING, CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError
from tests.node.world import World


def runtime_view(world: World, *, requests: bool = False, devices: bool = False) -> RuntimeView:
    locator = CgroupLocator(Hierarchy(str(world.cpuset.parent)))
    return RuntimeView(world.runtime, locator, requests=requests, devices=devices)


@pytest.fixture
def observer(world: World) -> RuntimeView:
    return runtime_view(world)


def pods(observer: RuntimeView) -> dict[str, Pod]:
    return {pod.uid: pod for pod in observer.observe().pods}


def groups(pod: Pod) -> dict[str, str | None]:
    return {each.id: each.group for each in pod.containers}


def test_container_that_vanishes_between_list_and_status(
    world: World, observer: RuntimeView
) -> None:
    pod = world.sandbox("p")
    world.container(pod, "listed")
    removed = world.container(pod, "removed")
    world.runtime.failing[removed.id] = Code.NOT_FOUND
    assert list(groups(pods(observer)["p"])) == ["c-p-listed"]


def test_one_container_without_an_answer_does_not_hide_the_others(
    world: World, observer: RuntimeView, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable, readable = world.sandbox("a"), world.sandbox("b")
    without_status = world.container(unreadable)
    world.container(readable)
    world.runtime.failing[without_status.id] = Code.UNKNOWN
    for _ in range(2):
        seen = pods(observer)
        assert groups(seen["a"]) == {
            without_status.id: f"/kubepods/burstable/poda/{without_status.id}"
        }
        assert groups(seen["b"]) == {"c-b-main": "/kubepods/burstable/podb/c-b-main"}
    assert len([each for each in caplog.records if without_status.id in each.getMessage()]) == 1


def test_sandbox_without_an_answer_keeps_the_class_of_its_containers(
    world: World, observer: RuntimeView
) -> None:
    pod = world.sandbox("p", parent="/kubepods/besteffort/podp")
    world.container(pod)
    world.runtime.failing[pod.id] = Code.INTERNAL
    assert pods(observer)["p"].kube_class == "besteffort"
    del world.runtime.failing[pod.id]
    world.group(f"kubepods/besteffort/podp/{pod.id}")
    (sandbox,) = pods(observer)["p"].sandboxes
    assert sandbox.group == f"/kubepods/besteffort/podp/{pod.id}"


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED])
def test_runtime_that_does_not_answer_ends_the_pass(
    world: World, observer: RuntimeView, code: Code
) -> None:
    for uid in "pq":
        world.runtime.failing[world.container(world.sandbox(uid)).id] = code
    with pytest.raises(RpcError):
        observer.observe()


def test_hanging_status_is_requested_again_later(
    world: World, observer: RuntimeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("agent.node.runtime_view.time.monotonic", lambda: now)
    hanging = world.container(world.sandbox("p"), state=ContainerState.CREATED)
    world.container(world.sandbox("q"))
    world.runtime.failing[hanging.id] = Code.DEADLINE_EXCEEDED
    assert pods(observer).keys() == {"p", "q"}
    del world.runtime.failing[hanging.id]
    world.runtime.set_resources(hanging.id, cpuset="1")
    assert observer.observe().statuses[hanging.id].resources.cpuset is None
    now += 61
    assert observer.observe().statuses[hanging.id].resources.cpuset == "1"


def test_two_sandboxes_of_a_pod_are_one_pod(world: World, observer: RuntimeView) -> None:
    old = world.sandbox("p", "LS", suffix="-0", ready=False, created_at=1)
    new = world.sandbox("p", "LSE", suffix="-1", created_at=2)
    world.container(old, "old")
    world.container(new, "new")
    pod = pods(observer)["p"]
    assert (pod.created_at, pod.qos) == (1, "LSE")
    assert [each.name for each in pod.containers] == ["new", "old"]
    assert [each.id for each in pod.sandboxes] == ["s-p-1"]


def test_sandbox_that_is_not_ready_counts_while_it_has_a_container(
    world: World, observer: RuntimeView
) -> None:
    pod = world.sandbox("p", ready=False)
    assert pods(observer) == {}
    container = world.container(pod)
    assert list(pods(observer)) == ["p"]
    world.end_container(container)
    assert pods(observer) == {}


def test_status_of_a_container_without_a_cgroup_is_requested_again(
    world: World, observer: RuntimeView
) -> None:
    pod = world.sandbox("p")
    container = world.container(pod)
    hidden = world.cpuset / f"kubepods/burstable/podp/{container.id}"
    hidden.rename(world.cpuset / "elsewhere")
    assert groups(pods(observer)["p"]) == {container.id: None}
    (world.cpuset / "elsewhere").rename(hidden)
    assert groups(pods(observer)["p"]) == {container.id: f"/kubepods/burstable/podp/{container.id}"}


def test_the_process_of_a_pod_is_that_of_its_sandbox_or_of_a_container_that_runs(
    world: World, observer: RuntimeView
) -> None:
    for uid in ("a", "b", "c"):
        container = world.container(world.sandbox(uid))
        world.runtime.statuses[container.id] = msgspec.structs.replace(
            world.runtime.statuses[container.id], pid={"c": 0}.get(uid, 70)
        )
    sandbox = next(each for each in world.runtime.listed_sandboxes if each.uid == "a").id
    world.runtime.statuses[sandbox] = msgspec.structs.replace(
        world.runtime.statuses[sandbox], pid=60
    )
    seen = pods(observer)
    processes = [observer.process_of(seen[uid]) for uid in ("a", "b", "c")]
    assert processes == [(sandbox, 60), ("c-b-main", 70), ("", 0)]
    assert [part.pid for part in (*seen["a"].sandboxes, *seen["b"].containers)] == [60, 70]


@pytest.mark.parametrize("path", ["", "/system.slice/sshd.service", "/"])
def test_pid_of_another_service_is_not_taken_for_the_container(
    world: World, path: str, tmp_path: Path
) -> None:
    proc = tmp_path / "proc" / "77"
    proc.mkdir(parents=True)
    locator = CgroupLocator(Hierarchy(str(world.cpuset.parent), str(tmp_path / "proc")))
    (proc / "cgroup").write_text(f"4:cpuset:{path or '/odd/place/c1'}\n")
    found = locator.group_of("c1", VerboseStatus(pid=77), "/kubepods/podp")
    assert found == (None if path else "/odd/place/c1")


def test_ended_containers_are_listed_if_requests_matter(world: World) -> None:
    observer = runtime_view(world, requests=True)
    pod = world.sandbox("p")
    for created_at, name in enumerate(["init", "main", "main", "again"], 1):
        container = world.container(pod, name, cpus=created_at, created_at=created_at)
        world.end_container(container, still_listed=True)
    world.container(pod, "again", created_at=9)
    removed = world.container(pod, "removed", created_at=5)
    world.end_container(removed, still_listed=True)
    world.runtime.failing[removed.id] = Code.NOT_FOUND
    (seen,) = observer.observe().pods
    assert [each.name for each in seen.containers] == ["again"]
    assert [(each.name, each.created_at, each.shares, each.cpuset) for each in seen.ended] == [
        ("init", 1, 1024, "0-3"),
        ("main", 3, 3072, "0-3"),
    ]
    without_requests = runtime_view(world)
    assert pods(without_requests)["p"].ended == ()
    world.runtime.listed_sandboxes[0] = msgspec.structs.replace(pod, ready=False)
    assert pods(observer)["p"].ended == ()


def test_devices_of_a_container_are_requested_once(world: World) -> None:
    observer = runtime_view(world, devices=True)
    pod = world.sandbox("p")
    with_variable, plain = world.container(pod, "with-variable"), world.container(pod, "plain")
    created = world.container(pod, "created", state=ContainerState.CREATED)
    variable = (("NVIDIA_VISIBLE_DEVICES", "GPU-1"),)
    world.runtime.carriers[with_variable.id] = Carriers(environment=variable)
    expected = (ReportedDevices("p", "with-variable", "", ("GPU-1",), HoldingSource.ENVIRONMENT),)
    for _ in range(3):
        assert observer.observe().devices == expected
    assert sorted(world.runtime.requested_carriers) == sorted(
        [with_variable.id, plain.id, created.id]
    )
    world.end_container(with_variable)
    assert observer.observe().devices == ()


def test_devices_of_a_container_are_requested_again_without_an_answer(world: World) -> None:
    observer = runtime_view(world, devices=True)
    container = world.container(world.sandbox("p"))
    world.runtime.carriers[container.id] = Carriers(cdi_devices=("nvidia.com/gpu=GPU-1",))
    world.runtime.failing[container.id] = Code.UNKNOWN
    assert observer.observe().devices == ()
    del world.runtime.failing[container.id]
    assert [each.names for each in observer.observe().devices] == [("GPU-1",)]


@pytest.mark.parametrize("state", [ContainerState.CREATED, ContainerState.RUNNING])
def test_a_status_that_is_too_large_is_requested_and_reported_once(
    world: World, caplog: pytest.LogCaptureFixture, state: ContainerState
) -> None:
    observer = runtime_view(world, requests=True, devices=True)
    container = world.container(world.sandbox("p"), state=state)
    world.runtime.failing[container.id] = Code.RESOURCE_EXHAUSTED
    for _ in range(3):
        running = state is ContainerState.RUNNING
        group = f"/kubepods/burstable/podp/{container.id}" if running else None
        assert groups(pods(observer)["p"]) == {container.id: group}
    assert world.runtime.status_calls[container.id] == 1
    assert len([each for each in caplog.records if container.id in each.getMessage()]) == 1


def test_a_status_that_was_too_large_is_requested_again_after_a_change(world: World) -> None:
    observer = runtime_view(world, devices=True)
    container = world.container(world.sandbox("p"), state=ContainerState.CREATED)
    variable = (("NVIDIA_VISIBLE_DEVICES", "GPU-1"),)
    world.runtime.carriers[container.id] = Carriers(environment=variable)
    world.runtime.failing[container.id] = Code.RESOURCE_EXHAUSTED
    observer.observe()
    world.runtime.listed_containers[0] = msgspec.structs.replace(
        container, state=ContainerState.RUNNING
    )
    observer.observe()
    assert world.runtime.status_calls[container.id] == 2
    world.runtime.failing.clear()
    assert observer.observe().devices == ()
    observer.changed(container.id)
    assert [each.names for each in observer.observe().devices] == [("GPU-1",)]


def test_the_status_of_a_sandbox_that_is_too_large_is_requested_once(
    world: World, observer: RuntimeView
) -> None:
    pod = world.sandbox("p")
    world.container(pod)
    world.runtime.failing[pod.id] = Code.RESOURCE_EXHAUSTED
    for _ in range(3):
        assert pods(observer)["p"].kube_class == "burstable"
    assert world.runtime.status_calls[pod.id] == 1


def test_texts_of_all_statuses_are_bounded(world: World, observer: RuntimeView) -> None:
    """The text of a status is bounded, and a runtime may list thousands of containers."""
    pod = world.sandbox("p")
    for number in range(1_000):
        container = world.container(pod, f"c{number}", state=ContainerState.CREATED)
        status = world.runtime.statuses[container.id]
        long_path = "\U0001f600" + "a" * 3_000
        world.runtime.statuses[container.id] = msgspec.structs.replace(
            status, cgroups_path=long_path
        )
    for _ in range(2):
        with pytest.raises(RpcError, match="paths and CPUs of all containers"):
            observer.observe()
    del world.runtime.listed_containers[100:]
    assert len(pods(observer)["p"].containers) == 100


def test_names_in_environments_of_many_containers_are_left_out_and_others_are_kept(
    world: World,
) -> None:
    observer = runtime_view(world, devices=True)
    pod = world.sandbox("p")
    names = ",".join(f"GPU-{number}" + "a" * 60 for number in range(900))
    for number in range(100):
        container = world.container(pod, f"c{number}")
        world.runtime.carriers[container.id] = Carriers(
            environment=(("NVIDIA_VISIBLE_DEVICES", names),),
            cdi_devices=(f"nvidia.com/gpu=GPU-{number}",),
        )
    found = observer.observe().devices
    by_runtime = [each.names for each in found if each.source is HoldingSource.CONTAINER]
    assert len(by_runtime) == 100
    assert 0 < len(found) - len(by_runtime) < 100


def test_names_of_devices_in_requests_are_bounded(world: World) -> None:
    observer = runtime_view(world, devices=True)
    pod = world.sandbox("p")
    names = tuple(f"nvidia.com/gpu=GPU-{number}" + "a" * 60 for number in range(700))
    for number in range(200):
        container = world.container(pod, f"c{number}")
        world.runtime.carriers[container.id] = Carriers(cdi_devices=names)
    with pytest.raises(RpcError, match="names of devices of all containers"):
        observer.observe()


def test_containers_that_have_not_ended_are_bounded(world: World, observer: RuntimeView) -> None:
    """Ended containers cost less, and a node may have thousands of them."""
    pod = world.sandbox("p")
    container = world.container(pod, state=ContainerState.CREATED)
    status = world.runtime.statuses[container.id]
    numbers = range(MAX_LIVING + 1)
    listed = [msgspec.structs.replace(container, id=f"c{number}") for number in numbers]
    world.runtime.statuses |= {each.id: status for each in listed}
    world.runtime.listed_containers = listed
    with pytest.raises(RpcError, match=f"more than {MAX_LIVING} containers"):
        observer.observe()
    world.runtime.listed_containers = [
        msgspec.structs.replace(each, state=ContainerState.ENDED) for each in listed
    ]
    assert pods(observer)["p"].containers == ()
