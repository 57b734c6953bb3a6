from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet import statefile
from agent.kubelet.statefile import Checked, matching_version

FORMS = [(2, 20), (2, 21), (3, 30)]


@pytest.mark.parametrize(
    ("recorded", "forms", "version", "checked"),
    [
        (20, FORMS, 2, Checked.VERIFIED),
        (30, FORMS, 3, Checked.VERIFIED),
        (99, FORMS, 2, Checked.MISMATCH),
        (0, FORMS, 2, Checked.UNKNOWN),
        (0, [(2, 0)], 2, Checked.UNKNOWN),
        (99, [], None, Checked.UNKNOWN),
    ],
)
def test_matching_version(
    recorded: int, forms: list[tuple[int, int]], version: int | None, checked: Checked
) -> None:
    assert matching_version(recorded, forms) == (version, checked)


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)],
    ids=["empty", "a", "foobar"],
)
def test_published_hashes(data: bytes, value: int) -> None:
    """From the test vectors of FNV's authors."""
    assert statefile.fnv1a(data) == value


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=4))
def test_a_changed_byte_changes_the_hash(head: bytes, tail: bytes) -> None:
    """Each step is a bijection, so equal heads never meet again after one different byte."""
    other = bytes([tail[0] ^ 1]) + tail[1:]
    assert statefile.fnv1a(head + tail) != statefile.fnv1a(head + other)


@given(st.dictionaries(st.text("ab:[ ", max_size=3), st.text("xy", max_size=2)))
def test_order_of_keys_does_not_matter(entries: dict[str, str]) -> None:
    backwards = reduce(lambda done, item: {item[0]: item[1], **done}, entries.items(), {})
    assert statefile.go_map(entries) == statefile.go_map(backwards)


def test_numbers_are_sorted_by_value() -> None:
    assert statefile.go_map({10: "c", 9: "b", -1: "a"}) == "map[-1:a 9:b 10:c]"
