from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.allocation import Allocation, allocate, device_allocated
from agent.allocate.devices.inventory import inventory, node_devices
from agent.allocate.refusal import Reason, Refusal
from agent.model.devices.device_allocation import (
    DeviceAmounts,
    VirtualFunctions,
    allocated,
    sum_amounts,
    sum_functions,
    virtual_functions,
)
from agent.model.devices.device_request import device_request
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.allocate.devices.builders import (
    CORE,
    GPU,
    HINT,
    MEMORY,
    RATIO,
    RDMA,
    allocation,
    gpu,
    nic,
    node,
)

VF_HINT = {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}}


def test_the_annotation_equals_koordinators() -> None:
    node_ = node([gpu(0), nic(0, functions=["0000:40:00.1"])])
    found = allocation(node_, {GPU: 50, RDMA: 1}, {HINT: VF_HINT})
    assert isinstance(found, Allocation)
    assert json.loads(device_allocated(found)) == {
        "gpu": [{"id": "GPU-0", "minor": 0, "resources": {CORE: "50", RATIO: "50", MEMORY: "500"}}],
        "rdma": [
            {
                "id": "0000:40:00.0",
                "minor": 0,
                "resources": {RDMA: "1"},
                "extension": {"vfs": [{"minor": -1, "busID": "0000:40:00.1"}]},
            }
        ],
    }


@given(st.lists(st.sampled_from((10, 30, 50, 100, 200)), max_size=20))
def test_successive_pods_never_get_the_same_device(percents: list[int]) -> None:
    """Each pod also gets a virtual function of the NIC, until no device is left."""
    devices = [*(gpu(each) for each in range(3)), nic(0, functions=[f"0:0.{n}" for n in range(4)])]
    known = inventory(devices)
    held: DeviceAmounts = {}
    taken: VirtualFunctions = {}
    hint = {HINT: json.dumps(VF_HINT)}
    for percent in percents:
        request = device_request({GPU: percent, RDMA: 1}, hint)
        assert request is not None
        free = node_devices(known, held, taken)
        found = allocate(free, request)
        if isinstance(found, Refusal):
            assert found.reason is Reason.DEVICE_INSUFFICIENT
            continue
        pod = {DEVICE_ALLOCATED: device_allocated(found)}
        allocated_functions = virtual_functions(pod)
        assert not allocated_functions["rdma", 0] & taken.get(("rdma", 0), frozenset())
        held = sum_amounts([held, allocated(pod)])
        taken = sum_functions([taken, allocated_functions])
    assert all(held.get(("gpu", each), {}).get(RATIO, 0) <= 100 for each in range(3))
