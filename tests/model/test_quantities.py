from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import quantities
from agent.model.quantities import QuantityError


@pytest.mark.parametrize(
    ("text", "milli", "whole"),
    [
        ("2", 2000, 2),
        ("1500m", 1500, 2),
        ("0.5", 500, 1),
        (".5", 500, 1),
        ("1.", 1000, 1),
        ("100u", 1, 1),
        ("1n", 1, 1),
        ("0", 0, 0),
        ("2e3", 2_000_000, 2000),
        ("2E3", 2_000_000, 2000),
        ("12E", 12 * 10**21, 12 * 10**18),
        ("25e-1", 2500, 3),
        ("1Ki", 1024_000, 1024),
        ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
        ("3k", 3_000_000, 3000),
        ("-1500m", -1500, -2),
        ("+4", 4000, 4),
    ],
)
def test_quantities_are_rounded_up(text: str, milli: int, whole: int) -> None:
    assert quantities.milli(text) == milli
    assert quantities.whole(text) == whole


@pytest.mark.parametrize("number", [4, 0, 1.5, 4e-5])
def test_json_numbers_are_quantities(number: float) -> None:
    assert quantities.milli(number) == -(-Fraction(repr(number)) * 1000 // 1)


@pytest.mark.parametrize(
    "text",
    ["", "m", "1 ", "1mi", "0x10", "1e999", "1e", "--1", "1.2.3", "Infinity", "\u0661", "9" * 99],
)
def test_an_invalid_quantity_is_an_error(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity"):
        quantities.milli(text)


def test_an_infinite_number_is_refused() -> None:
    with pytest.raises(QuantityError):
        quantities.whole(float("inf"))


@given(st.integers(0, 10**7))
def test_a_printed_amount_of_cpu_is_parsed_to_the_same_amount(cpu_milli: int) -> None:
    assert quantities.milli(quantities.cpu(cpu_milli)) == cpu_milli


@given(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu"]), st.integers(0, 1 << 50)
)
def test_a_printed_amount_is_parsed_to_the_same_amount(resource: str, amount: int) -> None:
    text = quantities.amount(resource, amount)
    assert (quantities.milli if resource == "cpu" else quantities.whole)(text) == amount


def test_memory_is_printed_in_the_largest_unit_that_divides_it() -> None:
    texts = [quantities.amount("memory", each) for each in (0, 1000, 1 << 10, 3 << 29, 4 << 30)]
    assert texts == ["0", "1000", "1Ki", "1536Mi", "4Gi"]
