"""Cookies of real processes in real cgroups, by the rules of a kernel with core scheduling."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.cgroup import limits
from agent.cgroup.core_scheduling import CoreCookies, CoreGroups
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone, Hierarchy, mounted
from agent.cgroup.journal import Journal
from agent.cgroup.limits import CORE_GROUP
from agent.cgroup.order import WriteState
from tests.cgroup.core_scheduling_kernel import SchedCoreKernel
from tests.cgroup.real_groups import RealGroups

ROOT: Final = "/sys/fs/cgroup"
FOREIGN: Final = 77


class CoreMachine:
    """A machine whose kernel has core scheduling."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.kernel = SchedCoreKernel(folder)
        self.groups = groups
        self.folder = folder
        self.start()

    def start(self, hierarchy: Hierarchy | None = None) -> None:
        """As an agent that starts: it knows only the journal."""
        self.journal = Journal(self.folder / "journal")
        self.core = CoreGroups(
            hierarchy or Hierarchy(ROOT),
            lambda: self.journal.values,
            CoreCookies(self.kernel.library),
        )
        self.controllers = Controllers(ROOT, others={"core_sched": lambda: self.core})

    def container(self, name: str) -> tuple[str, int]:
        """The cgroup and the process of a new container."""
        group = self.groups.make(f"/{name}")
        return group, self.groups.process(group).pid

    def apply(self, **wanted: str) -> list[WriteState]:
        """The names of containers and groups."""
        of_files = {(f"{self.groups.top}/{name}", CORE_GROUP): to for name, to in wanted.items()}
        outcome = limits.apply_texts(self.controllers, self.journal, of_files)
        return [change.state for change in outcome.changes]

    def text(self, group: str) -> str:
        self.controllers.look()
        return self.controllers.read(group, CORE_GROUP) or ""

    def cookies(self, *threads: int) -> list[int]:
        return [self.kernel.cookie(thread) for thread in threads]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[CoreMachine]:
    mount = None if os.geteuid() else mounted(ROOT, "cpuset")
    if mount is None:
        pytest.skip("no cgroups of the cpuset controller can be made here")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the library with prctl")
    groups = RealGroups({"cpuset": mount})
    yield CoreMachine(tmp_path, groups)
    groups.close()


def test_containers_of_a_group_share_a_cookie_and_get_none_back(machine: CoreMachine) -> None:
    (one, first), (_, second), (_, third) = map(machine.container, ("one", "two", "three"))
    nested = machine.groups.process(machine.groups.make("/one/nested")).pid
    assert machine.text(one) == "none"
    assert machine.apply(one="group/a", two="group/a", three="group/b") == [WriteState.WRITTEN] * 3
    assert len({machine.kernel.cookie(pid) for pid in (first, second, nested)}) == 1
    assert machine.kernel.cookie(first) != machine.kernel.cookie(third) != 0
    assert machine.kernel.cookie(os.getpid()) == 0, "the agent has none"
    assert machine.text(one) == "group/a"
    done = machine.kernel.commands
    assert machine.apply(one="group/a", two="group/a", three="group/b") == [WriteState.RIGHT] * 3
    assert machine.kernel.commands == done
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.cookies(first, second, third, nested) == [0] * 4
    assert not machine.journal.values


def test_processes_that_enter_a_container_get_its_cookie(machine: CoreMachine) -> None:
    group, main = machine.container("one")
    machine.apply(one="group/a")
    late = machine.groups.process(group).pid
    assert machine.text(group) == "group/a,none"
    machine.apply(one="group/a")
    assert machine.kernel.cookie(late) == machine.kernel.cookie(main) != 0
    machine.groups.process(group)
    machine.start()
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.cookies(main, late) == [0, 0]


def test_every_thread_of_a_process_has_the_cookie(machine: CoreMachine) -> None:
    group = machine.groups.make("/one")
    code = (
        "import threading\n"
        "[threading.Thread(target=threading.Event().wait).start() for _ in range(300)]\n"
        "print('all', flush=True)"
    )
    process = machine.groups.process(group, sys.executable, "-c", code)
    assert process.stdout is not None
    assert process.stdout.readline() == "all\n"
    machine.apply(one="group/a")
    threads = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")}
    assert len(threads) == 301
    assert len({machine.kernel.cookie(thread) for thread in threads} - {0}) == 1
    assert machine.text(group) == "group/a"


def test_an_agent_that_starts_keeps_the_cookies_that_the_kernel_has(machine: CoreMachine) -> None:
    (one, first), (two, second) = map(machine.container, ("one", "two"))
    machine.apply(one="group/a", two="group/b")
    before = machine.cookies(first, second)
    machine.start()
    assert (machine.text(one), machine.text(two)) == ("group/a", "group/b")
    done = machine.kernel.commands
    assert machine.apply(one="group/a", two="group/b") == [WriteState.RIGHT] * 2
    _, third = machine.container("three")
    machine.apply(one="group/a", two="group/b", three="group/b")
    assert machine.cookies(first, second, third) == [*before, before[1]]
    assert machine.kernel.commands == done + 2, "from one thread to one thread"


