"""The CPUs that a running irqbalance keeps interrupts away from, as values of groups, so that they
are written, journalled and given back as files of cgroups are (irqbalance(1), API).

`irqbalance.banned_cpus` of the group `/PID` are those of the process PID, as a Linux list. A write
replaces what its environment and the kernel's isolated CPUs say; an empty list lets them count
again.

irqbalance takes a new value up when it looks at the interrupts next, each ten seconds by default:
until then a read gives what was written, also if an agent before this one wrote it. Some versions
take a list of CPUs, and others a mask, which a wrong value tells."""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cgroup.hierarchy import CgroupError, GroupGone
from agent.cgroup.limits import IRQBALANCE_BANNED
from agent.cgroup.machine_files import mask_of
from agent.model.cpu.cpuset import CpuSet, CpuSetError

if TYPE_CHECKING:
    from agent.cgroup.journal import OriginalValue

FOLDER: Final = "run/irqbalance"
SERVICE: Final = os.path.join("system.slice", "irqbalance.service")
_ABSTRACT: Final = "proc/net/unix"
_NAME: Final = re.compile(r"irqbalance([1-9][0-9]{0,9})\.sock")
_SECONDS: Final = 0.5
"""The longest wait for an answer."""
_SILENT_SECONDS: Final = 60.0
"""One that did not answer is not asked again before: who asks waits for it."""
_MOST_SOCKETS: Final = 4
_MOST_SENT: Final = 499
"""Its buffer has 500 bytes."""
_MOST_READ: Final = 1 << 16
_SETUP: Final = re.compile(r"SLEEP ([0-9]{1,9}) .*BANNED ([0-9a-fA-F,]+)", re.DOTALL)
_MARGIN_SECONDS: Final = 2.0
_MOST_IGNORED: Final = 4


class _Told(msgspec.Struct):
    """What a process was told last."""

    cpus: CpuSet | None = None
    """It bans them; None if it bans others than it was told."""
    until: float = 0.0
    """It may take them up until then."""
    taken: bool = False
    """Whether it has had them, or this process can't know."""
    ignored: int = 0
    """So many writes it did not take up in a row; every second one is a mask."""


