from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from agent.view import terminal
from agent.view.live import Attention, live
from agent.view.terminal import Ability, Frame
from agent.view.top import frame as frames
from agent.view.top import lists
from agent.view.top.cells import LoadCells, marks
from agent.view.top.values import (
    END,
    PAGES,
    SORTS,
    WINDOWS_SECONDS,
    Group,
    NodeObservation,
    Opened,
    ScreenState,
    Usage,
)
from tests.view.top import nodes

FULL = Ability()
ASCII = Ability(unicode=False, colours=0)
SHAPES = ((), (1, 1, 1, 1, 1), (2, 2, 2, 4, 2), (1, 2, 1, 2, 1))
node = cache(nodes.node)

OPENED = Opened(
    "t",
    annotations={
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"1-2"}',
        "long": "x" * 999,
    },
    containers=(("main", "running"),),
    groups=(Group("main", "/kubepods/podt/main", {"cpuset.cpus": "1-2"}),),
)
screen_states = st.builds(
    ScreenState,
    page=st.sampled_from(PAGES),
    focus=st.sampled_from(("pods", "devices", "changes")),
    selected=st.dictionaries(st.just("pods"), st.sampled_from(("t", "u3", "deleted"))),
    opened=st.sampled_from(
        (None, None, ("pods", "t"), ("pods", "deleted"), ("devices", nodes.GPU.address))
    ),
    scroll=st.sampled_from((0, 3, END)),
    sort=st.sampled_from(SORTS),
    reversed=st.booleans(),
    filter=st.sampled_from(("", "web", "nothing like that")),
    typing=st.booleans(),
    frozen=st.booleans(),
    helps=st.booleans(),
    window_seconds=st.sampled_from(WINDOWS_SECONDS),
)
abilities = st.sampled_from((Ability(), ASCII, Ability(True, 16), Ability(True, 0)))


@cache
def with_hour(*shape: int) -> NodeObservation:
    observed = nodes.node(*shape)
    return msgspec.structs.replace(observed, hour=nodes.hour(observed))


def text(lines: Frame) -> str:
    return "\n".join(map(terminal.text, lines))


def shown(
    observed: NodeObservation,
    state: ScreenState | None = None,
    columns: int = 80,
    rows: int = 24,
    ability: Ability = FULL,
) -> str:
    return text(frames.frame(observed, None, state or ScreenState(), columns, rows, ability))


@given(
    st.sampled_from(SHAPES),
    screen_states,
    st.integers(1, 220),
    st.integers(1, 70),
    abilities,
    st.sampled_from((None, OPENED)),
    st.booleans(),
)
def test_every_frame_fits_its_size(
    shape: tuple[int, ...],
    state: ScreenState,
    columns: int,
    rows: int,
    ability: Ability,
    opened: Opened | None,
    sampled: bool,
) -> None:
    observed = with_hour(*shape) if sampled else node(*shape)
    drawn = frames.frame(observed, opened, state, columns, rows, ability)
    assert len(drawn) == rows
    assert all(terminal.width(line) <= columns for line in drawn)
    if not ability.unicode:
        assert text(drawn).isascii()


def test_all_parts_at_80x24() -> None:
    screen = shown(node())
    for part in (
        "node-a  8 CPUs",
        "! Claim refused: web/front-1 CPUs 9 are offline",
        "─ CPUs",
        "a ml/train",
        "─ Pools over the last 5 minutes",
        "LS pool    5 CPUs",
        "─ 8 pods, by class",
        ">a ml/train",
        "gpu 0       N0  NVIDIA H100 80GB HB…",
        "45%",
        "─ 2 changes, newest first",
        "web/front-1 Container main moves to CPUs…: pod ml/train owns CPUs 1-2.",
        "q end",
    ):
        assert part in screen, part


def test_load_and_pressure_are_beside_the_owners_and_pools() -> None:
    screen = shown(with_hour(), columns=110, rows=30)
    for part in (
        "─ Pools: load of the last hour, size over the last 5 minutes",
        " LS pool    5 CPUs  42% ▁▁▁▁▁▁▂▂▂▂▃▃▃▃▄▄▄▄▄▅ ",
        "MEMORY LAST HOUR            WAITS       WHY",
        "3 GiB ▄▆▇▅▇▄▇▄▆▇▅▇▄▇▄▆▇▅▇▄ cpu 0%      own: a scheduler",
        "100 MiB ██████████▁▁▁▁▁▁▁▁▁▁ cpu 31%     claim refused",
        "quota 1.25  shares a pool",
        "waits cpu 15%",
    ):
        assert part in screen, part
    assert "cpu 31%     claim" in shown(with_hour(), columns=62)
    assert "31%" not in shown(with_hour(), columns=50)