def test_a_group_keeps_its_cookie_as_long_as_a_thread_has_it(machine: CoreMachine) -> None:
    (_, first), (_, second) = map(machine.container, ("one", "two"))
    machine.apply(one="group/a", two="group/a")
    cookie = machine.kernel.cookie(second)
    end(machine, first)
    machine.groups.process(f"{machine.groups.top}/one")
    _, third = machine.container("three")
    machine.apply(one="group/a", two="group/a", three="group/a")
    assert machine.kernel.cookie(third) == cookie
    for pid in [each.pid for each in machine.groups.processes]:
        end(machine, pid)
    _, last = machine.container("four")
    machine.apply(four="group/a")
    assert machine.kernel.cookie(last) not in (0, cookie)


def test_another_group_has_another_cookie(machine: CoreMachine) -> None:
    (one, first), (_, second) = map(machine.container, ("one", "two"))
    machine.apply(one="group/a", two="group/a")
    machine.apply(one="expeller/a", two="group/a")
    assert 0 != machine.kernel.cookie(first) != machine.kernel.cookie(second)
    machine.start()
    assert machine.text(one) == "expeller/a"
    assert machine.apply(one="expeller/a", two="group/a") == [WriteState.RIGHT] * 2
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.cookies(first, second) == [0, 0]


def test_an_agent_that_was_killed_between_two_groups_gives_everything_back(
    machine: CoreMachine,
) -> None:
    group, main = machine.container("one")
    other = machine.groups.process(group).pid
    machine.apply(one="group/a")
    before = machine.kernel.cookie(other)
    machine.apply(one="group/b")
    machine.kernel.set(other, before)
    machine.start()
    assert machine.text(group) == "group/a,group/b"
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.cookies(main, other) == [0, 0]


def test_a_cookie_of_another_program_stays(machine: CoreMachine) -> None:
    group, main = machine.container("one")
    guest = machine.groups.process(group).pid
    machine.kernel.set(guest, FOREIGN)
    machine.apply(one="group/a")
    assert machine.kernel.cookie(main) not in (0, FOREIGN)
    assert machine.text(group) == "group/a"
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.cookies(main, guest) == [0, FOREIGN]
    end(machine, main)
    with pytest.raises(CgroupError, match=r"all threads .* have cookies of another program"):
        machine.text(group)
    assert machine.apply(one="group/a") == [WriteState.FAILED]


def test_an_agent_in_a_group_gives_no_cookie_of_its_own_to_others(machine: CoreMachine) -> None:
    _, main = machine.container("one")
    machine.apply(one="group/a")
    machine.kernel.set(os.getpid(), machine.kernel.cookie(main))
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.kernel.cookie(main) == 0
    machine.apply(one="group/b")
    machine.kernel.set(os.getpid(), FOREIGN)
    machine.kernel.set(1, FOREIGN)
    outcome = limits.restore(machine.controllers, machine.journal)
    (note,) = [change.note for change in outcome.changes]
    assert note == "neither the agent nor process 1 is without a cookie"
    assert machine.journal.values, "it is given back later"


class _LateThreads(Hierarchy):
    """It tells also a thread that has ended."""

    ended = 0

    def threads_below(self, group: str) -> tuple[int, ...]:
        return (self.ended, *super().threads_below(group))


def test_threads_that_end_meanwhile_do_not_matter(machine: CoreMachine) -> None:
    _, main = machine.container("one")
    late = _LateThreads(ROOT)
    short = subprocess.Popen(["true"])
    short.wait()
    late.ended = short.pid
    machine.start(late)
    machine.apply(one="group/a")
    assert machine.kernel.cookie(main) != 0
    cookies = CoreCookies(machine.kernel.library)
    cookie, (_, other) = machine.kernel.cookie(main), machine.container("two")
    assert cookies.share(cookie, [short.pid, main], [short.pid, other])
    assert machine.kernel.cookie(other) == cookie
    assert not cookies.share(FOREIGN, [short.pid, main], [other])
    assert machine.kernel.cookie(other) == cookie


def test_what_can_not_be_read_is_said(machine: CoreMachine) -> None:
    group = machine.groups.make("/one")
    with pytest.raises(GroupGone, match="no thread"):
        machine.text(group)
    main = machine.groups.process(group).pid
    machine.kernel.forbid(main)
    with pytest.raises(CgroupError, match=f"thread {main}: Operation not permitted"):
        machine.text(group)
    assert machine.apply(one="group/a") == [WriteState.FAILED]
    machine.kernel.refuse(errno.ENODEV)
    assert machine.core.problem() == "no core of this machine has several hardware threads in use"
    with pytest.raises(CgroupError, match="several hardware threads"):
        machine.text(group)


