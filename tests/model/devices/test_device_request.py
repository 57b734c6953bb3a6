"""What Koordinator's answers in tests/conformance/test_vectors.py do not show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices.device_request import RequestError, RequestFault, type_requests

GPU = "koordinator.sh/gpu"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
SHARED = "koordinator.sh/gpu.shared"
RDMA = "koordinator.sh/rdma"
NPU_CORE = "huawei.com/npu-core"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("amounts", "count", "per", "shared"),
    [
        ({GPU: 50}, 1, {CORE: 50, RATIO: 50}, True),
        ({GPU: 100}, 1, {CORE: 100, RATIO: 100}, False),
        ({MEMORY: 8 * GIB}, 1, {MEMORY: 8 * GIB}, True),
        ({CORE: 50, RATIO: 60}, 1, {CORE: 50, RATIO: 60}, True),
        ({CORE: 50, RATIO: 100}, 1, {CORE: 50, RATIO: 100}, False),
        ({CORE: 200, MEMORY: 16 * GIB}, 2, {CORE: 100, MEMORY: 8 * GIB}, True),
        ({NPU_CORE: 40, RATIO: 200}, 2, {NPU_CORE: 20, RATIO: 100}, False),
        ({SHARED: 2, RATIO: 100}, 2, {RATIO: 50}, True),
        ({SHARED: 2, RATIO: 200}, 2, {RATIO: 100}, False),
    ],
    ids=str,
)
def test_valid_gpu_requests(
    amounts: dict[str, int], count: int, per: dict[str, int], shared: bool
) -> None:
    request = type_requests({"cpu": 4000, "memory": GIB, **amounts})["gpu"]
    assert (request.count, request.per, request.shared) == (count, per, shared)


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({CORE: 100}, RequestFault.COMBINATION),
        ({GPU: 150}, RequestFault.UNIT),
        ({CORE: 100, RATIO: 300}, RequestFault.UNEVEN),
        ({CORE: 300, RATIO: 200}, RequestFault.UNEVEN),
        ({NPU_CORE: 1, RATIO: 200}, RequestFault.UNEVEN),
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
