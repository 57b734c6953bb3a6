"""The core scheduling of cgroups (prctl(2), PR_SCHED_CORE) as values of groups, so that it is
written, journalled and given back as files of cgroups are.

`core_sched.group` of a cgroup has the names of the groups of which its threads have the cookies,
those in cgroups below it too, with commas between them, `none` for threads without one. A write
gives all of them the cookie of the first name. Threads that have a cookie of another program keep
it, and are not read.

The kernel keeps the cookies, and the journal the names: so an agent that starts later knows both
again. Children begin with the cookie of their parent."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from agent.allocate.colocation.core_scheduling import (
    NO_GROUP,
    cookies_of_groups,
    without_cookie,
)
from agent.cgroup.hierarchy import CgroupError, GroupGone, Hierarchy
from agent.cgroup.limits import CORE_GROUP

if TYPE_CHECKING:
    from agent.cgroup.journal import OriginalValue

_PR_SCHED_CORE: Final = 62
_GET: Final = 0
_CREATE: Final = 1
_SHARE_TO: Final = 2
_SHARE_FROM: Final = 3
_OF_THREAD: Final = 0
_SELF: Final = 0
_INIT: Final = 1
_ROUNDS: Final = 5
"""A thread that has no cookie yet may start others meanwhile."""
_WITHOUT_KERNEL: Final = "this kernel has no core scheduling (CONFIG_SCHED_CORE, Linux 5.14)"
_WITHOUT_SMT: Final = "no core of this machine has several hardware threads in use"


class CoreCookies:
    """The cookies of threads. Everything raises OSError.

    `library`: has prctl(2); None for the one that this process has loaded."""

    def __init__(self, library: str | None = None) -> None:
        self._library = library
        self._loaded: Any = None

    def of(self, thread: int) -> int:
        """0 for none."""
        import ctypes  # half a megabyte that few nodes need

        cookie = ctypes.c_uint64()
        self._call(_GET, thread, ctypes.addressof(cookie))
        return cookie.value

    def create(self, thread: int) -> None:
        """Gives the thread a cookie that no other has."""
        self._call(_CREATE, thread)

    def share(self, cookie: int, sources: Iterable[int], threads: Collection[int]) -> bool:
        """Gives threads the cookie of the first source that has it; False if none has. Those that
        have ended are left out."""
        outcome: list[bool | OSError] = []

        def share() -> None:
            try:
                outcome.append(self._share(cookie, sources, threads))
            except OSError as error:
                outcome.append(error)

        # The thread that shares has the cookie itself, and ends here.
        sharing = threading.Thread(target=share, name="core-scheduling", daemon=True)
        try:
            sharing.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error), "the thread that shares") from error
        sharing.join()
        for each in outcome:
            if isinstance(each, OSError):
                raise each
        return outcome == [True]

    def _share(self, cookie: int, sources: Iterable[int], threads: Collection[int]) -> bool:
        for source in sources:
            try:
                self._call(_SHARE_FROM, source)
            except ProcessLookupError:
                continue
            if self.of(_SELF) == cookie:  # another thread may have got the number
                break
        else:
            return False
        for thread in threads:
            try:
                self._call(_SHARE_TO, thread)
            except ProcessLookupError:
                continue
        return True

    def _call(self, command: int, thread: int, address: int = 0) -> None:
        import ctypes

        if self._loaded is None:
            self._loaded = ctypes.CDLL(self._library, use_errno=True)
        numbers = map(ctypes.c_ulong, (command, thread, _OF_THREAD, address))
        if self._loaded.prctl(_PR_SCHED_CORE, *numbers):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"thread {thread}")


class CoreGroups:
    """The groups of a machine. It keeps their cookies, and those of threads until `look`.

    `hierarchy`: tells the threads of cgroups.
    `entries`: returns the values of the journal."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        entries: Callable[[], Mapping[tuple[str, str], OriginalValue]],
        cookies: CoreCookies | None = None,
    ) -> None:
        self._hierarchy = hierarchy
        self._entries = entries
        self._cookies = cookies or CoreCookies()
        self._of_groups: dict[str, int] = {}
        self._threads: dict[str, dict[int, int]] | None = None
        """By cgroup; None if they are to be read again."""

    def problem(self) -> str:
        """Why threads can't have cookies here; "" if they can."""
        try:
            self._cookies.of(_SELF)
        except OSError as error:
            return _refusal(error)
        return ""

    def look(self) -> None:
        self._threads = None

    def has(self, group: str, file: str) -> bool:
        return self._hierarchy.exists(group)

    def read(self, group: str, file: str) -> str:
        """Raises CgroupError, and GroupGone for a cgroup without threads."""
        self._resolve()
        names = {cookie: name for name, cookie in self._of_groups.items()} | {0: NO_GROUP}
        present = set(self._of(group).values()) & names.keys()
        if not present:
            raise CgroupError(f"all threads of {group!r} have cookies of another program")
        return ",".join(sorted(names[cookie] for cookie in present))

    def write(self, group: str, file: str, text: str) -> None:
        """Raises CgroupError, GroupGone."""
        name = text.partition(",")[0]
        try:
            for _ in range(_ROUNDS):
                self._resolve()
                self._forget(group)
                cookie = 0 if name == NO_GROUP else self._of_groups.get(name)
                threads = without_cookie(self._of(group), cookie, self._of_groups.values())
                if not threads:
                    return
                if cookie is None:
                    self._create(name, threads[0])
                elif not self._cookies.share(cookie, self._sources(cookie), threads):
                    if not cookie:
                        raise CgroupError("neither the agent nor process 1 is without a cookie")
                    self.look()
        except OSError as error:
            raise CgroupError(f"{group!r}: {_refusal(error)}") from error
        finally:
            self._forget(group)

    def _forget(self, group: str) -> None:
        if self._threads is not None:
            self._threads.pop(group, None)

    def _create(self, name: str, thread: int) -> None:
        """Raises OSError."""
        try:
            self._cookies.create(thread)
            cookie = self._cookies.of(thread)
        except ProcessLookupError:
            return
        # The kernel may use the number of a cookie again that no thread has.
        others = {name: other for name, other in self._of_groups.items() if other != cookie}
        self._of_groups = {**others, name: cookie}

    def _sources(self, cookie: int) -> list[int]:
        """The threads that may have the cookie. Without one are those of the agent, unless it is in
        a group itself."""
        if not cookie:
            return [_SELF, _INIT]
        of_cgroups = (self._threads or {}).values()
        return [thread for of in of_cgroups for thread, own in of.items() if own == cookie]

    def _resolve(self) -> None:
        """Reads the cookies of the cgroups in the journal."""
        if self._threads is not None:
            return
        self._threads = {}
        containers = []
        for (group, file), entry in self._entries().items():
            if file == CORE_GROUP:
                try:
                    cookies = set(self._of(group).values()) - {0}
                except CgroupError:
                    continue
                names = dict.fromkeys(",".join(entry.written).split(","))
                containers.append(([each for each in names if each != NO_GROUP], cookies))
        self._of_groups = cookies_of_groups(self._of_groups, containers)

    def _of(self, group: str) -> dict[int, int]:
        """The cookies of the threads of the cgroup. Raises CgroupError, GroupGone."""
        cookies = {} if self._threads is None else self._threads
        if group not in cookies:
            cookies[group] = self._read(group)
        return cookies[group]

    def _read(self, group: str) -> dict[int, int]:
        """Raises CgroupError, GroupGone."""
        numbers = self._hierarchy.threads_below(group)
        cookies = {}
        # v2 has 0 for a thread that is not in the agent's PID namespace.
        for thread in filter(None, numbers):
            try:
                cookies[thread] = self._cookies.of(thread)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise CgroupError(f"{group!r}: {_refusal(error)}") from error
        if 0 in numbers and not cookies:
            raise CgroupError(f"no thread of {group!r} is in the agent's PID namespace")
        if not cookies:
            raise GroupGone(f"no thread is in {group!r}")
        return cookies


def _refusal(error: OSError) -> str:
    if error.errno == errno.EINVAL:
        return _WITHOUT_KERNEL
    if error.errno == errno.ENODEV:
        return _WITHOUT_SMT
    return f"{error.filename}: {error.strerror}"