class Killed(BaseException):
    """The agent ends between two calls."""


class ModelCookies(CoreCookies):
    """The cookies of threads that exist only here."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self.cookies: dict[int, int] = {os.getpid(): 0}
        self.left: int | None = None
        """So many calls succeed before the agent ends."""

    def of(self, thread: int) -> int:
        return self.cookies[thread]

    def create(self, thread: int) -> None:
        self._count()
        self.last += 1
        self.cookies[thread] = self.last

    def share(self, cookie: int, sources: Iterable[int], threads: Collection[int]) -> bool:
        if cookie and all(self.cookies.get(source) != cookie for source in sources):
            return False
        for thread in threads:
            self._count()
            self.cookies[thread] = cookie
        return True

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class ModelThreads(Hierarchy):
    """Containers `/0` to `/2`, with their threads."""

    def __init__(self) -> None:
        super().__init__(ROOT)
        self.of: dict[str, set[int]] = {f"/{number}": set() for number in range(3)}

    def exists(self, group: str) -> bool:
        return group in self.of

    def threads_below(self, group: str) -> tuple[int, ...]:
        return tuple(self.of[group])


GROUP_NAMES: Final = st.sampled_from(["group/a", "group/b", "expeller/a", "pod/1", None])
CONTAINER: Final = st.integers(0, 2)
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.tuples(GROUP_NAMES, GROUP_NAMES, GROUP_NAMES)),
        st.tuples(st.just("kill"), st.integers(0, 6)),
        st.tuples(st.sampled_from(["enter", "fork", "end"]), CONTAINER),
    ),
    max_size=25,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@example(
    [
        ("enter", 0),
        ("enter", 1),
        ("want", ("group/a", "group/a", "group/b")),
        ("enter", 2),
        ("kill", 1),
    ]
)
def test_threads_have_one_cookie_only_if_they_are_in_one_group(
    tmp_path: Path, steps: list[tuple[str, Any]]
) -> None:
    """Whatever enters, forks and ends, and whenever the agent is killed and starts again."""
    if mounted(ROOT, "cpuset") is None:
        pytest.skip("there are no cgroups of the cpuset controller here")
    path = Path(tempfile.mkdtemp(dir=tmp_path)) / "journal"
    cookies, threads = ModelCookies(), ModelThreads()
    numbers = itertools.count(1_000_000)
    groups: tuple[str | None, ...] = (None, None, None)
    agent = _agent(threads, path, cookies)
    for step, of in steps:
        container = threads.of[f"/{of}"] if step in ("enter", "fork", "end") else set()
        if step == "enter" or (step == "fork" and container):
            thread = next(numbers)
            cookies.cookies[thread] = cookies.cookies[min(container)] if step == "fork" else 0
            container.add(thread)
        elif step == "end" and container:
            container.remove(min(container))
        elif step == "want":
            groups = of
        elif step == "kill":
            cookies.left = of
            with contextlib.suppress(Killed):
                _follow(*agent, groups[1:] + groups[:1])
            cookies.left = None
            agent = _agent(threads, path, cookies)
        _follow(*agent, groups)
        have = {
            (groups[number], cookies.cookies[thread])
            for number in range(3)
            for thread in threads.of[f"/{number}"]
        }
        assert all((name is None) == (cookie == 0) for name, cookie in have)
        assert len({name for name, _ in have}) == len({cookie for _, cookie in have}) == len(have)
    controllers, journal = _agent(threads, path, cookies)
    assert limits.restore(controllers, journal).ok
    assert not any(cookies.cookies[thread] for of in threads.of.values() for thread in of)
    assert not journal.values


def _agent(threads: Hierarchy, path: Path, cookies: CoreCookies) -> tuple[Controllers, Journal]:
    journal = Journal(path)
    core = CoreGroups(threads, lambda: journal.values, cookies)
    return Controllers(ROOT, others={"core_sched": lambda: core}), journal


def _follow(controllers: Controllers, journal: Journal, groups: tuple[str | None, ...]) -> None:
    """As each second of colocation."""
    wanted = {
        (f"/{number}", CORE_GROUP): name for number, name in enumerate(groups) if name is not None
    }
    assert limits.restore(controllers, journal, journal.values.keys() - wanted.keys()).ok
    outcome = limits.apply_texts(controllers, journal, wanted)
    assert not outcome.having(WriteState.FAILED)


def end(machine: CoreMachine, pid: int) -> None:
    (process,) = [each for each in machine.groups.processes if each.pid == pid]
    process.kill()
    process.communicate()
    machine.groups.processes.remove(process)
