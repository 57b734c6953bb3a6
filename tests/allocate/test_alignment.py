from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.numa import koordinator_merge
from agent.allocate.numa.koordinator_merge import NodeStatus
from agent.allocate.numa.resource_hints import resource_hints
from agent.model.policies import NumaExclusive, NumaPolicy

amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 4))
machines = st.lists(amounts, min_size=1, max_size=5).map(lambda held: dict(enumerate(held)))


@given(
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 9)),
    machines,
    st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.NONE]),
    st.sampled_from([None, NumaExclusive.PREFERRED]),
    st.lists(st.sampled_from(NodeStatus), min_size=5, max_size=5),
    st.frozensets(st.integers(1, 31)),
    st.integers(0, 3),
)
def test_masks_beyond_the_narrowest_change_nothing_that_is_chosen(
    request, available, policy, exclusive, status, failing, spread
) -> None:
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

    everything, narrowest = merged(False), merged(True)
    assert (narrowest.mask, narrowest.preferred, narrowest.admit, narrowest.score) == (
        everything.mask,
        everything.preferred,
        everything.admit,
        everything.score,
    )
    assert bool(narrowest.lacking) == bool(everything.lacking)
