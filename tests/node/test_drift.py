from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from agent.allocate.device_holders.reported_devices import Carriers
from agent.cgroup.hierarchy import Hierarchy
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.visibility import DeviceNode, Visibility, VisibleGpu
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner
from agent.node import drift
from agent.node.drift import (
    DRIFT_REMEDIES,
    DriftKind,
    Finding,
    ObservedContainer,
    device_drift,
    findings,
    members,
    own_numbers,
)
from tests.node.procfs import process

LSE = Owner("lse", "ns/lse", QoS.LSE, "2-3")
LSR = Owner("lsr", "ns/lsr", QoS.LSR, "4-5")


GPU = VisibleGpu("GPU-11111111-2222-3333-4444-555555555555", "0")
FOREIGN = "GPU-99999999-2222-3333-4444-555555555555"
NIC = DeviceNode("/dev/infiniband/uverbs0")
DECIDED = Visibility(gpus=(GPU,), nodes={"rdma": (NIC,)}, environment=(("CUDA_MEM", "8"),))


def observed(
    uid: str,
    qos: QoS = QoS.LS,
    problem: str = "",
    variables: tuple[str, ...] = (),
    devices: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    **cpus: str,
) -> ObservedContainer:
    """A container, by default without drift. `devices`: missing ones, and those of others."""
    sets = {name: CpuSet.parse(text) for name, text in cpus.items()}
    return ObservedContainer(
        uid,
        f"ns/{uid} main",
        qos,
        problem=problem,
        devices_missing=devices[0],
        devices_foreign=devices[1],
        variables=variables,
        **sets,
    )


@pytest.mark.parametrize(
    "container",
    [
        observed("lse", QoS.LSE, claimed="2-3", wanted="2-3", group="2-3", processes="2-3"),
        observed("lsr", QoS.LSR, claimed="4", wanted="4", group="4"),
        observed("a", wanted="0-1", group="0-1", processes="0-1"),
        observed("a", wanted="0-1", group="0-1", processes="1"),
        observed("be", QoS.BE, wanted="0-1,4-5", group="0-1,4-5"),
        observed("g", kubelet="6-7", group="6-7"),
        observed("quiet", group="0-1"),
        observed("mems", wanted="0", group="0", wanted_mems="0", mems="0"),
    ],
)
def test_no_drift(container: ObservedContainer) -> None:
    assert findings([container], [LSE, LSR]) == ()


OWNED_BY_LSE, OWNED_BY_LSR = "ns/lse owns them", "ns/lsr owns them"


@pytest.mark.parametrize(
    ("container", "kind", "values"),
    [
        (observed("a", wanted="0-1", group="0"), DriftKind.GROUP, ("0-1", "0")),
        (observed("a", group="0", processes="0-1"), DriftKind.PROCESSES, ("0", "0-1")),
        (observed("a"), DriftKind.NO_GROUP, ()),
        (observed("g", kubelet="6-7", group="0-7"), DriftKind.KUBELET, ("6-7", "0-7")),
        (observed("g", kubelet="6-7", group="2-7"), DriftKind.OVERLAP, ("", "4-5", OWNED_BY_LSR)),
        (observed("new", claimed="0", group="0"), DriftKind.CLAIM_UNSEEN, ("0", "0")),
        (
            observed("bad", problem="CPUs 9 do not exist", wanted="0", group="0"),
            DriftKind.CLAIM,
            ("", "0", "CPUs 9 do not exist"),
        ),
        (
            observed("lse", QoS.LSE, claimed="2-3,8", wanted="2-3", group="2-3"),
            DriftKind.CLAIM,
            ("2-3,8", "2-3", "CPUs 8 are not online"),
        ),
        (observed("a", group="1-2"), DriftKind.OVERLAP, ("", "2", OWNED_BY_LSE)),
        (observed("be", QoS.BE, group="3-4"), DriftKind.OVERLAP, ("", "3", OWNED_BY_LSE)),
        (
            observed("m", group="0", wanted_mems="0", mems="0-1"),
            DriftKind.MEMORY_NODES,
            ("0", "0-1"),
        ),
        (
            observed("d", group="0", devices=((GPU.uuid,), (FOREIGN,))),
            DriftKind.DEVICES,
            (GPU.uuid, FOREIGN),
        ),
        (
            observed("e", group="0", variables=("CUDA_MEM",)),
            DriftKind.ENVIRONMENT,
            ("", "", "not the decided value: CUDA_MEM"),
        ),
    ],
)
def test_drift(container: ObservedContainer, kind: DriftKind, values: tuple[str, ...]) -> None:
    """`values`: the expected ones, those that were found, and a detail."""
    expected, found, detail = (*values, "", "", "")[:3]
    assert Finding(kind, container.title, expected, found, detail) in findings(
        [container], [LSE, LSR]
    )


