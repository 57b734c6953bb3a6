"""Executes the steps of a plan on the host. Before each change the journal has it; when a step
fails, all changes of the run are taken back, and so they are by the next run after a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from agent.cri.client import RuntimeContainer
from agent.install import folder, plan
from agent.install import journal as journals
from agent.install.checks import CheckError, Checks, HostCommand
from agent.install.endpoint import FileChange
from agent.install.folder import FolderError
from agent.install.journal import InstallJournal
from agent.install.plan import Step
from agent.install.tree import FileState, HostTree, TreeError


class InstallError(RuntimeError):
    """A step failed. `undone`: everything is as before; otherwise the message says what is not."""

    def __init__(self, message: str, *, undone: bool) -> None:
        super().__init__(message)
        self.undone = undone


class Installer:
    """`stage` copies the interpreter to a version's folder. `say` reports each step."""

    def __init__(
        self,
        tree: HostTree,
        command: HostCommand,
        checks: Checks,
        stage: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._tree = tree
        self._command = command
        self._checks = checks
        self._stage = stage
        self._say = say
        self._before: Sequence[RuntimeContainer] = ()

    def present(self, paths: Sequence[str]) -> Mapping[str, FileState]:
        """Raises OSError, TreeError."""
        return {path: self._tree.state(path) for path in paths}

    def recover(self) -> bool:
        """Takes back what a run has begun and not finished. Whether there was such a run. Raises
        InstallError, InstallJournalError, OSError."""
        journal = journals.read(self._tree)
        if journal is None or journal.finished:
            return False
        self._say("an earlier run did not finish: its changes are taken back")
        self._take_back(journal)
        return True

    def install(self, steps: Sequence[Step], unit: str, runtime: str) -> None:
        """After `recover`. Raises InstallError; then everything is as before, if that is
        possible."""
        journal = journals.read(self._tree) or InstallJournal(unit, runtime)
        journal = msgspec.structs.replace(journal, unit=unit, runtime=runtime)
        try:
            # A copied interpreter is removed too, although it is not a change that is journalled.
            journals.write(self._tree, journal)
            self._before = self._checks.running(runtime)
            for step in steps:
                if isinstance(step, plan.Put):
                    pending = plan.merged(journal.pending, [step.change])
                    journal = msgspec.structs.replace(journal, pending=pending)
                    journals.write(self._tree, journal)
                self._do(step, runtime)
            installed = plan.merged(journal.installed, journal.pending)
            journals.write(self._tree, InstallJournal(unit, runtime, installed))
        except (CheckError, FolderError, TreeError, OSError) as error:
            self._say(f"failed: {error}")
            self._take_back(journal)
            raise InstallError(f"{error}; everything is as before", undone=True) from error
        try:
            self._remove_versions()
        except OSError as error:
            self._say(f"a version that is not used stays: {error}")

    def remove(self) -> bool:
        """Takes every installation back. False where nothing is installed. Raises InstallError,
        InstallJournalError, OSError."""
        journal = journals.read(self._tree)
        if journal is None:
            return False
        changes = plan.merged(journal.installed, journal.pending)
        journal = InstallJournal(journal.unit, journal.runtime, pending=changes, removes=True)
        journals.write(self._tree, journal)
        self._take_back(journal)
        return True

    def undo_steps(self, journal: InstallJournal, changes: Sequence[FileChange]) -> Sequence[Step]:
        """Raises OSError, TreeError."""
        present = self.present([each.path for each in changes])
        return plan.undo(changes, present, journal.unit, journal.runtime)

    def _take_back(self, journal: InstallJournal) -> None:
        """Undoes the pending changes. Raises InstallError, and then the journal keeps them."""
        try:
            if journal.pending:
                # What runs when the kubelet goes back: a container that ended before can't return.
                self._before = self._checks.running(journal.runtime)
            for step in self.undo_steps(journal, journal.pending):
                self._do(step, journal.runtime)
        except (CheckError, TreeError, OSError) as error:
            raise InstallError(
                f"not everything could be taken back: {error}; what is left is in {journals.PATH}, "
                "and `topolet install-proxy --undo` tries again",
                undone=False,
            ) from error
        self._remove_versions()
        if journal.removes or not journal.installed:
            journals.remove(self._tree)
            self._tree.remove_empty(plan.FOLDER)
        else:
            journals.write(self._tree, msgspec.structs.replace(journal, pending=()))

    def _do(self, step: Step, runtime: str) -> None:
        """Raises CheckError, TreeError, OSError."""
        self._say(str(step))
        match step:
            case plan.CopyVersion():
                self._stage(step.version)
            case plan.Put():
                self._tree.put(step.change.path, step.change.after)
            case plan.Systemctl():
                self._command(["systemctl", *step.words])
            case plan.AwaitProxy():
                self._checks.await_proxy(runtime)
            case plan.AwaitKubelet():
                self._checks.await_kubelet(
                    step.unit, runtime, self._before, through_proxy=step.through_proxy
                )

    def _remove_versions(self) -> None:
        """All but the linked one, only when no change is left that names another. Other folders
        there, such as a virtual environment, are not ours."""
        linked = self._tree.state(plan.CURRENT).link
        for name in self._tree.names(plan.FOLDER):
            if name != linked and folder.VERSION.fullmatch(name):
                self._tree.remove_folder(f"{plan.FOLDER}/{name}")
