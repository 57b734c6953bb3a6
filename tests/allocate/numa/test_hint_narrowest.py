from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.numa import koordinator_merge
from agent.allocate.numa.hint import NodeStatus, TopologyHint, resource_hints
from agent.model.cpu.policies import NumaExclusive, NumaPolicy

amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 4))
machines = st.lists(amounts, min_size=1, max_size=5).map(
    lambda amounts_of_nodes: dict(enumerate(amounts_of_nodes))
)


@given(
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 9)),
    machines,
    st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.NONE]),
    st.sampled_from([None, *NumaExclusive]),
    st.lists(st.sampled_from(NodeStatus), min_size=5, max_size=5),
    st.frozensets(st.integers(1, 31)),
    st.integers(0, 3),
)
def test_wider_masks_do_not_change_the_result(
    request, available, policy, exclusive, status, failing, spread
) -> None:
    """With an exclusive policy this holds for preferred hints; otherwise all masks are tried."""
    statuses = dict(enumerate(status))

    def merged(narrowest: bool) -> koordinator_merge.Merged:
        hints = resource_hints(
            request,
            available,
            available,
            policy,
            lambda mask: mask * 7 % (spread + 1),
            lambda mask: mask not in failing,
            narrowest=narrowest,
        )
        return koordinator_merge.merge([hints], available, policy, exclusive, statuses)

    all_masks, narrowest = merged(False), merged(True)
    if exclusive is NumaExclusive.REQUIRED and not narrowest.preferred:
        return
    assert (narrowest.mask, narrowest.preferred, narrowest.admit, narrowest.score) == (
        all_masks.mask,
        all_masks.preferred,
        all_masks.admit,
        all_masks.score,
    )
    assert bool(narrowest.lacking) == bool(all_masks.lacking)


@given(
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 9)),
    machines,
    st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.NONE]),
    st.sampled_from([None, *NumaExclusive]),
    st.lists(st.sampled_from(NodeStatus), min_size=5, max_size=5),
    st.frozensets(st.integers(1, 31)),
    st.lists(st.integers(1, 31), max_size=8, unique=True),
    st.integers(0, 3),
)
def test_masks_that_the_other_provider_does_not_prefer_do_not_change_the_result(
    request, available, policy, exclusive, status, failing, offered, spread
) -> None:
    """Hints with more nodes are omitted first; if no hint is preferred then, all are tried."""
    machine = (1 << len(available)) - 1
    gpu_masks = sorted({each & machine for each in offered} - {0}, key=int.bit_count)
    fewest = gpu_masks[0].bit_count() if gpu_masks else 0
    hints = tuple(
        TopologyHint(each, each.bit_count() == fewest, 500 * (each % 2)) for each in gpu_masks
    )

    def merged(others: tuple[TopologyHint, ...], widest: int | None) -> koordinator_merge.Merged:
        cpu_hints = resource_hints(
            request,
            available,
            available,
            policy,
            lambda mask: mask * 7 % (spread + 1),
            lambda mask: mask not in failing,
            widest=widest,
        )
        return koordinator_merge.merge(
            [cpu_hints, {"gpu": others}], available, policy, exclusive, dict(enumerate(status))
        )

    narrow = merged(tuple(hint for hint in hints if hint.preferred), fewest or None)
    if narrow.preferred:
        assert narrow == merged(hints, None)
