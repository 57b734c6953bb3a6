from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.device_holders.names import keys, meaning
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource, ReportedDevices
from tests.allocate.device_holders.node import DEVICES, GPUS, KEYS

PLUGIN = "nvidia.com/gpu"
CLAIM = "gpu.nvidia.com"

TABLE = [
    # resource, name, type, device, form, part
    (PLUGIN, "GPU-a1", "gpu", "GPU-a1", Form.WHOLE, ""),
    # NVIDIA's runtime ignores case, and parses numbers like C.
    ("", "gpu-A1", "gpu", "GPU-a1", Form.WHOLE, ""),
    ("nvidia.com/gpu", "mig-X", "gpu", "GPU-b2", Form.INSTANCE, "MIG-x"),
    ("", "01", "gpu", "GPU-b2", Form.WHOLE, ""),
    (PLUGIN, "GPU-a1::3", "gpu", "GPU-a1", Form.REPLICA, "3"),
    ("nvidia.com/gpu.shared", "GPU-a1::0", "gpu", "GPU-a1", Form.REPLICA, "0"),
    ("example.com/slow-gpu", "GPU-a1::0", "gpu", "GPU-a1", Form.REPLICA, "0"),
    ("nvidia.com/mig-1g.10gb", "MIG-x", "gpu", "GPU-b2", Form.INSTANCE, "MIG-x"),
    (PLUGIN, "MIG-y", "gpu", "GPU-b2", Form.INSTANCE, "MIG-y"),
    ("nvidia.com/mig-1g.10gb", "MIG-x::1", "gpu", "GPU-b2", Form.INSTANCE, "MIG-x::1"),
    (PLUGIN, "MIG-GPU-a1/7/0", "gpu", "GPU-a1", Form.INSTANCE, "MIG-GPU-a1/7/0"),
    (PLUGIN, "0", "gpu", "GPU-b1", Form.WHOLE, ""),
    (PLUGIN, "0::1", "gpu", "GPU-b1", Form.REPLICA, "1"),
    ("", "2", "gpu", "GPU-a1", Form.WHOLE, ""),
    ("", "1:2", "gpu", "GPU-b2", Form.INSTANCE, "MIG-y"),
    ("", "GPU-a", "gpu", "GPU-a1", Form.WHOLE, ""),
    ("k8s.device-plugin.nvidia.com/gpu", "gpu0", "gpu", "GPU-b1", Form.WHOLE, ""),
    ("runtime.nvidia.com/gpu", "mig1:0", "gpu", "GPU-b2", Form.INSTANCE, "MIG-x"),
    (CLAIM, "gpu-0", "gpu", "GPU-a1", Form.WHOLE, ""),
    (CLAIM, "gpu-2-mig-9-0-1", "gpu", "GPU-b2", Form.INSTANCE, "gpu-2-mig-9-0-1"),
    ("k8s.gpu.nvidia.com/device", "5f7e-gpu-1", "gpu", "GPU-b1", Form.WHOLE, ""),
    (
        "k8s.gpu.nvidia.com/device",
        "5f7e-gpu-2-mig-9-0-1",
        "gpu",
        "GPU-b2",
        Form.INSTANCE,
        "gpu-2-mig-9-0-1",
    ),
    ("amd.com/gpu", "0000:01:00.0", "gpu", "GPU-a1", Form.WHOLE, ""),
    ("nvidia.com/pgpu", "00000000:01:00.0", "gpu", "GPU-a1", Form.WHOLE, ""),
    ("intel.com/sriov", "0000:18:00.2", "rdma", "0000:18:00.0", Form.FUNCTION, "0000:18:00.2"),
    ("rdma/vf", "0000:18:00.1", "rdma", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
    ("", "/dev/infiniband/uverbs1", "rdma", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
    ("", "/dev/infiniband/uverbs0", "rdma", "0000:18:00.0", Form.OPEN, ""),
    ("", "/dev/nvidia0", "gpu", "GPU-a1", Form.WHOLE, ""),
    ("fpga.intel.com/region", "dfl-port.0", "fpga", "0000:3b:00.0", Form.WHOLE, ""),
    ("fpga.intel.com/region", "/dev/dfl-port.0", "fpga", "0000:3b:00.0", Form.WHOLE, ""),
    ("dra.cpu", "4-7,2", "", "", Form.CPUS, "2,4-7"),
]


def reported(resource: str, *names: str) -> ReportedDevices:
    return ReportedDevices("pod", "main", resource, names, HoldingSource.CHECKPOINT)


@pytest.mark.parametrize(("resource", "name", "kind", "device", "form", "part"), TABLE)
def test_holding_of_a_name(
    resource: str, name: str, kind: str, device: str, form: Form, part: str
) -> None:
    found = meaning(reported(resource, name), KEYS)
    assert found.holdings == (DeviceHolding("pod", "main", resource, kind, device, form, part),)
    assert (found.left, found.unknown) == ((), ())


@pytest.mark.parametrize(
    ("resource", "name", "reason"),
    [
        ("", "all", "sees every GPU, and none is reserved for it"),
        ("management.nvidia.com/gpu", "all", "sees every GPU, and none is reserved for it"),
        ("dra.cpu", "dynamic", "does not name the CPUs"),
        ("dra.cpu", "cpudevnuma000", "does not name the CPUs"),
        ("rdma/hca_shared_devices_a", "7", "opens a shared RDMA device, which others may use too"),
        ("smarter-devices/fuse", "smarter-fuse-1", "is not a device that is counted here"),
        ("nvidia.com/gpu", "tegra", "is not a device that is counted here"),
        ("example.com/a", "index:0", "is not a device that is counted here"),
        ("", "/dev/nvidiactl", "is not a device that is counted here"),
    ],
)
def test_names_that_hold_nothing(resource: str, name: str, reason: str) -> None:
    found = meaning(reported(resource, name), KEYS)
    assert (found.holdings, found.left, found.unknown) == ((), ((name, reason),), ())


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (PLUGIN, "GPU-missing"),
        (PLUGIN, "GPU-missing::0"),
        (PLUGIN, "GPU-b"),
        (PLUGIN, "MIG-z"),
        (PLUGIN, "9"),
        ("", "gpu009"),
        ("", "09:01"),
        (CLAIM, "gpu-9"),
        ("intel.com/sriov", "0000:99:00.0"),
        ("dra.cpu", "3-1"),
        ("dra.cpu", ","),
    ],
)
def test_names_of_absent_devices_are_unknown(resource: str, name: str) -> None:
    """Including a prefix that two UUIDs share."""
    found = meaning(reported(resource, name), KEYS)
    assert (found.holdings, found.left, found.unknown) == ((), (), (name,))


