"""Who waited for whom: known situations, and what holds for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.usage.contention import (
    OTHER_PROCESSES,
    CpuWait,
    Interval,
    Party,
    PartyKind,
    Runner,
    WaitingContainer,
    core_sharings,
    cpu_waits,
    delays,
)

PAIR, FOUR = CpuSet.parse("0-1"), CpuSet.parse("0-3")
API = Party(PartyKind.POD, "shop/api", "LS")
HOG = Party(PartyKind.POD, "batch/hog", "BE")
BACKUP = Party(PartyKind.UNIT, "system.slice/backup.service")
DISK = Party(PartyKind.INTERRUPTS, "nvme0")
WRITER = Party(PartyKind.KERNEL_THREAD, "kworker/u8-writeback")


def only(interval: Interval, pod: Party = API) -> CpuWait:
    (wait,) = (each for each in cpu_waits(interval) if each.pod == pod)
    return wait


@pytest.mark.parametrize(
    ("threads", "throttled", "others", "parts"),
    [
        # 4 CPUs for 1 s: (used, waited) of the pod; the parts are throttled, own, taken.
        pytest.param((2, 2), 0, 2, (0, 0, 2), id="as many threads as CPUs beside a hog"),
        pytest.param((4, 4), 0, 0, (0, 4, 0), id="twice as many threads as CPUs alone"),
        pytest.param((8 / 3, 16 / 3), 0, 4 / 3, (0, 4, 4 / 3), id="both"),
        pytest.param((2, 2), 2, 0, (2, 0, 0), id="four threads with a quota of two CPUs"),
        pytest.param((2, 6), 2, 0, (2, 4, 0), id="eight threads with that quota"),
        pytest.param((1, 3), 2, 2, (2, 0, 1), id="a quota and a hog"),
        pytest.param((1, 0.5), 0, 0, (0, 0.5, 0), id="nobody else ran: threads on one CPU"),
    ],
)
def test_a_wait_is_what_would_not_be_without_the_cause(
    threads: tuple[float, float],
    throttled: float,
    others: float,
    parts: tuple[float, float, float],
) -> None:
    used, waited = threads
    wait = only(
        Interval(
            1.0,
            dict.fromkeys(FOUR, (used + others) / 4),
            containers=(WaitingContainer(API, FOUR, used, waited, throttled),),
            runners=(Runner(HOG, FOUR, others),),
        )
    )
    taken = sum(seconds for _, seconds in wait.takers)
    assert (wait.throttled, wait.own, taken) == pytest.approx(parts)


def test_takers_are_ranked_by_their_time_on_the_cpus_of_the_pod() -> None:
    wait = only(
        Interval(
            2.0,
            {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0},
            containers=(WaitingContainer(API, PAIR, 1.0, 2.0),),
            runners=(
                Runner(HOG, PAIR, 2.4),
                Runner(BACKUP, PAIR, 0.6),
                Runner(WRITER, CpuSet.parse("2-3"), 4.0),
            ),
        )
    )
    assert [party for party, _ in wait.takers] == [HOG, BACKUP]
    assert [seconds for _, seconds in wait.takers] == pytest.approx([0.8, 0.2])
    assert str(wait.cpus) == "0-1"


def test_who_has_room_elsewhere_is_there() -> None:
    """The hog may run on all CPUs, and the pod alone accounts for what its CPUs were busy."""
    wait = only(
        Interval(
            1.0,
            {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0},
            containers=(WaitingContainer(API, PAIR, 2.0, 0.2),),
            runners=(Runner(HOG, FOUR, 2.0),),
        )
    )
    assert wait.own + sum(seconds for _, seconds in wait.takers) == pytest.approx(0.2)
    assert wait.own > 0.15, "its own threads have the CPUs"


def test_interrupts_take_time_from_the_pod_that_has_the_cpu() -> None:
    interval = Interval(
        1.0,
        {0: 0.4, 1: 0.0},
        {DISK: {0: 0.6, 1: 0.6}},
        (WaitingContainer(API, CpuSet([0]), 0.4), WaitingContainer(HOG, CpuSet([1]), 0.0)),
    )
    (wait,) = cpu_waits(interval)
    ((taker, seconds),) = wait.takers
    assert (wait.pod, taker) == (API, DISK)
    assert (wait.waited, seconds) == pytest.approx((0.6, 0.6))


def test_interrupts_that_are_counted_twice_also_explain_a_wait() -> None:
    """The pod is interrupted for a part of the 0.42 s in which it has the CPU, and waits while
    interrupts go on: its only thread does not wait for itself."""
    wait = only(
        Interval(
            1.0,
            {0: 0.27},
            {DISK: {0: 0.71}},
            (WaitingContainer(API, CpuSet([0]), 0.42, 0.40),),
        )
    )
    assert wait.own == pytest.approx(0.0)
    assert wait.takers == ((DISK, pytest.approx(0.42 * 0.71 + 0.40)),)


def test_processes_of_nobody_are_named_as_such() -> None:
    wait = only(
        Interval(1.0, {0: 1.0, 1: 1.0}, containers=(WaitingContainer(API, PAIR, 0.5, 1.0),))
    )
    assert [party for party, _ in wait.takers] == [OTHER_PROCESSES]


def test_another_container_of_the_pod_is_not_a_neighbour() -> None:
    wait = only(
        Interval(
            1.0,
            {0: 1.0, 1: 1.0},
            containers=(
                WaitingContainer(API, PAIR, 1.0, 1.0),
                WaitingContainer(API, PAIR, 1.0, 1.0),
            ),
        )
    )
    assert (wait.waited, wait.own, wait.takers) == (2.0, 2.0, ())


def test_only_the_longest_waits_are_explained() -> None:
    containers = (
        WaitingContainer(API, PAIR, 1.0, 1.0),
        WaitingContainer(HOG, PAIR, 1.0, 3.0),
        WaitingContainer(Party(PartyKind.POD, "batch/other"), PAIR, 0.0, 2.0),
    )
    interval = Interval(2.0, {0: 1.0, 1: 1.0}, containers=containers)
    assert [wait.pod for wait in cpu_waits(interval, most=1)] == [HOG]
    assert delays(interval)[API] == 0.5


def test_a_short_wait_is_left_out() -> None:
    interval = Interval(1.0, {0: 1.0}, containers=(WaitingContainer(API, CpuSet([0]), 0.95, 0.05),))
    assert not cpu_waits(interval, least=0.1)
    assert cpu_waits(interval, least=0.01)


def test_who_runs_on_the_sibling_threads_shares_the_cores() -> None:
    """CPUs 0-1 are siblings, and 2-3."""
    cores = {cpu: CpuSet([cpu - cpu % 2, cpu - cpu % 2 + 1]) for cpu in range(4)}
    interval = Interval(
        2.0,
        {0: 1.6, 1: 2.0, 2: 2.0, 3: 0.0},
        containers=(
            WaitingContainer(API, CpuSet([0]), 1.6),
            WaitingContainer(API, CpuSet([2]), 2.0),
        ),
        runners=(Runner(HOG, CpuSet([1]), 2.0),),
    )
    (sharing,) = core_sharings(interval, cores, 0.25)
    assert (sharing.pod, str(sharing.siblings)) == (API, "1,3")
    assert sharing.shared == pytest.approx(0.8, abs=0.01)
    assert [party for party, _ in sharing.sharers] == [HOG]
    assert not core_sharings(interval, cores, 0.9)
    assert not core_sharings(interval, {cpu: CpuSet([cpu]) for cpu in range(4)}, 0.0)


def test_the_own_containers_on_a_sibling_share_no_core() -> None:
    cores = dict.fromkeys((0, 1), PAIR)
    both = tuple(WaitingContainer(API, CpuSet([cpu]), 1.0) for cpu in (0, 1))
    interval = Interval(1.0, {0: 1.0, 1: 1.0}, containers=both)
    assert core_sharings(interval, cores, 0.1) == ()


SETS = st.sets(st.integers(0, 5), min_size=1).map(CpuSet)
TIMES = st.floats(0.0, 8.0)
PARTIES = st.sampled_from([API, HOG, BACKUP, WRITER])
INTERVALS = st.builds(
    Interval,
    st.floats(0.1, 60.0),
    st.dictionaries(st.integers(0, 5), TIMES, max_size=6),
    st.dictionaries(
        st.just(DISK), st.dictionaries(st.integers(0, 5), TIMES, max_size=6), max_size=1
    ),
    st.lists(
        st.builds(WaitingContainer, st.sampled_from([API, HOG]), SETS, TIMES, TIMES, TIMES)
    ).map(tuple),
    st.lists(st.builds(Runner, PARTIES, SETS, TIMES)).map(tuple),
)


@given(INTERVALS)
def test_the_parts_add_up_and_nobody_is_named_for_cpus_where_he_may_not_run(
    interval: Interval,
) -> None:
    allowed: dict[Party, CpuSet] = {OTHER_PROCESSES: CpuSet(interval.process_seconds)}
    for runner in (*interval.containers, *interval.runners):
        allowed[runner.party] = allowed.get(runner.party, CpuSet()) | runner.cpus
    for party, by_cpu in interval.taken_seconds.items():
        allowed[party] = CpuSet(by_cpu)
    for wait in cpu_waits(interval):
        parts = [wait.throttled, wait.own, *(seconds for _, seconds in wait.takers)]
        assert min(parts) >= -1e-9
        assert sum(parts) == pytest.approx(wait.waited)
        for party, _ in wait.takers:
            assert party != wait.pod
            assert allowed[party] & wait.cpus, party
        delay = sum(each.delay_seconds for each in interval.containers if each.party == wait.pod)
        assert wait.waited * interval.seconds >= delay * (1 - 1e-9)
