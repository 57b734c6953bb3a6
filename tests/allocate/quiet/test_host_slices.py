"""Where groups of the host run while owners ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.quiet.host_slices import HostGroup, narrowed, stuck
from agent.model.cpu.cpuset import CpuSet

PODS = "with pods"


@pytest.mark.parametrize(
    ("groups", "left", "expected"),
    [
        ({"/a": ""}, "0-1", {"/a": "0-1"}),
        ({"/a": "0-7"}, "0-1", {"/a": "0-1"}),
        ({"/a": "1-2"}, "0-1", {"/a": "1"}),
        ({"/a": "2-3"}, "0-1", {"/a": "0-1"}),
        (
            {"/a": "0-3", "/a/b": "1-3", "/a/c": "2"},
            "0-1",
            {"/a": "0-1", "/a/b": "1", "/a/c": "0-1"},
        ),
        ({"/a": "1-3", "/a/b": "2-3"}, "0-1", {"/a": "1", "/a/b": "1"}),
        ({"/a": PODS, "/a/b": "0-7"}, "0-1", {"/a/b": "0-1"}),
        ({"/a": f"0,4 {PODS}", "/a/b": "0,4", "/a/c": "4"}, "0-1", {"/a/b": "0", "/a/c": "0"}),
        ({"/a": f"4-5 {PODS}", "/a/b": "4", "/a/b/c": "4", "/d": ""}, "0-1", {"/d": "0-1"}),
    ],
)
def test_groups_keep_what_is_left_of_theirs_or_get_all_of_it(
    groups: dict[str, str], left: str, expected: dict[str, str]
) -> None:
    given_groups = {
        name: HostGroup(CpuSet.parse(text.removesuffix(PODS)), text.endswith(PODS))
        for name, text in groups.items()
    }
    wanted = narrowed(given_groups, CpuSet.parse(left))
    assert {name: str(cpus) for name, cpus in wanted.items()} == expected
    without_pods = {name for name, text in groups.items() if not text.endswith(PODS)}
    assert {*stuck(given_groups, wanted)} == without_pods - expected.keys()


NAMES = st.sampled_from(["/a", "/b", "/a/c", "/a/d", "/a/c/e", "/a/c/e/f", "/b/g"])
SETS = st.integers(1, 255).map(CpuSet.from_int)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, HostGroup]:
    """Groups within those above them, as on v1."""
    groups: dict[str, HostGroup] = {}
    for name in sorted(draw(st.sets(NAMES))):
        above = name.rpartition("/")[0]
        if above and above not in groups:
            continue
        room = groups[above].cpus if above else CpuSet(range(8))
        groups[name] = HostGroup((draw(SETS) & room) or room, draw(st.booleans()))
    return groups


@given(trees(), SETS)
def test_no_group_without_pods_keeps_a_cpu_of_an_owner_and_each_is_within_the_one_above(
    groups: dict[str, HostGroup], left: CpuSet
) -> None:
    wanted = narrowed(groups, left)
    after = {name: wanted.get(name, group.cpus) for name, group in groups.items()}
    for name, cpus in wanted.items():
        assert cpus, "a group without CPUs could run nothing"
        assert cpus <= left
        assert not groups[name].has_pods
        above = name.rpartition("/")[0]
        assert not above or cpus <= after[above]
        assert cpus <= groups[name].cpus or not groups[name].cpus & after.get(above, left) & left
    for name in stuck(groups, wanted):
        parents = [each for each in groups if name.startswith(f"{each}/")]
        assert any(groups[each].has_pods and not groups[each].cpus & left for each in parents)