def test_every_drift_has_a_remedy_and_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    assert set(DRIFT_REMEDIES) == set(DriftKind)
    for kind in DriftKind:
        assert f"`{kind}`" in page


def carriers(visible: str, nodes: tuple[str, ...], **variables: str) -> Carriers:
    environment = {"NVIDIA_VISIBLE_DEVICES": visible, **variables}
    return Carriers(environment=tuple(environment.items()), nodes=nodes)


@pytest.mark.parametrize("name", [GPU.uuid, GPU.index])
def test_a_container_with_its_devices_has_no_drift(name: str) -> None:
    assert device_drift(DECIDED, carriers(name, (NIC.path,), CUDA_MEM="8")) == ((), (), ())


def test_a_missing_device_and_a_device_of_others() -> None:
    found = device_drift(DECIDED, carriers(FOREIGN, (), CUDA_MEM="s3cr3t"))
    assert found == ((GPU.uuid, NIC.path), (FOREIGN,), ("CUDA_MEM",))


def test_a_card_by_its_cdi_name() -> None:
    carriers_of_runtime = Carriers(cdi_devices=(f"nvidia.com/gpu={GPU.uuid}",), nodes=(NIC.path,))
    assert device_drift(DECIDED, carriers_of_runtime)[:2] == ((), ())


def test_a_privileged_container_has_all_device_nodes() -> None:
    carriers_of_runtime = Carriers((("NVIDIA_VISIBLE_DEVICES", GPU.uuid),), privileged=True)
    assert device_drift(DECIDED, carriers_of_runtime)[:2] == ((), ())


def test_devices_that_are_refused_or_not_decided_are_no_drift() -> None:
    other = carriers(FOREIGN, ())
    refused = Visibility(gpus=(GPU,), refused="another pod has it")
    for visible in (refused, Visibility(), Visibility(gpus=())):
        assert device_drift(visible, other) == ((), (), ())


def test_a_procfs_of_another_pid_namespace_has_other_numbers(tmp_path: Path) -> None:
    """Otherwise process 1 of the host seems to run in the cgroup of the agent's container."""
    assert own_numbers("/proc")
    (tmp_path / "self").symlink_to("4711")
    assert not own_numbers(str(tmp_path))
    assert not own_numbers(str(tmp_path / "none"))


class HostHierarchy:
    """A hierarchy with the procfs of another PID namespace, as `members` needs it."""

    def __init__(self, proc: str) -> None:
        self.proc = proc


def test_processes_of_a_group_are_found_by_the_procfs_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's container sees groups relative to its own cgroup namespace."""
    monkeypatch.setattr(drift, "own_root", lambda hierarchy: "/kubepods/podagent/c")
    process(tmp_path, 7, "sleep", groups="0::/../../podweb/d\n")
    process(tmp_path, 8, "sleep", groups="5:cpuset,cpu:/../../podweb/d\n0::/\n")
    process(tmp_path, 9, "topolet", groups="0::/\n")
    process(tmp_path, 10, "init", groups="0::/../../../../../x\n")
    pids_of = members(cast(Hierarchy, HostHierarchy(str(tmp_path / "proc"))))
    assert list(pids_of("/kubepods/podweb/d")) == [7, 8]
    assert list(pids_of("/kubepods/podagent/c")) == [9]
    assert list(pids_of("/kubepods/none")) == []


def test_without_a_procfs_no_process_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`topolet doctor` once ended with a traceback where the root has no /proc."""
    monkeypatch.setattr(drift, "own_root", lambda hierarchy: "/")
    assert list(members(cast(Hierarchy, HostHierarchy(str(tmp_path / "proc"))))("/a")) == []


def test_without_a_known_namespace_no_process_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "own_root", lambda hierarchy: None)
    process(tmp_path, 7, "sleep", groups="0::/a\n")
    assert list(members(cast(Hierarchy, HostHierarchy(str(tmp_path / "proc"))))("/a")) == []
