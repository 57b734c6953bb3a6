from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.annotations import AnnotationError
from agent.model.devices import Device
from agent.model.minors import GONE_MINORS, decode, encode, gone, known, numbered


@pytest.mark.parametrize(
    ("ids", "before", "now"),
    [
        ("abc", {}, {"a": 0, "b": 1, "c": 2}),
        ("cab", {}, {"c": 0, "a": 1, "b": 2}),
        ("abc", {"c": 0, "a": 1}, {"a": 1, "b": 2, "c": 0}),
        ("b", {"a": 0}, {"b": 1}),
        ("ab", {"a": 5, "b": 5}, {"a": 5, "b": 0}),
        ("ab", {"a": -1, "b": 1 << 40}, {"a": 0, "b": 1}),
        ("aa", {}, {"a": 0}),
        ("", {"a": 0}, {}),
    ],
)
def test_numbers(ids: str, before: dict[str, int], now: dict[str, int]) -> None:
    assert numbered(ids, before) == now


names = st.text("abcdefgh", max_size=6).map(lambda text: tuple(dict.fromkeys(text)))


@given(st.lists(names, max_size=8))
def test_a_device_has_one_number_for_life_whatever_is_plugged_in_and_out(
    looks: list[tuple[str, ...]],
) -> None:
    """As the agent does it: all it knows is what it last published."""
    devices: list[Device] = []
    annotations: dict[str, str] = {}
    ever: dict[str, int] = {}
    for ids in looks:
        before = known(devices, decode(annotations))
        numbers = numbered(ids, before.get("rdma", {}))
        devices = [Device("rdma", each, number, {}) for each, number in numbers.items()]
        annotations = encode(gone(before, devices))
        for each, number in numbers.items():
            assert ever.setdefault(each, number) == number
    assert len(set(ever.values())) == len(ever)
    assert set(ever.values()) == set(range(len(ever))), "numbers stay small"


def test_nothing_is_written_where_nothing_is_gone() -> None:
    assert encode(gone({"rdma": {"a": 0}}, [Device("rdma", "a", 0, {})])) == {}


@pytest.mark.parametrize("text", ["[]", '{"rdma":{"a":"b"}}', "{"])
def test_an_annotation_that_cannot_be_read(text: str) -> None:
    with pytest.raises(AnnotationError, match=GONE_MINORS):
        decode({GONE_MINORS: text})
