"""Where ResourceSlices say that devices are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.resource_slice import DraDevice, DraLocation, decode
from agent.model.objects import ObjectError

NUMA_NODE = "resource.kubernetes.io/numaNode"
BUS = "resource.kubernetes.io/pciBusID"


def resource_slice(*devices: dict[str, Any]) -> bytes:
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": {"name": "n"}}
    metadata = {"name": "n-gpu.example.com-x"}
    return json.dumps({"metadata": metadata, "spec": spec | {"devices": list(devices)}}).encode()


@pytest.mark.parametrize(
    ("attributes", "location"),
    [
        ({NUMA_NODE: {"int": 2}}, DraLocation(CpuSet((2,)))),
        ({NUMA_NODE: {"int": 0}, BUS: {"string": "0000:01:00.0"}},
         DraLocation(CpuSet((0,)), "0000:01:00.0")),
        ({NUMA_NODE: {"ints": [0, 1]}}, DraLocation(CpuSet((0, 1)))),
        ({NUMA_NODE: {"int": -1}}, DraLocation()),
        ({NUMA_NODE: {"int": 1 << 40}}, DraLocation()),
        ({NUMA_NODE: {"string": "1"}, BUS: {"string": "x"}}, DraLocation()),
        ({"gpu.example.com/numaNode": {"int": 1}}, DraLocation()),
        ({BUS: {"string": "00010000:3B:00.0"}}, DraLocation(bus="10000:3b:00.0")),
        (None, DraLocation()),
    ],
)  # fmt: skip
def test_the_standard_attributes_of_a_device(
    attributes: dict[str, Any] | None, location: DraLocation
) -> None:
    text = resource_slice({"name": "gpu-0", "attributes": attributes}, {"name": "gpu-1"})
    named = {name: DraDevice("gpu.example.com", "n", name) for name in ("gpu-0", "gpu-1")}
    assert decode(text) == {named["gpu-0"]: location, named["gpu-1"]: DraLocation()}


@pytest.mark.parametrize(
    ("text", "field"),
    [(b"{", "is not JSON"), (b'{"metadata": {"name": "s"}, "spec": {"driver": 1}}', "spec.driver")],
)
def test_a_slice_that_cannot_be_read_names_the_field(text: bytes, field: str) -> None:
    with pytest.raises(ObjectError, match=f"ResourceSlice .*{field}"):
        decode(text)
