from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.nodenames import NodeNames

NAMES = st.sets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"))


@given(st.lists(NAMES, min_size=1), NAMES)
def test_sets_of_names(sets: list[set[str]], asked: set[str]) -> None:
    names = NodeNames()
    kept = [names.bits(each) for each in sets]
    for before, bits in zip(sets, kept, strict=True):
        assert set(names.among(asked, bits)) == asked & before
        assert bool(bits & names.known(asked)) is bool(asked & before)
    assert names.known(asked) == names.bits(asked & set().union(*sets))


def test_a_set_of_many_is_small() -> None:
    names = NodeNames()
    bits = names.bits(f"n{number}" for number in range(5000))
    assert bits.bit_length() == 5000
    names.forget()
    assert names.known(["n1"]) == 0