class Irqbalance:
    """Each that runs on a machine; there is one at most on most machines.

    `root`: is where the host's files are.
    `entries`: returns the values of the journal."""

    def __init__(
        self,
        root: str,
        entries: Callable[[], Mapping[tuple[str, str], OriginalValue]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._entries = entries
        self._clock = clock
        self._told: dict[str, _Told] = {}
        self._intervals: dict[str, float] = {}
        self._unanswered: dict[str, tuple[float, str]] = {}

    def look(self) -> None:
        """Each read is of that moment."""

    def has(self, group: str, file: str) -> bool:
        return group in sockets(self._root)

    def read(self, group: str, file: str) -> str:
        """Raises CgroupError, GroupGone."""
        told = self._told.get(group, _Told())
        if told.cpus is not None and self._clock() < told.until and self.has(group, file):
            return str(told.cpus)
        answer = self._ask(group, "setup")
        setup = _SETUP.match(answer)
        if setup is None:
            raise CgroupError(f"irqbalance {group[1:]} answers {answer[:80]!r}")
        try:
            banned = CpuSet.parse_mask(setup[2])
        except CpuSetError as error:
            raise CgroupError(f"irqbalance {group[1:]}: {error}") from error
        # A setting counts from the next scan on, and then irqbalance (1.9) sleeps once and does not
        # answer meanwhile. It ends by SIGPIPE if who asked has gone.
        self._intervals[group] = 2 * float(setup[1]) + _MARGIN_SECONDS
        return str(self._taken_up(group, banned))

    def write(self, group: str, file: str, text: str) -> None:
        """Raises CgroupError, GroupGone."""
        try:
            cpus = CpuSet.parse(text)
        except CpuSetError as error:
            raise CgroupError(f"{file} of {group!r}: {error}") from error
        ignored = self._told[group].ignored if group in self._told else 0
        as_mask = ignored % 2 == 1
        value = (mask_of(cpus) if as_mask else str(cpus)) if cpus else "NULL"
        self._ask(group, f"settings cpus {value}")
        until = self._clock() + self._intervals.get(group, 0.0)
        self._told[group] = _Told(cpus, until, ignored=ignored)

    def _taken_up(self, group: str, banned: CpuSet) -> CpuSet:
        """The CPUs that irqbalance was told last, if it has them or may get them. It bans others,
        too: those of a processor that is too hot. Raises CgroupError."""
        told = self._told.get(group)
        if told is None:
            told = self._told[group] = self._told_before(group)
        if told.cpus is None:
            return banned
        if told.cpus <= banned:
            told.taken, told.ignored = True, 0
            return told.cpus
        if self._clock() < told.until:
            return told.cpus
        if not told.taken:
            told.ignored += 1
        if told.ignored >= _MOST_IGNORED:
            raise CgroupError(f"irqbalance {group[1:]} bans {banned}, but was told {told.cpus}")
        told.cpus = None
        return banned

    def _told_before(self, group: str) -> _Told:
        """What a process that has ended wrote, perhaps before irqbalance could take it up."""
        entry = self._entries().get((group, IRQBALANCE_BANNED))
        if entry is None or not entry.written:
            return _Told()
        last = CpuSet.parse(entry.written[-1])
        return _Told(last, self._clock() + self._intervals[group], taken=True)

    def _ask(self, group: str, request: str) -> str:
        """The answer, empty for a setting. Raises CgroupError, GroupGone."""
        address = sockets(self._root).get(group)
        if address is None:
            raise GroupGone(f"no irqbalance has the number {group[1:]}")
        until, reason = self._unanswered.get(group, (0.0, ""))
        if self._clock() < until:
            raise CgroupError(reason)
        message = request.encode("ascii")
        if len(message) > _MOST_SENT:
            raise CgroupError("irqbalance can't take so long a list of CPUs")
        credentials = struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(_SECONDS)
                peer.connect(address)
                _, uid, _ = struct.unpack(
                    "3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                )
                if uid:
                    raise CgroupError(f"the socket of irqbalance {group[1:]} is not root's")
                peer.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
                answer, until = b"", time.monotonic() + _SECONDS
                while len(answer) < _MOST_READ and (part := peer.recv(4096)):
                    answer += part
                    if (seconds := until - time.monotonic()) <= 0:
                        raise TimeoutError
                    peer.settimeout(seconds)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise GroupGone(f"irqbalance {group[1:]} has ended") from error
        except OSError as error:
            reason = f"cannot ask irqbalance {group[1:]}: {error.strerror or 'no answer'}"
            self._unanswered[group] = self._clock() + _SILENT_SECONDS, reason
            raise CgroupError(reason) from error
        return answer.decode("ascii", "replace")


def sockets(root: str) -> dict[str, str | bytes]:
    """The addresses by group."""
    addresses: dict[str, str | bytes] = {}
    try:
        names = sorted(os.listdir(os.path.join(root, FOLDER)))
    except OSError:
        names = []
    for name in names:
        if number := _NAME.fullmatch(name):
            addresses[f"/{number[1]}"] = os.path.join(root, FOLDER, name)
    if not addresses and runs(root):
        addresses.update(_without_folder(root))
    return dict(itertools.islice(addresses.items(), _MOST_SOCKETS))


def _without_folder(root: str) -> Iterator[tuple[str, bytes]]:
    """The addresses of old versions have no folder, and only processes in the network namespace of
    the host reach them. Their names may end with zeros."""
    try:
        with open(os.path.join(root, _ABSTRACT), encoding="ascii", errors="replace") as file:
            names = [line.split()[-1] for line in file if "@irqbalance" in line]
    except OSError:
        return
    for name in names:
        if number := _NAME.fullmatch(name.strip("@")):
            yield f"/{number[1]}", name.replace("@", "\0").encode("ascii")


def runs(root: str) -> bool:
    """Whether systemd has started it."""
    folders = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified")
    return any(os.path.exists(os.path.join(root, folder, SERVICE)) for folder in folders)