def test_a_pod_that_is_not_sampled_waits_for_nothing_that_is_known() -> None:
    screen = shown(with_hour(), columns=110)
    line = next(row for row in screen.split("\n") if "db/postgres LSR" in row)
    assert re.search(r"900 MiB {11,22}- +own:", line)


def test_pods_that_wait_most_are_first() -> None:
    state = ScreenState(sort="waits")
    titles = [pod.title for pod in lists.pods(with_hour(), state)]
    assert titles[:3] == ["web/front-2", "web/front-1", "ml/train"]


def test_an_opened_pod_has_its_last_hour() -> None:
    state = ScreenState(opened=("pods", "u1"))
    screen = shown(with_hour(), state, columns=80, rows=40)
    before, after = "█" * 19, "▁" * 19
    assert f"CPUs used        0.25, most 1.50       {before}{after}" in screen
    assert f"waits for CPU    31%, most 31%         {after}{before}" in screen
    assert "Who disturbs it" in screen
    assert "waited 310 ms of each second for CPUs 2: 310 ms batch/hog (BE)" in " ".join(
        line.strip(" │") for line in screen.split("\n")
    )
    assert "Load and pressure" not in shown(node(), state, columns=80, rows=40)


def test_the_picture_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    page = (Path(__file__).resolve().parents[3] / "docs" / "views.md").read_text()
    assert f"```\n{shown(node(), ability=ASCII)}\n```\n" in page
    excerpt = page.partition("### The last hour")[2].split("```")[1].strip().split("\n")
    assert set(excerpt) <= set(shown(with_hour(), ability=ASCII).split("\n"))


def test_cells_have_owner_and_load() -> None:
    """CPU 1 has load 37, CPU 3 has load 10; the threads of a core are next to each other."""
    screen = shown(node(), ability=ASCII)
    assert "N0  42% 0=. 4=4  1a3 5=8" in screen
    assert "N1  40% 2a7 6=2  3b1 7=5" in screen


def test_cells_show_cores_or_caches_if_cpus_do_not_fit() -> None:
    """The threads of 512 CPUs need 8 lines of 80 columns."""
    observed = node(2, 4, 4, 8, 2)
    cells = LoadCells(observed, marks(observed.node), ASCII)
    heights = [cells.height(80, rows) for rows in (40, 8, 4, 2)]
    assert heights == [28, 8, 4, 1]
    threads, cores, caches = (text(cells.draw(CpuSet(), 80, rows)) for rows in (8, 4, 2))
    assert threads.splitlines()[0].startswith("N0 ==a=a=b=========")
    assert "N1" in cores.splitlines()[0]
    assert cores.splitlines()[0].startswith("N0 =***====")
    assert caches.splitlines()[0].startswith("N0 *===")
    small = text(cells.draw(CpuSet(), 20, 2))
    assert "more line" in small


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_no_cell_is_cut(columns: int) -> None:
    """Eight blocks in a row once left no room for the cells after the labels."""
    for shape in ((8, 1, 1, 2, 1), (2, 4, 1, 3, 2), (1, 1, 1, 40, 2)):
        observed = node(*shape)
        for rows in (4, 12, 40):
            drawn = LoadCells(observed, marks(observed.node), ASCII).draw(CpuSet(), columns, rows)
            found = re.findall(r"[=ab]", text(drawn))
            assert len(found) in (
                len(observed.node.cpus),
                len({cpu.core for cpu in observed.node.cpus}),
            )


@pytest.mark.parametrize(
    "name", ["16amd64-8n2c", "8em64t-2s4c-asymcaches", "nvidiagpunumanodes", "offline-cpu0-node0"]
)
def test_machines_of_the_snapshots(snapshot: Callable[[str], str], name: str) -> None:
    observed = NodeObservation(nodes.NOW, live("node-a", cpus.read(snapshot(name)), None))
    for columns, rows in ((80, 24), (120, 40), (200, 50)):
        drawn = frames.frame(observed, None, ScreenState(page="cpus"), columns, rows, FULL)
        assert len(drawn) == rows
        assert all(terminal.width(line) <= columns for line in drawn)
    assert text(drawn).count(".?") == len(observed.node.cpus)


def test_marks_of_pools_and_owners() -> None:
    marked = marks(node().node)
    assert "".join(marked.by_cpu[cpu].letter for cpu in range(8)) == "=aab===="
    assert [(each.letter, each.name) for each in marked.legend()] == [
        ("=", "LS and BE pool"),
        ("a", "ml/train"),
        ("b", "db/postgres"),
    ]


