"""Groups of pods and their cookies."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.allocate.colocation.core_scheduling import (
    cookies_of_groups,
    core_group,
    without_cookie,
)
from agent.model.node_slo import CpuQos
from agent.model.pod.annotations import CORE_GROUP_LABEL, CORE_POLICY_LABEL
from agent.model.pod.qos import QoS

SHARES = CpuQos(enable=True)
EXPELS = CpuQos(enable=True, core_expeller=True)


def labels(group: str | None = None, policy: str | None = None) -> dict[str, str]:
    texts = {CORE_GROUP_LABEL: group, CORE_POLICY_LABEL: policy}
    return {key: text for key, text in texts.items() if text is not None}


@pytest.mark.parametrize(
    ("qos", "of_pod", "cpu_qos", "name"),
    [
        (QoS.LS, labels(), CpuQos(), None),
        (QoS.LS, labels("a", "exclusive"), CpuQos(core_expeller=True), None),
        (QoS.SYSTEM, labels("a"), SHARES, None),
        (QoS.LS, labels("a", "none"), EXPELS, None),
        (QoS.BE, labels(), SHARES, "group/"),
        (QoS.LS, labels(), EXPELS, "expeller/"),
        (QoS.LSE, labels("a"), SHARES, "group/a"),
        (QoS.LSR, labels("a", ""), EXPELS, "expeller/a"),
        (QoS.LS, labels("a", "other"), SHARES, "group/a"),
        (QoS.LS, labels("a", "exclusive"), SHARES, "pod/uid"),
        (QoS.BE, labels("a", "exclusive"), EXPELS, "pod/uid"),
    ],
)
def test_the_labels_of_a_pod_and_the_strategy_of_its_class_name_its_group(
    qos: QoS, of_pod: Mapping[str, str], cpu_qos: CpuQos, name: str | None
) -> None:
    assert core_group("uid", qos, of_pod, cpu_qos) == name


GROUP_IDS = st.sampled_from(["", "a", "a-expeller", "uid-0", "uid-1"])
PODS = st.lists(st.tuples(GROUP_IDS, st.sampled_from(["", "exclusive"]), st.booleans()))


@given(PODS)
@example([("uid-1", "", False), ("", "exclusive", False)])
@example([("a-expeller", "", False), ("a", "", True)])
def test_pods_have_one_group_only_if_labels_and_strategies_give_them_one(
    pods: list[tuple[str, str, bool]],
) -> None:
    names = [
        core_group(f"uid-{at}", QoS.LS, labels(group, policy), EXPELS if expels else SHARES)
        for at, (group, policy, expels) in enumerate(pods)
    ]
    for one, (group, policy, expels) in enumerate(pods):
        for other, of_other in enumerate(pods):
            alike = not policy and of_other == (group, policy, expels)
            assert (names[one] == names[other]) == (one == other or alike)


NAMES = st.sampled_from(["group/a", "group/b", "expeller/a", "pod/1"])
COOKIES = st.integers(1, 5)
CONTAINERS = st.lists(st.tuples(st.lists(NAMES, unique=True), st.sets(COOKIES)))
KNOWN = st.dictionaries(NAMES, COOKIES).map(
    lambda of: {name: cookie for cookie, name in {c: n for n, c in of.items()}.items()}
)


@given(KNOWN, CONTAINERS)
def test_two_groups_never_have_the_same_cookie(
    known: dict[str, int], containers: list[tuple[list[str], set[int]]]
) -> None:
    of_groups = cookies_of_groups(known, containers)
    present = set().union(*(cookies for _, cookies in containers))
    assert len(set(of_groups.values())) == len(of_groups)
    assert set(of_groups.values()) <= present
    assert {
        name: cookie for name, cookie in known.items() if cookie in present
    }.items() <= of_groups.items()


@given(st.dictionaries(NAMES, COOKIES, min_size=1), st.data())
def test_the_journal_and_the_threads_tell_all_cookies_again(
    chosen: dict[str, int], data: st.DataObject
) -> None:
    cookies = {name: at for at, name in enumerate(chosen, 1)}
    members = data.draw(st.lists(st.sampled_from(sorted(cookies)), min_size=1))
    containers = [([name], {cookies[name]}) for name in members]
    assert cookies_of_groups({}, containers) == {name: cookies[name] for name in members}


@pytest.mark.parametrize(
    ("containers", "cookies"),
    [
        ([(["a", "b"], {2})], {"b": 2}),
        ([(["a"], {1}), (["a", "b"], {2})], {"a": 1, "b": 2}),
        ([(["a"], {1}), (["a", "b"], {1})], {"a": 1}),
        ([(["a", "b"], {1, 2})], {"a": 1, "b": 2}),
        ([(["a"], {1}), (["a", "b"], {2}), (["b", "a"], {2})], {"a": 1, "b": 2}),
        ([(["b", "a"], {1}), (["a"], {2})], {"a": 2, "b": 1}),
        ([(["a"], {9}), (["a"], {1}), (["a"], {1})], {"a": 1}),
        ([(["a"], {1, 9})], {"a": 1}),
    ],
)
def test_each_cookie_that_a_killed_agent_has_left_is_that_of_a_group(
    containers: list[tuple[list[str], set[int]]], cookies: dict[str, int]
) -> None:
    assert cookies_of_groups({}, containers) == cookies


@given(
    st.dictionaries(st.integers(1, 9), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(0, 5)),
    st.sets(COOKIES),
)
def test_all_threads_have_the_cookie_in_the_end_but_those_of_other_programs(
    threads: dict[int, int], cookie: int | None, of_groups: set[int]
) -> None:
    given = without_cookie(threads, cookie, of_groups)
    for thread, present in threads.items():
        foreign = present != 0 and present not in of_groups
        assert (thread in given) == (present != cookie and not foreign)
