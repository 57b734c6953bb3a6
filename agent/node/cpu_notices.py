"""The files in which containers read their CPUs (agent.model.notice).

A container has one if its CPUs may change while it should know them: it owns CPUs under the dynamic
node-local policy, it is mixed, so that it binds threads to one of its two parts, or it has devices,
so that it binds the threads that feed them.

Mixed containers are warned: before they lose CPUs, the file names these for a short time, in which
a process moves the threads that it has bound there. All that lose CPUs in one pass share the time,
because new owners of these CPUs wait for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping

import msgspec

from agent.allocate.pools import Decision
from agent.host import files
from agent.model import notice
from agent.model.cpu.cpuset import CpuSet
from agent.model.notice import Notice
from agent.model.snapshot import Wanted

Key = tuple[str, str]
"""Pod uid and container name."""


class CpuNotices:
    """Writes the files with the CPUs of containers. A file is replaced by a rename, which a watch
    of its folder reports as IN_MOVED_TO. Generations continue those of the last agent.

    `warning_seconds`: how long a mixed container has for leaving CPUs; 0: it is not warned."""

    def __init__(self, state_dir: str, warning_seconds: float = 0.0) -> None:
        self._tree = files.Tree(state_dir)
        self._warning_seconds = warning_seconds
        self._written: dict[Key, Notice] | None = None
        self._told: Decision | None = None
        """The last decision, if all its files were written."""

    def write(self, decision: Decision, *, dynamic: bool) -> list[str]:
        """Writes the changed files, and returns the failures. A container that once had a file
        keeps it as long as its pod exists.

        `dynamic`: the node-local policy may move its owners."""
        if decision is self._told:
            return []
        written = self._of_pods(decision)
        readers = set(_readers(decision))
        if dynamic:
            readers |= {(each.uid, each.name) for each in decision.local_owners if each.cpuset}
        failures = []
        for uid, name in sorted(readers | written.keys()):
            now = _notice(decision.pods[uid].of(name))
            last = written.get((uid, name))
            if now is None or (last is not None and _unchanged(last, now)):
                continue
            try:
                written[uid, name] = self._write((uid, name), now, last)
            except OSError as error:
                title = decision.pods[uid].title
                failures.append(f"{title} {name} can't read its CPUs: {error}")
        self._written = written
        failures += self._remove_others(decision)
        self._told = None if failures else decision
        return failures

    def warn(self, decision: Decision, running: Collection[Key]) -> tuple[float, list[str]]:
        """Warns the running mixed containers that the decision takes CPUs from. Returns for how
        many seconds they keep the CPUs, and the failures."""
        if decision is self._told or not self._warning_seconds:
            return 0.0, []
        failures = []
        warned = False
        self._written = self._of_pods(decision)
        for (uid, name), last in sorted(self._written.items()):
            now = _notice(decision.pods[uid].of(name))
            if last.shared is None or now is None or (uid, name) not in running:
                continue
            leaving = CpuSet.parse(last.cpus) - CpuSet.parse(now.cpus)
            if not leaving:
                continue
            warning = msgspec.structs.replace(last, leaving=str(leaving))
            try:
                if not _unchanged(last, warning):
                    self._written[uid, name] = self._write((uid, name), warning, last)
                warned = True
            except OSError as error:
                title = decision.pods[uid].title
                failures.append(f"{title} {name} is not warned of its change of CPUs: {error}")
        return self._warning_seconds if warned else 0.0, failures

    def restored(self, cpus: Mapping[Key, CpuSet]) -> None:
        """Writes the CPUs that containers have without the agent into the files that exist. Raises
        OSError."""
        for key, of_container in sorted(cpus.items()):
            last = self._last(key)
            if last is not None and last.cpus != str(of_container):
                self._write(key, Notice(str(of_container), 0), last)

    def _of_pods(self, decision: Decision) -> dict[Key, Notice]:
        """The files of the decision's pods."""
        if self._written is None:
            self._written = self._found(decision)
        return {key: last for key, last in self._written.items() if key[0] in decision.pods}

    def _write(self, key: Key, wanted: Notice, last: Notice | None) -> Notice:
        now = msgspec.structs.replace(wanted, generation=last.generation + 1 if last else 1)
        path = self._tree.path(notice.folder(*key))
        files.make_folders(path)
        files.replace(f"{path}/{notice.FILE_NAME}", notice.encode(now), durable=False)
        return now

    def _found(self, decision: Decision) -> dict[Key, Notice]:
        """The files of the last agent."""
        return {
            key: last
            for uid in decision.pods
            for folder in self._tree.names(notice.of_pod(uid))
            if (last := self._last(key := (uid, notice.named(folder))))
        }

    def _last(self, key: Key) -> Notice | None:
        text = self._tree.read(f"{notice.folder(*key)}/{notice.FILE_NAME}")
        return None if text is None else notice.decode(text)

    def _remove_others(self, decision: Decision) -> list[str]:
        """Removes the folders of pods that do not exist any more. Returns the failures."""
        failures = []
        for each in self._tree.names(notice.FOLDER):
            if notice.named(each) not in decision.pods:
                try:
                    shutil.rmtree(self._tree.path(f"{notice.FOLDER}/{each}"))
                except OSError as error:
                    failures.append(str(error))
        return failures


def _readers(decision: Decision) -> list[Key]:
    """The containers with devices, and the mixed ones."""
    return [
        (uid, name)
        for uid, pod in decision.pods.items()
        for name, wanted in pod.containers.items()
        if wanted.numa_nodes or wanted.shared is not None
    ]


def _notice(wanted: Wanted) -> Notice | None:
    """The notice without its generation; None if Topolet does not set the container's CPUs."""
    if wanted.cpuset is None:
        return None
    own = None if wanted.shared is None else str(wanted.own)
    return Notice(wanted.cpuset, 0, own, wanted.shared)


def _unchanged(last: Notice, now: Notice) -> bool:
    return last == msgspec.structs.replace(now, generation=last.generation)
