"""Each mask is compared with a loop over every CPU."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import NOTHING_HELD
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.cpu.topology import Cpu
from tests.allocate.machines import MACHINES, masks, ref_counts


def draw_machine(data: st.DataObject) -> tuple[tuple[Cpu, ...], int]:
    cpus = data.draw(MACHINES)
    return cpus, data.draw(masks(cpus))


def cores_where(cpus: tuple[Cpu, ...], wanted: dict[int, bool]) -> CpuSet:
    return CpuSet(core for core in {cpu.core for cpu in cpus} if wanted[core])


@given(st.data())
def test_cores_by_number_of_cpus(data: st.DataObject) -> None:
    cpus, mask = draw_machine(data)
    chosen = [cpu for cpu in cpus if mask >> cpu.id & 1]
    threads = Counter(cpu.core for cpu in cpus)
    counts = Counter(cpu.core for cpu in chosen)
    layout = layouts.of(cpus)

    assert layout.threads == max(threads.values())
    assert CpuSet.from_int(layout.whole(mask)) == cores_where(
        cpus, {core: counts[core] == threads[core] for core in threads}
    )
    assert CpuSet.from_int(layout.touched(mask)) == CpuSet(counts)
    assert [CpuSet.from_int(each) for each in layout.at_least(mask)] == [
        cores_where(cpus, {core: counts[core] >= count for core in threads})
        for count in range(1, layout.threads + 1)
    ]
    assert {size: CpuSet.from_int(leads) for size, leads in layout.sizes} == {
        size: cores_where(cpus, {core: threads[core] == size for core in threads})
        for size in set(threads.values())
    }


@given(st.data())
def test_threads_of_cores(data: st.DataObject) -> None:
    cpus, mask = draw_machine(data)
    layout = layouts.of(cpus)
    cores = {cpu.core for cpu in cpus if mask >> cpu.id & 1}

    assert CpuSet.from_int(layout.expand(layout.touched(mask))) == CpuSet(
        cpu.id for cpu in cpus if cpu.core in cores
    )
    assert CpuSet.from_int(layout.firsts(mask)) == CpuSet(
        min(cpu.id for cpu in cpus if cpu.core == core and mask >> cpu.id & 1) for core in cores
    )


@given(st.data())
def test_areas(data: st.DataObject) -> None:
    cpus, mask = draw_machine(data)
    layout = layouts.of(cpus)

    for areas, name in ((layout.nodes, "node"), (layout.sockets, "socket")):
        assert [(area.id, CpuSet.from_int(area.cpus)) for area in areas] == [
            (id_, CpuSet(cpu.id for cpu in cpus if getattr(cpu, name) == id_))
            for id_ in sorted({getattr(cpu, name) for cpu in cpus})
        ]
        for area in areas:
            sockets = {cpu.socket for cpu in cpus if area.cpus >> cpu.id & 1}
            assert CpuSet.from_int(area.around) == CpuSet(
                cpu.id for cpu in cpus if cpu.socket in sockets
            )
    nodes = sorted({cpu.node for cpu in cpus if mask >> cpu.id & 1})
    assert layout.node_ids(mask) == tuple(nodes)
    assert CpuSet.from_int(layout.of_nodes([*nodes, 99])) == CpuSet(
        cpu.id for cpu in cpus if cpu.node in nodes
    )
    assert sum(cell.cpus for cell in layout.cells) == layout.cpus == sum(1 << c.id for c in cpus)
    for cell in layout.cells:
        assert cell.cpus == layout.sockets[cell.socket].cpus & layout.nodes[cell.node].cpus


@given(st.data())
def test_sections_are_the_larger_areas_with_the_smaller_ones(data: st.DataObject) -> None:
    cpus, _ = draw_machine(data)
    layout = layouts.of(cpus)
    outer, inner = (layout.sockets, layout.nodes)
    if layout.nodes_first:
        outer, inner = inner, outer
    assert len(outer) <= len(inner)
    assert [(each.id, each.cpus) for each in layout.sections] == [(o.id, o.cpus) for o in outer]
    for section in layout.sections:
        assert section.parts == tuple(area for area in inner if area.cpus & section.cpus)


def test_a_node_that_spans_sockets_is_a_section_of_them() -> None:
    spanning = layouts.of(Cpu(i, i, None, None, i, 0) for i in range(2))
    split = layouts.of(Cpu(i, i, None, None, 0, i) for i in range(2))
    assert (spanning.nodes_first, split.nodes_first) == (True, False)
    assert [len(layout.sections[0].parts) for layout in (spanning, split)] == [2, 2]


@pytest.mark.parametrize(
    ("l3", "expected"),
    [
        pytest.param((0, 0, 2, 2), [(0, "0-1"), (2, "2-3")], id="known"),
        pytest.param((None,) * 4, [(0, "0-1"), (2, "2-3")], id="one a socket where unknown"),
        pytest.param((0, 1, None, None), [(0, "0"), (1, "1"), (2, "2-3")], id="partly known"),
    ],
)
def test_caches(l3: tuple[int | None, ...], expected: list[tuple[int, str]]) -> None:
    layout = layouts.of(Cpu(i, i, l3[i], None, i // 2, 0) for i in range(4))
    assert [(each.id, str(CpuSet.from_int(each.cpus))) for each in layout.caches] == expected
    assert [str(CpuSet.from_int(each.around)) for each in layout.nodes] == ["0-3"]


def test_no_cpus() -> None:
    layout = layouts.of(())
    assert (layout.cpus, layout.threads, layout.nodes, layout.at_least(0)) == (0, 1, (), [0])


PODS = st.lists(
    st.tuples(st.integers(0, 255), st.sampled_from(ExclusivePolicy), st.integers(1, 3)), max_size=6
)


@given(PODS)
def test_counts(pods: list[tuple[int, ExclusivePolicy, int]]) -> None:
    cpu_counts = ref_counts(pods)
    counts = Counter(
        cpu for mask, _, times in pods for cpu in CpuSet.from_int(mask) for _ in range(times)
    )
    for number in range(1, 20):
        assert set(CpuSet.from_int(cpu_counts.full(number))) == {
            cpu for cpu, count in counts.items() if count >= number
        }


@given(PODS, st.randoms(use_true_random=False))
def test_the_order_of_pods_does_not_matter(
    pods: list[tuple[int, ExclusivePolicy, int]], random: object
) -> None:
    shuffled = sorted(pods, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert ref_counts(shuffled) == ref_counts(pods)


@given(PODS, st.data())
def test_a_removed_pod_leaves_no_counts(
    pods: list[tuple[int, ExclusivePolicy, int]], data: st.DataObject
) -> None:
    removed = data.draw(st.lists(st.sampled_from(pods), unique_by=id) if pods else st.just([]))
    cpu_counts = ref_counts(pods)
    for cpus, exclusive, times in removed:
        for _ in range(times):
            cpu_counts = cpu_counts.removing(cpus, exclusive)
    assert cpu_counts == ref_counts(
        [pod for pod in pods if not any(pod is each for each in removed)]
    )


def test_cpus_are_exclusive_while_any_holder_is() -> None:
    core, none = ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NONE
    both = NOTHING_HELD.adding(0b11, core).adding(0b10, none).adding(0b10, core)
    assert both.core_exclusive == (0b11, 0b10)
    assert both.node_exclusive == ()
    assert both.removing(0b11, core).core_exclusive == (0b10,)


def test_removing_cpus_that_are_not_held() -> None:
    with pytest.raises(ValueError, match="0x4 is not held"):
        NOTHING_HELD.adding(0b11).removing(0b110)


def test_a_max_ref_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_ref: 0"):
        NOTHING_HELD.full(0)