@pytest.mark.parametrize("text", ["0", "1", "0:", "gpu", "gpu-1-", "MIG-GPU-", "rdma/", "-", ":"])
def test_a_long_name_takes_no_longer_than_many_short_ones(text: str) -> None:
    """A container chooses the name, and each pass reads it. In quadratic time this takes longer
    than a test may."""
    name = f"{text * (300_000 // len(text))}x"
    for resource in ("", PLUGIN, CLAIM):
        found = meaning(reported(resource, name), KEYS)
        assert len(found.left) + len(found.unknown) == 1


def test_the_index_of_an_instance_is_that_of_nvml() -> None:
    """The second instance has index 2 after the one with index 1 was destroyed."""
    assert meaning(reported("", "1:1"), KEYS).unknown == ("1:1",)
    (holding,) = meaning(reported("", "1:2"), KEYS).holdings
    assert (holding.device, holding.part) == ("GPU-b2", "MIG-y")


def test_names_with_the_keys_of_a_device_object_only() -> None:
    """A scheduler reads only the Device object."""
    device_object_keys = keys(DEVICES)
    found = meaning(
        reported(PLUGIN, "GPU-b2::MIG-x", "GPU-a1", "0000:18:00.2", "0"), device_object_keys
    )
    assert [(each.device, each.form) for each in found.holdings] == [
        ("GPU-b2", Form.REPLICA),
        ("GPU-a1", Form.WHOLE),
        ("0000:18:00.0", Form.FUNCTION),
    ]
    assert found.unknown == ("0",)


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_name_is_held_ignored_or_unknown(resource: str, name: str) -> None:
    found = meaning(reported(resource, name, name), KEYS)
    assert len(found.holdings) + len(found.left) + len(found.unknown) == 1


def test_a_card_that_the_driver_does_not_list_has_no_index() -> None:
    missing = msgspec.structs.replace(GPUS[0], uuid="GPU-missing", index=-1)
    assert [name for name in keys((), (missing,)) if name.startswith("index:")] == []
