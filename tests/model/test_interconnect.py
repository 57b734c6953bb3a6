from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.annotations import AnnotationError
from agent.model.devices import Device
from agent.model.gpus import Ancestor, GpuPair
from agent.model.interconnect import GPU_LINKS, Interlink, decode, encode, pairs

CARDS = [Device("gpu", f"GPU-{minor}", minor, {}) for minor in (0, 1, 4)]


def test_pairs_are_told_by_minor_those_with_the_same_facts_together() -> None:
    told = [
        GpuPair("GPU-4", "GPU-0", Ancestor.SYSTEM, True),
        GpuPair("GPU-0", "GPU-1", Ancestor.SWITCH, True, 2, 50_000),
        GpuPair("GPU-1", "GPU-4", Ancestor.SYSTEM, False),
    ]
    assert msgspec.json.decode(encode(CARDS, told)[GPU_LINKS]) == [
        {"pairs": [[0, 1]], "ancestor": "switch", "nvlinks": 2, "mbPerSecond": 50_000},
        {"pairs": [[0, 4], [1, 4]], "ancestor": "system"},
    ]


def test_what_goes_through_switches_says_so() -> None:
    told = encode(CARDS, [GpuPair("GPU-0", "GPU-1", None, None, 12, 300_000, switched=True)])
    assert decode(told) == {(0, 1): Interlink(None, 12, 300_000, switched=True)}


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([], id="no pair"),
        pytest.param([GpuPair("GPU-0", "GPU-1", None, True)], id="nothing is known of it"),
        pytest.param([GpuPair("GPU-0", "GPU-9", Ancestor.SWITCH)], id="a card that is not listed"),
    ],
)
def test_nothing_is_written_where_nothing_is_known(told: list[GpuPair]) -> None:
    assert encode([*CARDS, Device("rdma", "GPU-9", 9, {})], told) == {}


facts = st.builds(
    Interlink,
    st.sampled_from([None, *Ancestor]),
    st.integers(0, 18),
    st.integers(0, 900_000),
    st.booleans(),
).filter(lambda each: each != Interlink())
minor = st.integers(0, 1023)
interconnects = st.dictionaries(
    st.tuples(minor, minor).filter(lambda pair: pair[0] < pair[1]), facts, max_size=30
)


@given(interconnects, st.randoms(use_true_random=False))
def test_it_reads_back_and_the_order_of_pairs_makes_no_other_text(
    told: dict[tuple[int, int], Interlink], random: st.random.Random
) -> None:
    cards = [Device("gpu", f"GPU-{each}", each, {}) for pair in told for each in pair]
    by_uuid = list(pairs(told, cards))
    assert len(by_uuid) == len(told)
    text = encode(cards, by_uuid)
    assert decode(text) == told
    random.shuffle(by_uuid)
    turned = [
        msgspec.structs.replace(each, one=each.two, two=each.one) if random.random() < 0.5 else each
        for each in by_uuid
    ]
    assert encode(reversed(cards), turned) == text


def test_pairs_of_cards_that_are_gone_are_left_out() -> None:
    told = {(0, 1): Interlink(Ancestor.SWITCH), (0, 3): Interlink(Ancestor.SYSTEM)}
    assert pairs(told, CARDS) == (GpuPair("GPU-0", "GPU-1", Ancestor.SWITCH),)


@pytest.mark.parametrize("notes", [{}, {GPU_LINKS: ""}, {GPU_LINKS: "null"}, {GPU_LINKS: "[]"}])
def test_nobody_told(notes: dict[str, str]) -> None:
    assert decode(notes) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not JSON"),
        ('[{"other":' + "[" * 100_000, "is not JSON"),
        ('{"pairs":[]}', "Expected `array | null`, got `object`"),
        ("[{}]", "missing required field `pairs` - at `$[0]`"),
        ('[{"pairs":[[0]]}]', "`$[0].pairs[0]`"),
        ('[{"pairs":[[0,-1]]}]', "`$[0].pairs[0][1]`"),
        ('[{"pairs":[[0,1024]]}]', "`$[0].pairs[0][1]`"),
        ('[{"pairs":[[0,1]],"ancestor":"PIX"}]', "'PIX' - at `$[0].ancestor`"),
        ('[{"pairs":[],"nvlinks":-1}]', "`$[0].nvlinks`"),
        ('[{"pairs":[],"mbPerSecond":1e30}]', "`$[0].mbPerSecond`"),
        ('[{"pairs":[[0,1],[2,2]]}]', "[0].pairs[1]: GPU 2 and itself"),
        ('[{"pairs":[[0,1]]},{"pairs":[[1,0]]}]', "[1].pairs[0]: GPUs 1 and 0 a second time"),
    ],
)
def test_an_annotation_that_can_not_be_read_names_the_field(text: str, said: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode({GPU_LINKS: text})
    assert str(caught.value).startswith(f"annotation {GPU_LINKS}: ")
    assert said in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_is_links_or_an_error(text: str) -> None:
    with contextlib.suppress(AnnotationError):
        assert isinstance(decode({GPU_LINKS: text}), dict)
