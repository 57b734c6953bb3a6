from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.nrt.filter import ZoneFit, filter
from agent.allocate.nrt.node import Assumed, without
from agent.allocate.refusal import Refusal
from agent.model.pod.numa_request import NumaRequest
from tests.allocate.nrt.values import CPU, GPU, container, node, pod

TWO = {0: {"cpu": 4 * CPU, "memory": 8}, 1: {"cpu": 4 * CPU, "memory": 8, GPU: 1}}


def requesting(cpus: int, **more: int) -> NumaRequest:
    return pod(container(cpu=cpus * CPU, memory=1, **more))


def test_an_assumed_pod_is_subtracted_from_its_numa_node() -> None:
    after = without(node(TWO), [Assumed({0: {"cpu": 3 * CPU, "memory": 1}})])
    assert after.available["cpu"] == {0: CPU, 1: 4 * CPU}
    assert after.together == {"cpu": 5 * CPU, "memory": 15, GPU: 1}
    assert filter(after, requesting(3)) == ZoneFit((1,))


def test_a_pod_on_an_unknown_numa_node_is_subtracted_from_each() -> None:
    after = without(node(TWO), [Assumed(anywhere=requesting(3, gpu=1).whole.taken)])
    assert after.available == {
        "cpu": {0: CPU, 1: CPU},
        "memory": {0: 7, 1: 7},
        GPU: {1: 0},
    }
    assert isinstance(filter(after, requesting(2)), Refusal)


def test_a_pod_is_subtracted_once_from_the_sum() -> None:
    after = without(node(TWO, "restricted"), [Assumed(anywhere=requesting(3).whole.taken)])
    assert after.together["cpu"] == 5 * CPU
    assert isinstance(filter(after, requesting(5)), ZoneFit)
    assert isinstance(filter(after, requesting(6)), Refusal)


def test_amounts_are_never_negative_and_unreported_resources_stay_unreported() -> None:
    node_ = node(TWO)
    excessive = Assumed({0: {"cpu": 99 * CPU, "nic": 1}, 7: {"cpu": 1}}, {"memory": 99, "nic": 2})
    after = without(node_, [excessive])
    assert after.available == {"cpu": {0: 0, 1: 4 * CPU}, "memory": {0: 0, 1: 0}, GPU: {1: 1}}
    assert node_.available["cpu"] == {0: 4 * CPU, 1: 4 * CPU}


taken = st.builds(
    Assumed,
    st.dictionaries(
        st.integers(0, 2), st.dictionaries(st.sampled_from(["cpu", GPU]), st.integers(0, 5000))
    ),
    st.dictionaries(st.sampled_from(["cpu", GPU]), st.integers(0, 5000)),
)


@given(st.lists(taken, max_size=4))
def test_pods_may_be_subtracted_one_by_one_or_together(pods: list[Assumed]) -> None:
    node_ = node(TWO)
    for each in pods:
        node_ = without(node_, [each])
    assert node_ == without(node(TWO), pods)
