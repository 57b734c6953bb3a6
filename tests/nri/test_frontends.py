"""The CRI relay and the NRI plugin are frontends of the same hooks, with the same results."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks import cpuset, visibility
from agent.hooks.cpuset import Override
from agent.hooks.requests import CreateContainer, UpdateContainer
from agent.hooks.visibility import RefusedError
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.visibility import MOUNT_ROOT, VISIBLE_DEVICES, DeviceNode, VisibleGpu
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources, to_cri
from agent.model.snapshot import Wanted
from agent.nri import messages
from agent.proto import cri_pb2, nri_pb2
from agent.proxy import gate as cri
from agent.proxy.gate import carried
from tests.nri.harness import pod
from tests.proxy.harness import sandbox

CPUS = st.sets(st.integers(0, 7), min_size=1).map(lambda cpus: str(CpuSet(cpus)))
QUOTA = st.just(NO_QUOTA) | st.builds(
    CpuQuota, st.integers(1_000, 1_000_000), st.sampled_from([10_000, 100_000])
)
MEMORY = st.integers(1, 1 << 40)
SHARES = st.integers(2, 262_144)
RESOURCES = st.builds(
    LinuxResources,
    st.none() | CPUS,
    st.none() | st.sampled_from(["0", "1"]),
    st.none() | SHARES,
    st.none() | QUOTA,
    st.none() | MEMORY,
)
WANTED = st.builds(Wanted, RESOURCES, exclusive=st.booleans())


def in_cri(requested: LinuxResources) -> cri_pb2.LinuxContainerResources:
    return cri_pb2.LinuxContainerResources.FromString(to_cri(requested))


def in_nri(requested: LinuxResources) -> nri_pb2.LinuxResources:
    resources = nri_pb2.LinuxResources()
    resources.cpu.cpus, resources.cpu.mems = requested.cpuset or "", requested.mems or ""
    resources.cpu.shares.value = requested.shares or 0
    if requested.quota is not None:
        resources.cpu.quota.value = requested.quota.microseconds
        resources.cpu.period.value = requested.quota.period_microseconds
    resources.memory.limit.value = requested.memory_limit_bytes or 0
    return resources


def merged(requested: LinuxResources, changes: nri_pb2.LinuxResources) -> LinuxResources:
    """As the runtime merges a plugin's values: values that are set override."""
    resources = in_nri(requested)
    resources.MergeFrom(changes)
    return messages.requested_resources(resources)


@given(WANTED, RESOURCES)
def test_frontends_create_the_same_container(wanted: Wanted, requested: LinuxResources) -> None:
    message = cri_pb2.CreateContainerRequest(sandbox_config=sandbox("p", "LS", "1"))
    message.config.metadata.name = "main"
    message.config.linux.resources.CopyFrom(in_cri(requested))
    raw = message.SerializeToString()
    by_relay = cri.create_container(raw)
    by_plugin = CreateContainer(messages.pod(pod("p", "LS", "1")), "main", requested)
    assert by_relay == by_plugin, "the hooks get the same request"
    changes = cpuset.changes(by_plugin, Override(wanted))
    rewritten = cri.create_request_with(raw, changes) or raw
    adjustment = messages.adjustment(changes, ()) or nri_pb2.ContainerAdjustment()
    assert cri.create_container(rewritten).requested == changes.resources.over(requested)
    assert merged(requested, adjustment.linux.resources) == changes.resources.over(requested)


@given(WANTED, RESOURCES)
def test_frontends_update_a_container_in_the_same_way(
    wanted: Wanted, requested: LinuxResources
) -> None:
    message = cri_pb2.UpdateContainerResourcesRequest(container_id="c", linux=in_cri(requested))
    raw = message.SerializeToString()
    by_plugin = UpdateContainer("c", messages.requested_resources(in_nri(requested)))
    assert cri.update_container(raw) == by_plugin
    changes = cpuset.changes(by_plugin, Override(wanted))
    rewritten = cri.update_request_with(raw, changes) or raw
    update = messages.update("c", changes.resources)
    assert update.container_id == "c"
    assert cri.update_container(rewritten).requested == changes.resources.over(requested)
    assert merged(requested, update.linux.resources) == changes.resources.over(requested)


NAMES = st.sampled_from(["GPU-x", "GPU-own", "0", "MIG-x", "nvidia.com/gpu=GPU-x"])
PATHS = st.sampled_from(["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/fuse"])
CARD = VisibleGpu("GPU-own", "1", (DeviceNode("/dev/nvidia1", 195, 1),))


@given(
    st.none() | NAMES,
    st.lists(NAMES.filter(lambda name: "=" not in name), unique=True, max_size=2),
    st.lists(PATHS, unique=True, max_size=3),
    st.booleans(),
)
def test_frontends_give_a_container_the_same_devices(
    value: str | None, mounts: list[str], nodes: list[str], has_card: bool
) -> None:
    message = cri_pb2.CreateContainerRequest()
    container = nri_pb2.Container()
    if value is not None:
        message.config.envs.add(key=VISIBLE_DEVICES, value=value.encode())
        container.env.append(f"{VISIBLE_DEVICES}={value}".encode())
    for name in mounts:
        mount_path = f"{MOUNT_ROOT}/{name}"
        message.config.mounts.add(container_path=mount_path, host_path="/dev/null")
        container.mounts.add(destination=mount_path, source="/dev/null")
    for number, path in enumerate(nodes):
        message.config.devices.add(container_path=path, host_path=path, permissions="rw")
        container.linux.devices.add(path=path, type="c", major=7, minor=number)
    raw = message.SerializeToString()
    cards = (CARD,) if has_card else ()
    try:
        by_relay = visibility.rewritten(carried(raw), cards)
    except RefusedError as error:
        with pytest.raises(RefusedError, match=re.escape(str(error))):
            visibility.rewritten(messages.carried(container, nri_pb2.PodSandbox()), cards)
        return
    by_plugin = visibility.rewritten(messages.carried(container, nri_pb2.PodSandbox()), cards)
    config = cri_pb2.CreateContainerRequest.FromString(
        cri.create_request_with(raw, by_relay) or raw
    ).config
    adjustment = messages.adjustment(by_plugin, ()) or nri_pb2.ContainerAdjustment()

    def adjusted(present: list[str], changes: list[str]) -> set[str]:
        removed = {each[1:] for each in changes if each.startswith("-")}
        added = {each for each in changes if not each.startswith("-")}
        return (set(present) - removed) | added

    assert {each.container_path for each in config.mounts} == adjusted(
        [each.destination for each in container.mounts],
        [each.destination for each in adjustment.mounts],
    )
    assert {each.container_path for each in config.devices} == adjusted(
        nodes, [each.path for each in adjustment.linux.devices]
    )
    variables = {each.key: each.value.decode() for each in config.envs}
    before = {} if value is None else {VISIBLE_DEVICES: value}
    assert variables == {**before, **{each.key: each.value for each in adjustment.env}}
