"""Requests and responses, and a response after koord-runtime-proxy merged it into the request."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks.requests import UNCHANGED, Changes
from agent.koordinator import service as messages
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.proto import koordinator_hooks_pb2 as pb
from tests.koordinator.merging import merged


def request(**resources: object) -> pb.ContainerResourceHookRequest:
    it = pb.ContainerResourceHookRequest(
        pod_meta=pb.PodSandboxMetadata(name="p", uid="u", namespace="ns"),
        container_meta=pb.ContainerMetadata(name="main", id="c1"),
        pod_cgroup_parent="/kubepods/podu",
    )
    it.container_envs.update({"A": "1", "B": "2"})
    it.container_resources.CopyFrom(pb.LinuxContainerResources(**resources))  # type: ignore[arg-type]
    return it


def test_no_change_sets_nothing() -> None:
    assert messages.response_with(request(cpuset_cpus="0-3"), UNCHANGED).ByteSize() == 0


def test_a_quota_is_lifted() -> None:
    requested = request(cpu_quota=20_000, cpu_period=10_000)
    result = merged(
        requested, messages.response_with(requested, Changes(LinuxResources(quota=NO_QUOTA)))
    )
    assert result.container_resources.cpu_quota == -1
    assert result.container_resources.cpu_period == 10_000


def test_a_memory_limit_can_not_be_lifted() -> None:
    requested = request(memory_limit_in_bytes=1 << 30)
    assert (
        messages.response_with(requested, Changes(LinuxResources(memory_limit_bytes=-1))).ByteSize()
        == 0
    )


def test_a_variable_is_added_to_the_others() -> None:
    requested = request()
    result = merged(
        requested, messages.response_with(requested, Changes(environment=(("B", "3"), ("C", "4"))))
    )
    assert dict(result.container_envs) == {"A": "1", "B": "3", "C": "4"}


_CPUS = st.sampled_from(["", "0", "0-3", "1,3"])
_LARGE = st.integers(0, 1 << 40)
_RESOURCES = st.fixed_dictionaries(
    {
        "cpuset_cpus": _CPUS,
        "cpuset_mems": _CPUS,
        "cpu_shares": _LARGE,
        "memory_limit_in_bytes": _LARGE,
        "oom_score_adj": st.integers(-1000, 1000),
        "cpu_period": st.sampled_from([0, 10_000, 100_000]),
        "cpu_quota": st.sampled_from([-1, 0, 10_000, 250_000]),
    }
)
_CHANGED = st.builds(
    LinuxResources,
    cpuset=st.none() | st.sampled_from(["0", "0-3"]),
    mems=st.none() | st.sampled_from(["0", "0-1"]),
    shares=st.none() | st.integers(2, 262_144),
    quota=st.none() | st.sampled_from([NO_QUOTA, CpuQuota(50_000)]),
    memory_limit_bytes=st.none() | st.integers(1, 1 << 40),
)


@given(_RESOURCES, _CHANGED)
def test_a_merged_response_gives_the_request_with_the_changes(
    resources: dict[str, object], changed: LinuxResources
) -> None:
    requested = request(**resources)
    result = merged(requested, messages.response_with(requested, Changes(changed)))
    assert messages.creation_of(result).requested == changed.over(
        messages.creation_of(requested).requested
    )
    for kept in (requested, result):
        for name in ("cpu_quota", "cpu_period", "cpu_shares", "memory_limit_in_bytes"):
            kept.container_resources.ClearField(name)
        kept.container_resources.cpuset_cpus = kept.container_resources.cpuset_mems = ""
    assert result == requested


def test_fields_of_a_create_request() -> None:
    it = request(cpu_shares=512, cpuset_cpus="0-1", cpu_quota=10_000, cpu_period=50_000)
    it.pod_labels["koordinator.sh/qosClass"] = "LSE"
    it.pod_labels["app"] = "x"
    parsed = messages.creation_of(it)
    assert (parsed.pod.uid, parsed.pod.namespace, parsed.pod.name) == ("u", "ns", "p")
    assert parsed.pod.labels == {"koordinator.sh/qosClass": "LSE"}
    assert parsed.pod.cgroup_parent == "/kubepods/podu"
    assert parsed.container_name == "main"
    assert parsed.requested == LinuxResources("0-1", shares=512, quota=CpuQuota(10_000, 50_000))


@pytest.mark.parametrize("uid", ["u", ""])
def test_a_sandbox_and_its_containers_have_the_same_pod(uid: str) -> None:
    sandbox = pb.PodSandboxHookRequest(
        pod_meta=pb.PodSandboxMetadata(name="p", uid=uid, namespace="ns")
    )
    of_container = request()
    of_container.pod_meta.uid = uid
    container_ref = messages.container_ref(of_container)
    assert (
        container_ref.pod_uid
        == messages.sandbox_of(sandbox).uid
        == messages.creation_of(of_container).pod.uid
    )
    assert msgspec.structs.astuple(container_ref)[1:] == ("main", "c1")
