from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.allocate.devices.partitions import Partitions, partitions
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import PARTITION_LABEL
from agent.model.devices.device_object import GPU_PARTITIONS
from agent.model.pod.annotations import AnnotationError
from tests.allocate.devices.builders import (
    CARDS,
    CORE,
    GPU,
    JOINT,
    MEMORY,
    PARTITION,
    RATIO,
    RDMA,
    allocation,
    gpu,
    minors,
    nic,
    node,
)

MODEL = "node.koordinator.sh/gpu-model"
VENDOR = "node.koordinator.sh/gpu-vendor"
HONOR = {PARTITION_LABEL: "Honor"}
JOINED = {JOINT: {"deviceTypes": ["gpu", "rdma"]}}
EIGHT = [gpu(each, each // 4, f"p{each // 2}") for each in range(8)]


def reported(
    table: dict[int, list[dict[str, Any]]], labels: dict[str, str] | None = None
) -> Partitions:
    text = msgspec.json.encode(table).decode()
    return partitions(labels or {}, {GPU_PARTITIONS: text}, {})


def one(*cards: int, score: int = 1, bandwidth: str | None = None) -> dict[str, Any]:
    more = {} if bandwidth is None else {"ringBusBandwidth": bandwidth}
    return {"minors": list(cards), "allocationScore": score, "gpuLinkType": "NVLink", **more}


PAIRS = {2: [one(0, 1), one(2, 3, score=5), one(5, 4, score=5)], 4: [one(4, 5, 6, 7)]}


def test_the_best_score_comes_first() -> None:
    """Koordinator takes the worst."""
    assert minors(allocation(node(EIGHT, partitions=reported(PAIRS)), {CARDS: 2})) == [2, 3]


def test_cards_are_in_the_order_of_the_table() -> None:
    node_ = node(EIGHT, {2: 1}, partitions=reported(PAIRS))
    assert minors(allocation(node_, {CARDS: 2})) == [5, 4]


@pytest.mark.parametrize(
    ("policy", "expected"), [("Restricted", None), ("BestEffort", [0, 1])], ids=str
)
def test_restricted_uses_only_the_best_score(policy: str, expected: list[int] | None) -> None:
    node_ = node(EIGHT, {2: 1, 4: 1}, partitions=reported(PAIRS))
    found = allocation(node_, {CARDS: 2}, {PARTITION: {"allocatePolicy": policy}})
    if expected is None:
        assert found == Refusal(Reason.DEVICE_PARTITION, "gpu")
    else:
        assert minors(found) == expected


def test_partitions_that_keep_larger_ones_intact_are_preferred() -> None:
    table = {2: [one(0, 1), one(2, 3), one(4, 5)], 4: [one(0, 1, 2, 3)]}
    assert minors(allocation(node(EIGHT, partitions=reported(table)), {CARDS: 2})) == [4, 5]


def test_a_requested_bandwidth() -> None:
    table = {2: [one(0, 1), one(2, 3, bandwidth="100Gi"), one(4, 5, bandwidth="400Gi")]}
    node_ = node(EIGHT, partitions=reported(table))
    assert minors(allocation(node_, {CARDS: 2}, {PARTITION: {"ringBusBandwidth": "200Gi"}})) == [
        4,
        5,
    ]
    assert allocation(node_, {CARDS: 2}, {PARTITION: {"ringBusBandwidth": "1Ti"}}) == Refusal(
        Reason.DEVICE_PARTITION, "gpu"
    )


@pytest.mark.parametrize(
    ("cards", "cause"), [(3, Reason.DEVICE_PARTITION_SIZE), (2, Reason.DEVICE_PARTITION)], ids=str
)
def test_honor_refuses_cards_outside_the_table_and_prefer_allows_them(
    cards: int, cause: Reason
) -> None:
    used = {0: 1, 2: 1, 4: 1}
    honoring = node(EIGHT, used, partitions=reported(PAIRS, HONOR))
    assert allocation(honoring, {CARDS: cards}) == Refusal(cause, "gpu")
    preferring = node(EIGHT, used, partitions=reported(PAIRS))
    assert len(minors(allocation(preferring, {CARDS: cards}))) == cards


def test_shares_of_cards_ignore_the_table() -> None:
    node_ = node(EIGHT, {2: 50}, partitions=reported(PAIRS, HONOR))
    assert minors(allocation(node_, {GPU: 50})) == [2]


def test_unhealthy_cards_are_in_no_partition() -> None:
    cards = [gpu(each, healthy=each != 2) for each in range(8)]
    assert minors(allocation(node(cards, partitions=reported(PAIRS, HONOR)), {CARDS: 2})) == [5, 4]


@pytest.mark.parametrize("joint", [{}, JOINED], ids=["cards only", "with a NIC"])
@pytest.mark.parametrize("amount", [0, 50])
def test_cards_that_list_less_than_requested_are_in_no_partition(
    amount: int, joint: dict[str, object]
) -> None:
    """For example cards that an agent reports with less, although no known pod holds them."""
    less = msgspec.structs.replace(EIGHT[2], resources=dict.fromkeys((CORE, RATIO, MEMORY), amount))
    cards = [less if each.minor == 2 else each for each in EIGHT]
    node_ = node([*cards, nic(0, 1, "p2")], partitions=reported(PAIRS, HONOR))
    amounts = {CARDS: 2, RDMA: 100} if joint else {CARDS: 2}
    assert minors(allocation(node_, amounts, joint)) == [5, 4]


@pytest.mark.parametrize("model", ["H100", "H800", "H20", "H100-80GB-HBM3"])
@pytest.mark.parametrize("vendor", ["", "nvidia"])
def test_models_with_a_known_table(model: str, vendor: str) -> None:
    """Koordinator does not recognize the model names of NVML."""
    known = partitions(HONOR, {}, {MODEL: model, VENDOR: vendor})
    assert not known.honor
    assert minors(allocation(node(EIGHT, {1: 1}, partitions=known), {CARDS: 2})) == [2, 3]
    assert allocation(
        node(EIGHT, partitions=partitions({}, {}, {MODEL: model, **HONOR})), {CARDS: 3}
    ) == Refusal(Reason.DEVICE_PARTITION_SIZE, "gpu")


@pytest.mark.parametrize(
    "labels", [{MODEL: "A100"}, {MODEL: "H100", VENDOR: "huawei"}, {}], ids=str
)
def test_other_models_have_no_table(labels: dict[str, str]) -> None:
    known = partitions({}, {}, labels)
    assert known.table is None
    found = allocation(node(EIGHT, partitions=known), {CARDS: 1}, {PARTITION: {}})
    assert found == Refusal(Reason.DEVICE_NO_PARTITION_TABLE, "gpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"2": [{"minors": "0,1"}]}', "minors"),
        ('{"2": [{"minors": [0, -1]}]}', "2[0].minors: not within 0 and 1023"),
        ('{"2": [{"minors": [0, 0]}]}', "2[0].minors: not 2 different cards"),
        ('{"2": [{"minors": [0, 1, 2]}]}', "2[0].minors: not 2 different cards"),
        ('{"2": [{"minors": [0, 1], "ringBusBandwidth": "fast"}]}', "'fast' is not a quantity"),
        (json.dumps({"1": [{"minors": [0]}] * 1025}), "1025 sets are more than 1024"),
    ],
)
def test_an_invalid_table(text: str, message: str) -> None:
    with pytest.raises(AnnotationError) as raised:
        partitions({}, {GPU_PARTITIONS: text}, {})
    assert GPU_PARTITIONS in str(raised.value)
    assert message in str(raised.value)