def test_the_cpus_of_the_selected_pod_are_bright() -> None:
    plain, bright = (
        frames.frame(node(), None, state, 80, 24, Ability())
        for state in (ScreenState(), ScreenState(selected={"pods": "t"}))
    )
    assert text(plain) == text(bright)
    assert plain != bright


def test_sorted_by_usage() -> None:
    titles = [
        each.title for each in lists.pods(node(), ScreenState(sort="used", filter="web/front"))
    ]
    assert titles[:2] == ["web/front-2", "web/front-1"]
    assert lists.pods(node(), ScreenState(sort="cpus"))[0].title == "ml/train"
    by_name = [each.title for each in lists.pods(node(), ScreenState(sort="name", reversed=True))]
    assert by_name == sorted(by_name, reverse=True)


def test_filter() -> None:
    screen = shown(node(), ScreenState(filter="front-2"))
    assert "1 of 8 pods" in screen
    assert "1 change, newest" in screen
    assert "0 devices" in screen


def test_attention_that_does_not_fit_is_counted() -> None:
    attention = tuple(
        Attention("Device unhealthy", f"fault {each}", device="d") for each in range(9)
    )
    observed = msgspec.structs.replace(
        node(), problems=("the agent does not run: these are its last decisions",)
    )
    observed = msgspec.structs.replace(
        observed, node=msgspec.structs.replace(observed.node, attention=attention)
    )
    screen = shown(observed)
    assert "! the agent does not run" in screen
    assert "! 9 more" in screen
    assert "+9 more" in shown(observed, columns=80, rows=16)


def test_an_opened_pod() -> None:
    opened = ScreenState(opened=("pods", "t"))
    waiting = shown(node(), opened)
    assert "─ Pod ml/train" in waiting
    assert "Reading from the runtime" in waiting
    lines = text(frames.frame(node(), OPENED, opened, 100, 60, Ability()))
    for part in (
        "owns its CPUs: a scheduler chose them",
        "1.50 CPUs",
        "gpu 0 0000:11:00.0",
        "Cgroup of main",
        "cpuset.cpus      1-2",
        "There was no change in the last day.",
        "scheduling.koordinator.sh/resource-status",
        '"cpuset": "1-2"',
    ):
        assert part in lines, part


def test_a_change_opens_its_pod() -> None:
    observed = node()
    key = lists.keys(observed, ScreenState())["changes"][0]
    assert lists.pod_of(("changes", key), observed) == "u1"
    screen = shown(observed, ScreenState(opened=("changes", key)), 120, 60)
    assert "─ Pod web/front-1" in screen
    assert "CPUs 9 are offline" in screen
    assert "pod ml/train owns CPUs 1-2." in screen


def test_an_opened_device() -> None:
    screen = shown(node(), ScreenState(opened=("devices", nodes.GPU.address)))
    for part in ("GPU-1", "20 GiB of 80 GiB", "healthy", "18 NVLinks", "ml/train"):
        assert part in screen, part


def test_a_deleted_pod() -> None:
    assert "The pod is gone." in shown(node(), ScreenState(opened=("pods", "deleted")))


def test_names_can_not_write_to_the_terminal() -> None:
    observed = node()
    hostile = msgspec.structs.replace(
        observed.node.pods[0], title="a/\x1b[2Jevil\u202e漢", refused="\x07"
    )
    observed = msgspec.structs.replace(
        observed, node=msgspec.structs.replace(observed.node, pods=(hostile,))
    )
    drawn = frames.frame(observed, None, ScreenState(), 80, 24, Ability())
    opened = frames.frame(
        observed, None, ScreenState(opened=("pods", hostile.uid)), 80, 24, Ability()
    )
    for line in (*drawn, *opened):
        assert all(each.isprintable() for each in terminal.text(line))
    assert "?[2Jevil??" in text(drawn)


def test_without_decisions() -> None:
    observed = node()
    empty = msgspec.structs.replace(observed.node, pods=(), pools=(), devices=(), generation=0)
    observed = NodeObservation(observed.time, empty, ("no agent uses the state folder /s",))
    screen = shown(observed)
    assert "! no agent uses the state folder /s" in screen
    assert "? 0.?" in screen or "0.?" in screen


def test_unknown_usage_of_pods() -> None:
    observed = msgspec.structs.replace(node(), usage={"t": Usage(None, None)})
    assert " - " in shown(observed).split(">a ml/train")[1].splitlines()[0]


def test_a_screen_that_is_too_small() -> None:
    assert "too small: 30x8, needs 40x10" in shown(node(), columns=30, rows=8)
