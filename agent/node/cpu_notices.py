"""The files in which containers read their CPUs (agent.model.notice).

A container has one if its CPUs may change while it should know them: it owns CPUs under the dynamic
node-local policy, or it has devices, so that it binds the threads that feed them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from agent.allocate.pools import Decision
from agent.host import files
from agent.model import notice
from agent.model.cpu.cpuset import CpuSet
from agent.model.notice import Notice

Key = tuple[str, str]
"""Pod uid and container name."""


class CpuNotices:
    """Writes the files with the CPUs of containers. A file is replaced by a rename, which a watch
    of its folder reports as IN_MOVED_TO. Generations continue those of the last agent."""

    def __init__(self, state_dir: str) -> None:
        self._tree = files.Tree(state_dir)
        self._written: dict[Key, Notice] | None = None
        self._told: Decision | None = None
        """The last decision, if all its files were written."""

    def write(self, decision: Decision, *, dynamic: bool) -> list[str]:
        """Writes the changed files, and returns the failures. A container that once had a file
        keeps it as long as its pod exists.

        `dynamic`: the node-local policy may move its owners."""
        if decision is self._told:
            return []
        if self._written is None:
            self._written = self._found(decision)
        written = {key: last for key, last in self._written.items() if key[0] in decision.pods}
        readers = set(_with_devices(decision))
        if dynamic:
            readers |= {(each.uid, each.name) for each in decision.local_owners if each.cpuset}
        failures = []
        for uid, name in sorted(readers | written.keys()):
            cpus = decision.pods[uid].of(name).cpuset
            last = written.get((uid, name))
            if cpus is None or (last is not None and last.cpus == cpus):
                continue
            try:
                written[uid, name] = self._write((uid, name), cpus, last)
            except OSError as error:
                title = decision.pods[uid].title
                failures.append(f"{title} {name} can't read its CPUs: {error}")
        self._written = written
        failures += self._remove_others(decision)
        self._told = None if failures else decision
        return failures

    def restored(self, cpus: Mapping[Key, CpuSet]) -> None:
        """Writes the CPUs that containers have without the agent into the files that exist. Raises
        OSError."""
        for key, of_container in sorted(cpus.items()):
            last = self._last(key)
            if last is not None and last.cpus != str(of_container):
                self._write(key, str(of_container), last)

    def _write(self, key: Key, cpus: str, last: Notice | None) -> Notice:
        now = Notice(cpus, last.generation + 1 if last else 1)
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


def _with_devices(decision: Decision) -> list[Key]:
    return [
        (uid, name)
        for uid, pod in decision.pods.items()
        for name, wanted in pod.containers.items()
        if wanted.numa_nodes
    ]
