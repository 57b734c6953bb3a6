from __future__ import annotations

import json

from agent.allocate.devices.allocation import Allocation, device_allocated
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
