"""The table of devices.md §2.4-2.6, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices.device_request import (
    RequestError,
    RequestFault,
    TypeRequest,
    type_requests,
)

GPU = "koordinator.sh/gpu"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
SHARED = "koordinator.sh/gpu.shared"
RDMA = "koordinator.sh/rdma"
FPGA = "koordinator.sh/fpga"
NPU_CORE = "huawei.com/npu-core"
NPU_CPU = "huawei.com/npu-cpu"
NPU_DVPP = "huawei.com/npu-dvpp"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("amounts", "count", "per", "shared"),
    [
        ({"nvidia.com/gpu": 1}, 1, {CORE: 100, RATIO: 100}, False),
        ({"nvidia.com/gpu": 2}, 2, {CORE: 100, RATIO: 100}, False),
        ({"amd.com/gpu": 3}, 3, {CORE: 100, RATIO: 100}, False),
        ({"dcu.com/gpu": 8}, 8, {CORE: 100, RATIO: 100}, False),
        ({GPU: 50}, 1, {CORE: 50, RATIO: 50}, True),
        ({GPU: 100}, 1, {CORE: 100, RATIO: 100}, False),
        ({GPU: 400}, 4, {CORE: 100, RATIO: 100}, False),
        ({MEMORY: 8 * GIB}, 1, {MEMORY: 8 * GIB}, True),
        ({MEMORY: 800 * GIB}, 1, {MEMORY: 800 * GIB}, True),
        ({RATIO: 60}, 1, {RATIO: 60}, True),
        ({RATIO: 300}, 3, {RATIO: 100}, False),
        ({CORE: 60, MEMORY: 4 * GIB}, 1, {CORE: 60, MEMORY: 4 * GIB}, True),
        ({CORE: 50, RATIO: 60}, 1, {CORE: 50, RATIO: 60}, True),
        ({CORE: 50, RATIO: 100}, 1, {CORE: 50, RATIO: 100}, False),
        ({CORE: 200, RATIO: 400}, 4, {CORE: 50, RATIO: 100}, False),
        ({CORE: 200, RATIO: 200}, 2, {CORE: 100, RATIO: 100}, False),
        ({CORE: 200, MEMORY: 16 * GIB}, 2, {CORE: 100, MEMORY: 8 * GIB}, True),
        ({CORE: 200, RATIO: 100}, 2, {CORE: 100, RATIO: 50}, True),
        ({NPU_CORE: 20, RATIO: 50}, 1, {NPU_CORE: 20, RATIO: 50}, True),
        ({NPU_CORE: 40, RATIO: 200}, 2, {NPU_CORE: 20, RATIO: 100}, False),
        ({SHARED: 2, MEMORY: 8 * GIB}, 2, {MEMORY: 4 * GIB}, True),
        ({SHARED: 3, MEMORY: 10}, 3, {MEMORY: 3}, True),
        ({SHARED: 2, RATIO: 100}, 2, {RATIO: 50}, True),
        ({SHARED: 2, RATIO: 200}, 2, {RATIO: 100}, False),
        ({SHARED: 2, CORE: 60, MEMORY: 8}, 2, {CORE: 30, MEMORY: 4}, True),
        ({SHARED: 2, CORE: 60, RATIO: 40}, 2, {CORE: 30, RATIO: 20}, True),
        (
            {SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, MEMORY: 8},
            1,
            {NPU_CORE: 4, NPU_CPU: 4, MEMORY: 8},
            True,
        ),
        (
            {SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, NPU_DVPP: 100, MEMORY: 8},
            1,
            {NPU_CORE: 4, NPU_CPU: 4, NPU_DVPP: 100, MEMORY: 8},
            True,
        ),
    ],
    ids=str,
)
def test_valid_gpu_requests(
    amounts: dict[str, int], count: int, per: dict[str, int], shared: bool
) -> None:
    request = type_requests({"cpu": 4000, "memory": GIB, **amounts})["gpu"]
    assert (request.count, request.per, request.shared) == (count, per, shared)


@pytest.mark.parametrize(
    ("amounts", "count", "each"),
    [
        ({RDMA: 1}, 1, 1),
        ({RDMA: 100}, 1, 100),
        ({RDMA: 300}, 3, 100),
        ({FPGA: 50}, 1, 50),
        ({FPGA: 200}, 2, 100),
    ],
    ids=str,
)
def test_other_devices(amounts: dict[str, int], count: int, each: int) -> None:
    ((kind, request),) = type_requests(amounts).items()
    (name,) = amounts
    assert name.endswith(kind)
    assert request == TypeRequest(amounts, count, {name: each})


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({CORE: 100}, RequestFault.COMBINATION),
        ({SHARED: 1}, RequestFault.COMBINATION),
        ({NPU_CORE: 1}, RequestFault.COMBINATION),
        ({MEMORY: 8, RATIO: 50}, RequestFault.COMBINATION),
        ({CORE: 50, MEMORY: 8, RATIO: 50}, RequestFault.COMBINATION),
        ({SHARED: 2, MEMORY: 8, RATIO: 50}, RequestFault.COMBINATION),
        ({SHARED: 2, GPU: 100}, RequestFault.COMBINATION),
        ({GPU: 100, "nvidia.com/gpu": 1}, RequestFault.COMBINATION),
        ({"amd.com/gpu": 1, "nvidia.com/gpu": 1}, RequestFault.COMBINATION),
        ({GPU: 150}, RequestFault.UNIT),
        ({RDMA: 150}, RequestFault.UNIT),
        ({FPGA: 101}, RequestFault.UNIT),
        ({RATIO: 150}, RequestFault.COMBINATION),
        ({CORE: 150, RATIO: 100}, RequestFault.COMBINATION),
        ({CORE: 150, MEMORY: 8}, RequestFault.COMBINATION),
        ({CORE: 100, RATIO: 300}, RequestFault.UNEVEN),
        ({CORE: 300, RATIO: 200}, RequestFault.UNEVEN),
        ({NPU_CORE: 1, RATIO: 200}, RequestFault.UNEVEN),
        ({SHARED: 3, RATIO: 100}, RequestFault.COMBINATION),
        ({SHARED: 2, CORE: 51, MEMORY: 8}, RequestFault.COMBINATION),
        ({SHARED: 2, RATIO: 400}, RequestFault.COMBINATION),
        ({SHARED: 2, NPU_CORE: 4, NPU_CPU: 4, MEMORY: 8}, RequestFault.COMBINATION),
        ({SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, NPU_DVPP: 101, MEMORY: 8}, RequestFault.COMBINATION),
        ({SHARED: 1, NPU_CORE: 4, MEMORY: 8}, RequestFault.COMBINATION),
    ],
    ids=str,
)
def test_invalid_requests(amounts: dict[str, int], reason: RequestFault) -> None:
    with pytest.raises(RequestError) as raised:
        type_requests(amounts)
    assert raised.value.reason is reason
    assert all(name in str(raised.value) for name in amounts)


def test_a_wrong_unit_is_reported_before_unequal_shares() -> None:
    with pytest.raises(RequestError, match="150"):
        type_requests({CORE: 100, RATIO: 300, RDMA: 150})


def test_zero_amounts_are_not_requests() -> None:
    assert type_requests({GPU: 0, RDMA: 0, "cpu": 1}) == {}
    assert type_requests({CORE: 0, RATIO: 50})["gpu"].total == {RATIO: 50}


@given(st.dictionaries(st.sampled_from((GPU, CORE, MEMORY, RATIO, SHARED)), st.integers(1, 900)))
def test_the_cards_amounts_add_up_to_the_request_except_for_indivisible_bytes(
    amounts: dict[str, int],
) -> None:
    try:
        requests = type_requests(amounts)
    except RequestError:
        return
    for request in requests.values():
        for name, each in request.per.items():
            lost = request.total[name] - each * request.count
            assert 0 <= lost < (request.count if name == MEMORY else 1)
