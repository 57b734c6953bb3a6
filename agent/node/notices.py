"""Tells containers of a dynamic policy their CPUs, each in a folder of its own that the proxy
mounts (agent.model.notice)."""

from __future__ import annotations

import os
import shutil

from agent.allocate.pools import Decision
from agent.host import files
from agent.model import notice
from agent.model.notice import Notice


class Notices:
    """A file is replaced by a rename, which a watch on its folder tells as IN_MOVED_TO. Generations
    go on where those of an agent before us ended."""

    def __init__(self, state_dir: str) -> None:
        self._tree = files.Tree(state_dir)
        self._told: dict[tuple[str, str], Notice] | None = None

    def tell(self, decision: Decision, *, dynamic: bool) -> list[str]:
        """What could not be told. A container that once had CPUs of its own under a dynamic policy
        is told what it may run on from then on, as long as its pod is there."""
        if self._told is None:
            self._told = self._found(decision)
        told = {key: last for key, last in self._told.items() if key[0] in decision.pods}
        owners: set[tuple[str, str]] = set()
        if dynamic:
            owners = {(each.uid, each.name) for each in decision.local_owners if each.cpuset}
        failures = []
        for uid, name in sorted(owners | told.keys()):
            cpus = decision.pods[uid].of(name).cpuset
            last = told.get((uid, name))
            if cpus is None or (last is not None and last.cpus == cpus):
                continue
            now = Notice(cpus, last.generation + 1 if last else 1)
            try:
                self._write(notice.folder(uid, name), now)
                told[uid, name] = now
            except OSError as error:
                title = decision.pods[uid].title
                failures.append(f"{title} {name} is not told its CPUs: {error}")
        self._told = told
        return failures + self._remove_others(decision)

    def _write(self, folder: str, now: Notice) -> None:
        path = self._tree.path(folder)
        os.makedirs(path, mode=0o755, exist_ok=True)
        files.replace(f"{path}/{notice.FILE_NAME}", notice.encode(now), durable=False)

    def _found(self, decision: Decision) -> dict[tuple[str, str], Notice]:
        """What an agent before us told."""
        found = {}
        for uid in decision.pods:
            for each in self._tree.names(notice.of_pod(uid)):
                name = notice.named(each)
                text = self._tree.read(f"{notice.folder(uid, name)}/{notice.FILE_NAME}")
                if text is not None and (last := notice.decode(text)):
                    found[uid, name] = last
        return found

    def _remove_others(self, decision: Decision) -> list[str]:
        """Folders of pods that are gone, also those that an agent before us made."""
        failures = []
        for each in self._tree.names(notice.FOLDER):
            if notice.named(each) not in decision.pods:
                try:
                    shutil.rmtree(self._tree.path(f"{notice.FOLDER}/{each}"))
                except OSError as error:
                    failures.append(str(error))
        return failures
