"""Creations under a node-local CPU policy: the cpuset and the mounted folder."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.shares import whole_cpus
from agent.hooks import cpuset
from agent.hooks.cpuset import Keep, Override
from agent.hooks.requests import CreateContainer
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import CpuPolicy, Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Wait
from agent.proto import cri_pb2 as pb
from agent.proxy import gate as cri
from agent.proxy.gate import create_container, mounted
from tests.hooks.admission_harness import container

TWO = Wanted(LinuxResources("1-2", quota=NO_QUOTA), exclusive=True)
POOL = Wanted(LinuxResources("0,3"))


def request(
    shares: int,
    name: str = "main",
    *,
    uid: str = "g",
    qos: str = "",
    claim: str = "",
    kube: str = "",
) -> CreateContainer:
    creation = container(uid, qos, claim, shares=shares, kube=kube)
    return msgspec.structs.replace(creation, container_name=name)


def snapshot(policy: CpuPolicy = "static", **containers: Wanted) -> Snapshot:
    return Snapshot(
        generation=1,
        listed_at=100,
        boot_id="b",
        kubelet_static=False,
        pools={"ls": (Pool(0, 0, "0,3"),), "be": (Pool(0, 0, "0,3"),)},
        owners=(Owner("g", "ns/g", QoS.LSE, "1-2"),),
        pods={"g": PodWanted("ns/g", QoS.LS, POOL, containers)},
        containers={},
        cpu_policy=policy,
    )


UNDECIDED = Wait("the agent has not decided about this container")


@pytest.mark.parametrize(
    ("create", "snap", "answer"),
    [
        pytest.param(request(2048), snapshot(main=TWO), Override(TWO), id="decided"),
        pytest.param(request(2048), snapshot(), UNDECIDED, id="not decided"),
        pytest.param(request(2048, "b"), snapshot(main=TWO), UNDECIDED, id="another container"),
        pytest.param(request(2048, uid="new"), snapshot(), UNDECIDED, id="unknown pod"),
        pytest.param(request(3072), snapshot(main=TWO), UNDECIDED, id="resized since it ran"),
        pytest.param(request(2048), snapshot(main=POOL), Override(POOL), id="decided to share"),
        pytest.param(
            request(2048),
            snapshot(main=Wanted(LinuxResources("0,3"), blocked="why")),
            Wait("why"),
            id="refused",
        ),
        pytest.param(request(2048), snapshot("none"), Override(POOL), id="no policy"),
        pytest.param(request(1536), snapshot(), Override(POOL), id="a fraction of a CPU"),
        pytest.param(request(2), snapshot(), Override(POOL), id="no request of its own"),
        pytest.param(request(2048, qos="LS"), snapshot(), Override(POOL), id="QoS label of a pool"),
        pytest.param(request(2048, kube="/burstable"), snapshot(), Override(POOL), id="burstable"),
        pytest.param(request(2048), None, Keep(), id="no snapshot"),
        pytest.param(
            request(2048, claim="1-2"), snapshot(), Override(POOL), id="a scheduler chose its CPUs"
        ),
    ],
)
def test_cpus_of_a_creation_under_a_node_local_policy(
    create: CreateContainer, snap: Snapshot | None, answer: cpuset.Answer
) -> None:
    assert cpuset.create(create, snap, []) == answer


@pytest.mark.parametrize(
    ("shares", "cpus"),
    [(0, 0), (2, 0), (1023, 0), (1024, 1), (1025, 0), (1536, 0), (2048, 2), (261_120, 255),
     (262_144, 0), (-1024, 0)],
)  # fmt: skip
def test_whole_cpus_by_shares(shares: int, cpus: int) -> None:
    assert whole_cpus(shares) == cpus


def test_no_fractional_request_is_read_as_whole_cpus() -> None:
    """For all shares that the kubelet computes."""
    for milli in range(1, 20_000):
        expected = milli // 1000 if milli % 1000 == 0 else 0
        assert whole_cpus(max(2, milli * 1024 // 1000)) == expected


@pytest.mark.parametrize("in_use", [False, True])
def test_folder_is_mounted_read_only_unless_the_path_is_in_use(in_use: bool) -> None:
    message = pb.CreateContainerRequest()
    message.config.metadata.name = "main"
    message.config.mounts.add(container_path="/run/topolet" if in_use else "/x", host_path="/y")
    raw = message.SerializeToString()
    changes = cpuset.changes(create_container(raw), Override(TWO), "/state/g/main")
    changed = cri.create_request_with(raw, changes)
    assert changed is not None
    config = pb.CreateContainerRequest.FromString(changed).config
    assert config.linux.resources.cpuset_cpus == "1-2"
    assert config.mounts[0] == message.config.mounts[0]
    mounts = [pb.Mount(container_path="/run/topolet", host_path="/state/g/main", readonly=True)]
    assert list(config.mounts)[1:] == ([] if in_use else mounts)
    assert "/run/topolet" in mounted(changed)
