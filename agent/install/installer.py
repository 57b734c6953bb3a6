"""Executes the steps of a plan on the host. Each change is journalled before it is made. When a
step fails, all changes of the run are undone; after a kill, the next run undoes them."""

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
    """A step failed. `undone`: every change is undone; otherwise the message says which is not."""

    def __init__(self, message: str, *, undone: bool) -> None:
        super().__init__(message)
        self.undone = undone


class Installer:
    """`stage` copies the interpreter to a version's folder. `report` reports each step."""

    def __init__(
        self,
        tree: HostTree,
        command: HostCommand,
        checks: Checks,
        stage: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self._tree = tree
        self._command = command
        self._checks = checks
        self._stage = stage
        self._report = report
        self._before: Sequence[RuntimeContainer] = ()

    def present(self, paths: Sequence[str]) -> Mapping[str, FileState]:
        """The state of these files. Raises OSError, TreeError."""
        return {path: self._tree.state(path) for path in paths}

    def recover(self) -> bool:
        """Undoes the changes of an earlier run that did not finish. Returns whether there was one.
        Raises InstallError, InstallJournalError, OSError."""
        journal = journals.read(self._tree)
        if journal is None or journal.finished:
            return False
        self._report("an earlier run did not finish: undoing its changes")
        self._undo(journal)
        return True

    def install(self, steps: Sequence[Step], unit: str, runtime: str) -> None:
        """Executes the steps; call `recover` before. Raises InstallError, after it has undone every
        change that it could."""
        journal = journals.read(self._tree) or InstallJournal(unit, runtime)
        journal = msgspec.structs.replace(journal, unit=unit, runtime=runtime)
        try:
            # With a journal, a killed run is recovered, which also removes the copied interpreter.
            journals.write(self._tree, journal)
            self._before = self._checks.running(runtime)
            for step in steps:
                if isinstance(step, plan.Put):
                    pending = plan.merged(journal.pending, [step.change])
                    journal = msgspec.structs.replace(journal, pending=pending)
                    journals.write(self._tree, journal)
                self._execute(step, runtime)
            installed = plan.merged(journal.installed, journal.pending)
            journals.write(self._tree, InstallJournal(unit, runtime, installed))
        except (CheckError, FolderError, TreeError, OSError) as error:
            self._report(f"failed: {error}")
            self._undo(journal)
            raise InstallError(f"{error}; everything is as before", undone=True) from error
        try:
            self._remove_versions()
        except OSError as error:
            self._report(f"an unused version could not be removed: {error}")

    def remove(self) -> bool:
        """Undoes all installations. Returns False if nothing is installed. Raises InstallError,
        InstallJournalError, OSError."""
        journal = journals.read(self._tree)
        if journal is None:
            return False
        changes = plan.merged(journal.installed, journal.pending)
        journal = InstallJournal(journal.unit, journal.runtime, pending=changes, removes=True)
        journals.write(self._tree, journal)
        self._undo(journal)
        return True

    def undo_steps(self, journal: InstallJournal, changes: Sequence[FileChange]) -> Sequence[Step]:
        """The steps that undo these changes. Raises OSError, TreeError."""
        present = self.present([each.path for each in changes])
        return plan.undo(changes, present, journal.unit, journal.runtime)

    def _undo(self, journal: InstallJournal) -> None:
        """Undoes the pending changes of the journal, and removes them from it. Raises InstallError;
        then the journal keeps them."""
        try:
            if journal.pending:
                # Containers that ended earlier can't run again: only those that run now are
                # compared.
                self._before = self._checks.running(journal.runtime)
            for step in self.undo_steps(journal, journal.pending):
                self._execute(step, journal.runtime)
        except (CheckError, TreeError, OSError) as error:
            raise InstallError(
                f"not every change could be undone: {error}; the rest is in {journals.PATH}, and "
                "`topolet install-proxy --undo` tries again",
                undone=False,
            ) from error
        self._remove_versions()
        if journal.removes or not journal.installed:
            journals.remove(self._tree)
            self._tree.remove_empty(plan.FOLDER)
        else:
            journals.write(self._tree, msgspec.structs.replace(journal, pending=()))

    def _execute(self, step: Step, runtime: str) -> None:
        """Raises CheckError, TreeError, OSError."""
        self._report(str(step))
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
        """Removes the folders of all versions but the linked one. To be called when no pending
        change names another version. Other folders there, such as a virtual environment, are not
        Topolet's."""
        linked = self._tree.state(plan.CURRENT).link
        for name in self._tree.names(plan.FOLDER):
            if name != linked and folder.VERSION.fullmatch(name):
                self._tree.remove_folder(f"{plan.FOLDER}/{name}")
