"""Files in which the containers of a dynamic policy read their CPUs, each in a folder of its own
that a frontend mounts (agent.model.notice)."""

from __future__ import annotations

import os
import shutil

from agent.allocate.pools import Decision
from agent.host import files
from agent.model import notice
from agent.model.notice import Notice


class CpuNotices:
    """Replaces a file by a rename, which a watch of its folder reports as IN_MOVED_TO. Generations
    continue those of the last agent."""

    def __init__(self, state_dir: str) -> None:
        self._tree = files.Tree(state_dir)
        self._written: dict[tuple[str, str], Notice] | None = None

    def write(self, decision: Decision, *, dynamic: bool) -> list[str]:
        """Writes the changed files, and returns the failures. A container that once owned CPUs
        under a dynamic policy has a file as long as its pod exists."""
        if self._written is None:
            self._written = self._found(decision)
        written = {key: last for key, last in self._written.items() if key[0] in decision.pods}
        owners: set[tuple[str, str]] = set()
        if dynamic:
            owners = {(each.uid, each.name) for each in decision.local_owners if each.cpuset}
        failures = []
        for uid, name in sorted(owners | written.keys()):
            cpus = decision.pods[uid].of(name).cpuset
            last = written.get((uid, name))
            if cpus is None or (last is not None and last.cpus == cpus):
                continue
            now = Notice(cpus, last.generation + 1 if last else 1)
            try:
                self._write(notice.folder(uid, name), now)
                written[uid, name] = now
            except OSError as error:
                title = decision.pods[uid].title
                failures.append(f"{title} {name} can't read its CPUs: {error}")
        self._written = written
        return failures + self._remove_others(decision)

    def _write(self, folder: str, now: Notice) -> None:
        path = self._tree.path(folder)
        os.makedirs(path, mode=0o755, exist_ok=True)
        files.replace(f"{path}/{notice.FILE_NAME}", notice.encode(now), durable=False)

    def _found(self, decision: Decision) -> dict[tuple[str, str], Notice]:
        """The files of the last agent."""
        found = {}
        for uid in decision.pods:
            for each in self._tree.names(notice.of_pod(uid)):
                name = notice.named(each)
                text = self._tree.read(f"{notice.folder(uid, name)}/{notice.FILE_NAME}")
                if text is not None and (last := notice.decode(text)):
                    found[uid, name] = last
        return found

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
