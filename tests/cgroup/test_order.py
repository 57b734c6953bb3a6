import posixpath

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from agent.cgroup.order import GroupTree, Write, effective, parent, plan
from agent.model.cpu.cpuset import EMPTY, CpuSet
from tests.cgroup.kernel import Kernel, related

ROOT = CpuSet(range(6))
Values = dict[str, CpuSet]


def values(**texts: str) -> Values:
    """`a_b="0-1"` is group /a/b with CPUs 0 and 1; the root has 0-5."""
    groups = {"/" + name.replace("_", "/"): CpuSet.parse(text) for name, text in texts.items()}
    return {"/": ROOT} | groups


def writes(**texts: str) -> list[str]:
    return [f"{'/' + name.replace('_', '/')}={text}" for name, text in texts.items()]


def planned(tree: Values, wanted: Values, inherits: bool = False) -> list[str]:
    wanted.pop("/", None)
    return [f"{each.group}={each.cpus}" for each in plan(GroupTree(tree, inherits), wanted)]


def model(tree: Values, inherits: bool) -> Kernel:
    return Kernel(2 if inherits else 1, tree)


def write(kernel: Kernel, each: Write) -> None:
    """Raises the errors of the kernel, and refuses writes that Topolet must not make."""
    assert each.cpus, "an empty cpuset is never written"
    assert kernel.cpus[each.group] != each.cpus, "a write that changes nothing"
    kernel.write(each.group, str(each.cpus))


@st.composite
def cases(draw: st.DrawFn, inherits: bool, disjoint: bool = True) -> tuple[Values, Values]:
    """A tree that the kernel allows, and values that it can get."""

    def some(of: CpuSet, may_be_empty: bool = False) -> CpuSet:
        least = 0 if may_be_empty else 1
        return CpuSet(draw(st.sets(st.sampled_from(list(of)), min_size=least)))

    tree: Values = {"/": ROOT}
    wanted: Values = {}
    limit: Values = {"/": ROOT}
    for name in "abcdefgh"[: draw(st.integers(1, 8))]:
        ancestor = draw(st.sampled_from(list(tree)))
        group = posixpath.join(ancestor, name)
        tree[group] = some(ROOT, True) if inherits else some(tree[ancestor])
        limit[group] = limit[ancestor]
        if draw(st.booleans()):
            cpus = some(limit[ancestor])
            if disjoint or cpus & tree[group]:
                wanted[group] = limit[group] = cpus
    return tree, wanted


def run(tree: Values, wanted: Values, inherits: bool) -> tuple[Kernel, list[Write]]:
    kernel = model(tree, inherits)
    order = plan(GroupTree(tree, inherits), wanted)
    for each in order:
        write(kernel, each)
    for group, cpus in wanted.items():
        assert kernel.cpus[group] == cpus
        assert kernel.effective(group) == cpus
    return kernel, order


@settings(max_examples=300, deadline=None)
@given(cases(inherits=False))
def test_v1_every_write_is_legal_and_every_group_gets_its_value(
    case: tuple[Values, Values],
) -> None:
    tree, wanted = case
    kernel, order = run(tree, wanted, inherits=False)
    event(f"{len(order)} writes")
    for group, own in tree.items():
        end = kernel.cpus[group]
        wanted_ancestors = [each for each in wanted if group.startswith(f"{each}/")]
        if group in wanted or group == "/":
            continue
        if not wanted_ancestors:
            assert own <= end, "an ancestor never shrinks"
        wanted_below = [cpus for each, cpus in wanted.items() if each.startswith(f"{group}/")]
        grown = {cpu for cpus in wanted_below for cpu in cpus}
        limit = wanted[max(wanted_ancestors, key=len)] if wanted_ancestors else ROOT
        if own & limit:  # no group gets CPUs that it neither had nor needs
            assert end == (own & kernel.cpus[posixpath.dirname(group)]) | CpuSet(grown)


@settings(max_examples=200, deadline=None)
@given(cases(inherits=True))
def test_v2_every_group_gets_its_value(case: tuple[Values, Values]) -> None:
    tree, wanted = case
    kernel, _ = run(tree, wanted, inherits=True)
    for group, own in tree.items():
        if group not in wanted:
            assert own <= kernel.cpus[group]
            assert bool(own) == bool(kernel.cpus[group]), "an inheriting group keeps inheriting"


@settings(max_examples=200, deadline=None)
@given(cases(inherits=False, disjoint=False))
def test_a_cpu_leaves_the_old_group_before_it_enters_the_new(case: tuple[Values, Values]) -> None:
    """This holds if every changed group keeps at least one CPU."""
    tree, wanted = case
    end, order = run(tree, wanted, inherits=False)
    assume(all(end.cpus[group] & own for group, own in tree.items()))
    kernel = model(tree, inherits=False)
    for each in order:
        gain = each.cpus - kernel.cpus[each.group]
        for other, current in kernel.cpus.items():
            if not related(each.group, other):
                still = (current - end.cpus[other]) & gain
                assert not still, f"{each} while {other} still has {still}"
        write(kernel, each)


@settings(deadline=None)
@given(cases(inherits=False))
def test_the_plan_is_deterministic_and_final(case: tuple[Values, Values]) -> None:
    tree, wanted = case
    backwards = GroupTree(dict(reversed(tree.items())), False)
    order = plan(GroupTree(tree, False), wanted)
    assert plan(backwards, dict(reversed(wanted.items()))) == order
    kernel, _ = run(tree, wanted, inherits=False)
    assert plan(GroupTree(kernel.cpus, False), wanted) == []


