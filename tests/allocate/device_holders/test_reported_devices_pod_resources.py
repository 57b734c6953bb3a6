from __future__ import annotations

from agent.allocate.device_holders.holdings import conflicts
from agent.allocate.device_holders.names import meaning
from agent.allocate.device_holders.reported_devices import of_pod_resources
from agent.model.devices.holding import Form, HoldingSource, ReportedDevices
from agent.model.pod.pod_resources import (
    ClaimedDevice,
    ContainerResources,
    PluginDevice,
    PodResources,
    ResourceClaim,
)
from tests.allocate.device_holders.node import KEYS

DRIVER = "gpu.nvidia.com"


def pod(name: str, *claims: ResourceClaim, devices: tuple[PluginDevice, ...] = ()) -> PodResources:
    return PodResources(
        "default", name, (ContainerResources("main", devices=devices, claims=claims),)
    )


def claim(name: str, device: str, share: str | None = None) -> ResourceClaim:
    return ResourceClaim("default", name, (ClaimedDevice(DRIVER, "node", device, share=share),))


UIDS = {("default", "a"): "uid-a", ("default", "b"): "uid-b"}


def test_devices_and_claims_of_present_pods() -> None:
    devices = (
        PluginDevice("nvidia.com/gpu", "GPU-a1"),
        PluginDevice("nvidia.com/gpu", "GPU-b1"),
        PluginDevice("intel.com/sriov", "0000:18:00.1"),
    )
    found = of_pod_resources(
        (pod("a", claim("c", "gpu-2"), devices=devices), pod("terminated", claim("d", "gpu-0"))),
        UIDS,
    )
    assert found == (
        ReportedDevices(
            "uid-a", "main", "nvidia.com/gpu", ("GPU-a1", "GPU-b1"), HoldingSource.CHECKPOINT
        ),
        ReportedDevices(
            "uid-a", "main", "intel.com/sriov", ("0000:18:00.1",), HoldingSource.CHECKPOINT
        ),
        ReportedDevices("uid-a", "main", DRIVER, ("gpu-2",), HoldingSource.CLAIM, "default/c"),
    )


def conflict_count(one: PodResources, other: PodResources) -> int:
    holdings = [
        held
        for each in of_pod_resources((one, other), UIDS)
        for held in meaning(each, KEYS).holdings
    ]
    assert len(holdings) == 2
    return len(conflicts(holdings, {}))


def test_two_pods_share_a_device_only_by_one_claim() -> None:
    assert conflict_count(pod("a", claim("c", "gpu-0")), pod("b", claim("c", "gpu-0"))) == 0
    assert conflict_count(pod("a", claim("c", "gpu-0")), pod("b", claim("d", "gpu-0"))) == 1


def test_claims_share_a_device_that_their_driver_divides() -> None:
    one, other = pod("a", claim("c", "gpu-0", "s1")), pod("b", claim("d", "gpu-0", "s2"))
    assert conflict_count(one, other) == 0
    (holding,) = meaning(of_pod_resources((one,), UIDS)[0], KEYS).holdings
    assert (holding.form, holding.part) == (Form.REPLICA, "s1")
    assert conflict_count(one, pod("b", claim("d", "gpu-0"))) == 1
