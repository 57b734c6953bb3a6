"""Packets are steered to no CPU of an owner: the queues of network interfaces that spread what they
receive (RPS), or that send for some CPUs (XPS) (Documentation/networking/scaling.rst).

A queue that steers nothing stays so. One that steers only to CPUs of owners steers nothing: the CPU
of its interrupt does the work then."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.cgroup.journal import Journal
from agent.cgroup.limits import RPS_CPUS, XPS_CPUS
from agent.cgroup.order import ValueChange
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.node.features import Key, WantedFiles
from agent.node.quiet.moment import QuietMoment
from agent.view.format import count

QUEUES_A_LOOK: Final = 128
"""The interfaces of pods may have hundreds of thousands of queues."""
RETRY_SECONDS: Final = 60.0
"""So often queues that could not be written are tried again."""
_OF_QUEUES: Final = {"rx": RPS_CPUS, "tx": XPS_CPUS}


class PacketSteering:
    """`root`: is where the host's files are.
    `controllers`: read the queues.
    `journal`: has what queues steered originally."""

    name = "packet-steering"

    def __init__(
        self,
        root: str,
        controllers: Controllers,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._folder = os.path.join(root, "sys/class/net")
        self._controllers = controllers
        self._journal = journal
        self._forget()

    def _forget(self) -> None:
        self._interfaces: frozenset[str] = frozenset()
        self._walk: Iterator[Key] = iter(())
        self._texts: dict[Key, str] = {}
        """What steers, or did originally."""
        self._refused: dict[Key, str] = {}
        """By the queue: the reason."""
        self._retry_at = 0.0

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        quiet = moment.quiet(self.name)
        if not quiet:
            self._forget()
            return WantedFiles()
        try:
            interfaces = frozenset(os.listdir(self._folder))
        except OSError as error:
            return WantedFiles(problem=f"cannot list {self._folder!r}: {error.strerror}")
        for key in [key for key in self._texts if _interface(key) not in interfaces]:
            del self._texts[key]
        if new := interfaces - self._interfaces:
            self._walk = itertools.chain(self._queues(new), self._walk)
            # The first look must not give back what stays wanted.
            self._read(
                key
                for key in self._journal.files
                if key[1] in _OF_QUEUES.values() and _interface(key) in new
            )
        self._interfaces = interfaces
        self._read(self._next())
        refused, problem = self._refused, ""
        if refused:
            reason = next(iter(refused.values()))
            problem = f"{count(len(refused), 'queue')} can't be written: {reason}"
            if self._clock() >= self._retry_at:
                self._refused = {}
        contents: dict[Key, str] = {}
        seen = set()
        for key, text in self._texts.items():
            entry = self._journal.value(*key)
            try:
                original = CpuSet.parse(text if entry is None else limits.original(entry, text))
            except (CgroupError, CpuSetError):
                continue
            if original & quiet and key not in self._refused:
                contents[key] = str(original - quiet)
                if text == contents[key]:
                    seen.add(key)
        return WantedFiles(contents, problem, seen=seen)

    def refused(self, failures: Mapping[Key, ValueChange]) -> None:
        """They stay as they are until they are tried again."""
        self._refused |= {key: change.note or "" for key, change in failures.items()}
        self._retry_at = self._clock() + RETRY_SECONDS

    def _next(self) -> list[Key]:
        """The queues whose turn it is; after the last one, the first is the next."""
        queues = list(itertools.islice(self._walk, QUEUES_A_LOOK))
        if len(queues) < QUEUES_A_LOOK:
            self._walk = self._queues(self._interfaces)
            before = set(queues)
            again = itertools.islice(self._walk, QUEUES_A_LOOK - len(queues))
            queues += [key for key in again if key not in before]
        return queues

    def _read(self, queues: Iterable[Key]) -> None:
        for key in queues:
            try:
                text = self._controllers.read(*key) or ""
            except CgroupError:  # it has one queue only, or left
                text = ""
            if text or key in self._journal:
                self._texts[key] = text
            else:
                self._texts.pop(key, None)

    def _queues(self, interfaces: Iterable[str]) -> Iterator[Key]:
        """Those of devices first."""
        folders = {name: f"{self._folder}/{name}" for name in interfaces}
        for name in sorted(
            interfaces, key=lambda name: (not os.path.exists(f"{folders[name]}/device"), name)
        ):
            try:
                queues = sorted(os.listdir(f"{folders[name]}/queues"))
            except OSError:
                continue
            for queue in queues:
                if (file := _OF_QUEUES.get(queue.partition("-")[0])) is not None:
                    yield f"/{name}/{queue}", file


def _interface(key: Key) -> str:
    return key[0].split("/")[1]