@pytest.mark.parametrize(
    ("tree", "wanted", "order"),
    [
        # No change.
        (values(a="0-3", a_b="1"), values(a="0-3"), []),
        # Shrink bottom-up: the child keeps what is left of its CPUs; a child without any gets all.
        (
            values(a="0-3", a_b="0-1", a_c="3", a_c_d="3"),
            values(a="1-2"),
            ["/a/b=1", "/a=1-3", "/a/c=1-3", "/a/c/d=1-2", "/a/c=1-2", "/a=1-2"],
        ),
        # Grow top-down: ancestors get the missing CPUs and keep their own.
        (
            values(a="0", a_b="0", a_b_c="0"),
            values(a_b_c="2"),
            ["/a=0,2", "/a/b=0,2", "/a/b/c=2"],
        ),
        # One CPU moves between siblings: it is removed from the old one first.
        (values(a="0", b="1-2"), values(a="0-1", b="2"), ["/b=2", "/a=0-1"]),
        (values(a="1-2", b="0"), values(b="0-1", a="2"), ["/a=2", "/b=0-1"]),
        # ... between children of different parents, with their ancestors.
        (
            values(a="0-1", a_x="0-1", b="2", b_x="2"),
            values(a="0", a_x="0", b="1-2", b_x="1-2"),
            ["/a/x=0", "/a=0", "/b=1-2", "/b/x=1-2"],
        ),
        # A group that loses and gains CPUs is written once if no other group needs them ...
        (values(a="0-1"), values(a="1-2"), ["/a=1-2"]),
        # ... otherwise twice.
        (values(a="0-1", b="3"), values(a="1-2", b="0,3"), ["/a=1", "/a=1-2", "/b=0,3"]),
        # Disjoint: written at once, before the group that needs its CPU, regardless of their names.
        (values(b="0", a="2"), values(b="1", a="0,2"), ["/b=1", "/a=0,2"]),
        # Disjoint with children: both the old and the new CPUs until the children have moved.
        (
            values(b="0", b_x="0", a="2"),
            values(b="1", b_x="1", a="0,2"),
            ["/b=0-1", "/b/x=1", "/b=1", "/a=0,2"],
        ),
        # A chain of moves is processed from its end.
        (values(a="0", b="1", c="2"), values(a="1", b="2", c="3"), ["/c=3", "/b=2", "/a=1"]),
        # A cycle: one group shares a CPU temporarily; a group that only depends on the cycle (d)
        # is written after it.
        (
            values(a="0", b="1", d="3"),
            values(a="1", b="0,4", d="1,3"),
            ["/a=1", "/b=0,4", "/d=1,3"],
        ),
        # An empty v1 group has no processes: it stays empty, or gets the CPUs that its child needs.
        (values(a="0-1", a_b=""), values(a="0"), ["/a=0"]),
        (values(a="", a_b=""), values(a_b="4"), ["/a=4", "/a/b=4"]),
    ],
)
def test_v1_orders(tree: Values, wanted: Values, order: list[str]) -> None:
    assert planned(tree, wanted) == order


@pytest.mark.parametrize(
    ("tree", "wanted", "order"),
    [
        # An inheriting group gets a value; its inheriting ancestors keep inheriting.
        (values(a="", a_b=""), values(a_b="1"), ["/a/b=1"]),
        # The same CPUs, but as its own value: the parent's may change.
        (values(a="1", a_b=""), values(a_b="1"), ["/a/b=1"]),
        # An ancestor with its own value lacks one CPU.
        (values(a="0-1", a_b=""), values(a_b="1-2"), ["/a=0-2", "/a/b=1-2"]),
        # The correct value, but not effective.
        (values(a="0", a_b="0-1"), values(a_b="0-1"), ["/a=0-1"]),
        # Descendants need no narrowing.
        (values(a="0-3", a_b="2-3"), values(a="0-1"), ["/a=0-1"]),
        # The old and the new value are set already, but not effective.
        (
            values(a="1-2", a_b="0-4", a_b_c=""),
            values(a="0,3-4", a_b="0,3-4", a_b_c="0"),
            ["/a=0-4", "/a/b/c=0", "/a/b=0,3-4", "/a=0,3-4"],
        ),
        # A group that inherited everything releases its CPUs before another group gains them.
        (values(a="1", b=""), values(a="1-2", b="0"), ["/b=0", "/a=1-2"]),
    ],
)
def test_v2_orders(tree: Values, wanted: Values, order: list[str]) -> None:
    assert planned(tree, wanted, inherits=True) == order


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"/": CpuSet([0])}, "'/' can't get the cpuset '0'"),
        ({"/a": EMPTY}, "'/a' can't get the cpuset ''"),
        ({"/a/x": CpuSet([0])}, "the tree lacks '/a/x'"),
        ({"/x/y": CpuSet([0])}, "the tree lacks '/x'"),
        (
            {"/a": CpuSet([0]), "/a/b": CpuSet([0, 1])},
            "'/a/b' wants '0-1', '/a' above it only '0'",
        ),
    ],
)
def test_impossible_values_are_refused(wanted: Values, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(GroupTree(values(a="0-1", a_b="1"), True), wanted)


@settings(deadline=None)
@given(cases(inherits=True))
def test_effective_follows_the_kernel(case: tuple[Values, Values]) -> None:
    tree, _ = case
    for group in tree:
        assert effective(GroupTree(tree, True), group) == model(tree, True).effective(group)


def test_parent() -> None:
    assert [parent(group) for group in ("/a/b", "/a", "/")] == ["/a", "/", "/"]
