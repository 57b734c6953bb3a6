"""Hypothesis strategies for machines and hints. Few distinct scores make ties common."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.allocate.numa.hint import Provider, TopologyHint

NODES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 64, 70]), min_size=1, max_size=5, unique=True)
DENSE = st.integers(1, 4).map(lambda count: list(range(count)))


def hints(nodes: list[int]) -> st.SearchStrategy[TopologyHint]:
    sets = st.sets(st.sampled_from(nodes), min_size=1)
    masks = sets.map(lambda members: sum(1 << node for node in members))
    return st.builds(
        TopologyHint,
        st.one_of(masks, masks, masks, masks, st.none(), st.just(0)),
        st.booleans(),
        st.sampled_from([0, 0, 1, 2, 3, 7]),
        st.sampled_from([False] * 5 + [True]),
    )


def rarely_preferred(nodes: list[int]) -> st.SearchStrategy[TopologyHint]:
    """Mostly combinations without preferred hints: the order of all combinations decides."""
    return hints(nodes).map(
        lambda hint: (
            TopologyHint(hint.mask, False, hint.score, hint.unsatisfied) if hint.mask else hint
        )
    )


def providers(nodes: list[int]) -> st.SearchStrategy[list[Provider]]:
    def of(hint: st.SearchStrategy[TopologyHint]) -> st.SearchStrategy[list[Provider]]:
        lists = st.lists(hint, min_size=1, max_size=9)
        hint_lists = st.one_of(lists, lists, lists, lists, lists, st.none(), st.just([]))
        named = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), hint_lists, max_size=2)
        return st.lists(named, max_size=3).filter(
            lambda drawn: sum(len(provider) for provider in drawn) <= 4
        )

    return st.one_of(of(hints(nodes)), of(rarely_preferred(nodes)))
