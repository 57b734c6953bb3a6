"""Executes the steps of a plan on the host. Each change is written to the journal before it is
made. When a step fails, all changes of the run are undone; after a kill, the next run undoes them.

`Checks` executes the steps that wait: until the runtime answers through the proxy, and until the
kubelet runs and the containers which ran before still run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from agent.cri.client import Cri, RuntimeContainer
from agent.install import folder, plan
from agent.install.endpoint import PROXY_ENDPOINT, FileChange
from agent.install.folder import FolderError
from agent.install.plan import Step
from agent.install.tree import FileState, HostTree, TreeError
from agent.model.pod.pods import ContainerState
from agent.model.settings.options import socket_path
from agent.rpc.grpc import RpcError

FOLDER: Final = "/var/lib/topolet"
PATH: Final = f"{FOLDER}/install.json"


class InstallJournalError(ValueError):
    """The journal can't be read; the message names it."""


class InstallJournal(msgspec.Struct, frozen=True):
    """What was installed on a node."""

    unit: str
    """The kubelet's service."""
    runtime: str
    """The endpoint of the runtime to which the proxy connects."""
    installed: tuple[FileChange, ...] = ()
    """The changes of all finished installations, each from the state before the first."""
    pending: tuple[FileChange, ...] = ()
    """The changes of a run that has not finished, which are undone next."""
    removes: bool = False
    """That run undoes all installations."""

    @property
    def finished(self) -> bool:
        """Whether the last run finished an installation."""
        return bool(self.installed) and not self.pending and not self.removes


def undone(journal: InstallJournal, others: Sequence[FileChange]) -> tuple[FileChange, ...]:
    """What a removal undoes: all changes of the journal, and those of `others` to other files."""
    changes = plan.merged(journal.installed, journal.pending)
    paths = {change.path for change in changes}
    return (*changes, *(change for change in others if change.path not in paths))


def read_journal(tree: HostTree) -> InstallJournal | None:
    """The journal, None where nothing is installed.

    Raises InstallJournalError, OSError."""
    state = tree.state(PATH)
    if state.text is None:
        return None
    try:
        return msgspec.json.decode(state.text, type=InstallJournal)
    except msgspec.MsgspecError as error:
        raise InstallJournalError(f"{PATH}: {error}") from None


def write_journal(tree: HostTree, journal: InstallJournal) -> None:
    """Durably. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(journal)).decode() + "\n"
    # It contains copies of files that only root may be allowed to read.
    tree.put(PATH, FileState(text, mode=0o600))


def remove_journal(tree: HostTree) -> None:
    """Removes the journal, and its folder if that is empty then."""
    tree.put(PATH, FileState())
    tree.remove_empty(FOLDER)


Answer = TypeVar("Answer")
HostCommand = Callable[[Sequence[str]], str]
"""Runs a program of the host; returns its output. Raises CheckError."""

_COMMAND_SECONDS: Final = 120.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONNECTED: Final = "03"
"""SS_CONNECTED in the column St of /proc/net/unix."""
_POLL_SECONDS: Final = 0.2
_YOUNG_SECONDS: Final = 60.0
"""Containers that are younger are not compared: a container that fails again and again may end by
itself."""


class CheckError(RuntimeError):
    """The node is not as expected; the message says what differs."""


class InstallError(RuntimeError):
    """A step failed."""

    def __init__(self, message: str, *, undone: bool) -> None:
        super().__init__(message)
        self.undone = undone
        """Whether every change is undone; otherwise the message says which is not."""


class Checks:
    """Checks of the node. Methods raise CheckError, OSError.

    `deadline_seconds`: the longest wait for each condition.
    `settle_seconds`: how long the kubelet has to run without a restart."""

    def __init__(
        self,
        tree: HostTree,
        command: HostCommand,
        deadline_seconds: float,
        settle_seconds: float,
    ) -> None:
        self._tree = tree
        self._command = command
        self._deadline_seconds = deadline_seconds
        self._settle_seconds = settle_seconds

    def running(self, runtime: str) -> tuple[RuntimeContainer, ...]:
        """The running containers that the runtime lists, without those younger than
        _YOUNG_SECONDS."""
        oldest = (time.time() - _YOUNG_SECONDS) * 1e9
        return tuple(
            each
            for each in self._containers(runtime)
            if each.state is ContainerState.RUNNING and each.created_at < oldest
        )

    def await_proxy(self, runtime: str) -> None:
        """Waits until the proxy answers, and compares its answer with the runtime's."""
        direct = self._version(runtime)
        end = time.monotonic() + self._deadline_seconds
        while True:
            try:
                through = self._version(PROXY_ENDPOINT)
                break
            except CheckError as error:
                if time.monotonic() > end:
                    raise CheckError(f"the proxy does not answer: {error}") from error
            time.sleep(_POLL_SECONDS)
        if through != direct:
            raise CheckError(f"the proxy reports the runtime as {through}, not {direct}")

    def await_kubelet(
        self,
        unit: str,
        runtime: str,
        before: Sequence[RuntimeContainer],
        *,
        through_proxy: bool,
    ) -> None:
        """Waits until the kubelet has run for `settle_seconds`, with `through_proxy` connected to
        the proxy; then checks that the containers of `before` still run."""
        end = time.monotonic() + self._deadline_seconds
        since, process = time.monotonic(), ""
        problem = f"{unit} does not run"
        while time.monotonic() - since < self._settle_seconds or problem:
            found = self._main_process(unit)
            problem = self._problem(unit, found, through_proxy=through_proxy)
            if problem or found != process:
                since, process = time.monotonic(), found
            if time.monotonic() > end:
                raise CheckError(problem or f"{unit} restarts again and again")
            time.sleep(_POLL_SECONDS)
        if gone := lost(before, self._containers(runtime)):
            raise CheckError(f"containers that ran before do not run any more: {', '.join(gone)}")

    def _problem(self, unit: str, process: str, *, through_proxy: bool) -> str:
        if not process:
            return f"{unit} does not run"
        if through_proxy and not self._proxy_in_use():
            return f"{unit} runs, but nothing is connected to {PROXY_ENDPOINT}"
        return ""

    def _main_process(self, unit: str) -> str:
        """The id of the unit's main process, "" if the unit is not active."""
        shown = self._command(["systemctl", "show", "--property=ActiveState,MainPID", unit])
        values = dict(line.partition("=")[::2] for line in shown.splitlines())
        pid = values.get("MainPID", "0")
        return pid if values.get("ActiveState") == "active" and pid != "0" else ""

    def _proxy_in_use(self) -> bool:
        """Whether a connection to the proxy's socket is established, in the host's network
        namespace."""
        path = socket_path(PROXY_ENDPOINT)
        with open(self._tree.path("/proc/1/net/unix"), encoding="utf-8", errors="replace") as file:
            rows = (line.split() for line in file)
            return any(len(row) == 8 and row[5] == _CONNECTED and row[7] == path for row in rows)

    def _version(self, endpoint: str) -> str:
        return self._call(endpoint, Cri.version)

    def _containers(self, endpoint: str) -> list[RuntimeContainer]:
        return self._call(endpoint, Cri.containers)

    def _call(self, endpoint: str, method: Callable[[Cri], Answer]) -> Answer:
        cri = Cri(self._tree.path(socket_path(endpoint)))
        try:
            return method(cri)
        except RpcError as error:
            raise CheckError(f"{endpoint}: {error}") from error
        finally:
            cri.close()


class Installer:
    """Runs the steps of an installation, and undoes them.

    `stage`: copies the interpreter to a version's folder.
    `report`: called with the text of each step."""

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
        journal = read_journal(self._tree)
        if journal is None or journal.finished:
            return False
        self._report("an earlier run did not finish: undoing its changes")
        self._undo(journal)
        return True

    def install(self, steps: Sequence[Step], unit: str, runtime: str) -> None:
        """Executes the steps; call `recover` before. Raises InstallError, after it has undone every
        change that it could."""
        journal = read_journal(self._tree) or InstallJournal(unit, runtime)
        journal = msgspec.structs.replace(journal, unit=unit, runtime=runtime)
        try:
            # With a journal, a killed run is recovered, which also removes the copied interpreter.
            write_journal(self._tree, journal)
            self._before = self._checks.running(runtime)
            for step in steps:
                if isinstance(step, plan.Put):
                    pending = plan.merged(journal.pending, [step.change])
                    journal = msgspec.structs.replace(journal, pending=pending)
                    write_journal(self._tree, journal)
                self._execute(step, runtime)
            installed = plan.merged(journal.installed, journal.pending)
            write_journal(self._tree, InstallJournal(unit, runtime, installed))
        except (CheckError, FolderError, TreeError, OSError) as error:
            self._report(f"failed: {error}")
            self._undo(journal)
            raise InstallError(f"{error}; everything is as before", undone=True) from error
        try:
            self._remove_versions()
        except OSError as error:
            self._report(f"an unused version could not be removed: {error}")

    def remove(self, others: Sequence[FileChange] = ()) -> bool:
        """Undoes all installations, and the changes of `others` to files that no installation
        changed. Returns False if nothing is installed. Raises InstallError, InstallJournalError,
        OSError."""
        journal = read_journal(self._tree)
        if journal is None:
            return False
        changes = undone(journal, others)
        journal = InstallJournal(journal.unit, journal.runtime, pending=changes, removes=True)
        write_journal(self._tree, journal)
        self._undo(journal)
        return True

    def undo_steps(self, journal: InstallJournal, changes: Sequence[FileChange]) -> Sequence[Step]:
        """The steps that undo these changes. Raises OSError, TreeError."""
        present = self.present([each.path for each in changes])
        return plan.undo(changes, present, journal.unit, journal.runtime)

    def _undo(self, journal: InstallJournal) -> None:
        """Undoes the pending changes of the journal, and removes them from it.

        Raises InstallError; then the journal keeps them."""
        try:
            if journal.pending:
                # Containers that ended earlier can't run again: only those that run now are
                # compared.
                self._before = self._checks.running(journal.runtime)
            for step in self.undo_steps(journal, journal.pending):
                self._execute(step, journal.runtime)
        except (CheckError, TreeError, OSError) as error:
            raise InstallError(
                f"not every change could be undone: {error}; the rest is in {PATH}, and "
                "`topolet install-proxy --undo` tries again",
                undone=False,
            ) from error
        self._remove_versions()
        if journal.removes or not journal.installed:
            remove_journal(self._tree)
            self._tree.remove_empty(plan.FOLDER)
        else:
            write_journal(self._tree, msgspec.structs.replace(journal, pending=()))

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
        """Removes the folders of all versions but the linked one, when no pending change names
        another. Other folders there, such as a virtual environment, are not Topolet's."""
        linked = self._tree.state(plan.CURRENT).link
        for name in self._tree.names(plan.FOLDER):
            if name != linked and folder.VERSION.fullmatch(name):
                self._tree.remove_folder(f"{plan.FOLDER}/{name}")


def host_command(root: str) -> HostCommand:
    """Returns the function that runs programs of the host below `root`. In a container, systemctl
    reaches the host's systemd through the sockets below that root."""

    def run(words: Sequence[str]) -> str:
        environment = {**os.environ, "SYSTEMD_PAGER": "", "LC_ALL": "C"}
        if root != "/":
            words = ["chroot", root, *words]
            # Without it, systemctl does nothing in a root that differs from the root of process 1.
            environment |= {"SYSTEMD_IGNORE_CHROOT": "1", "PATH": _PATH}
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                check=False,
                text=True,
                errors="replace",
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckError(f"{' '.join(words)}: {error}") from error
        if done.returncode:
            reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
            raise CheckError(f"{' '.join(words)}: {reason}")
        return done.stdout

    return run


def lost(before: Sequence[RuntimeContainer], after: Sequence[RuntimeContainer]) -> tuple[str, ...]:
    """The containers that ran before and do not run after."""
    states = {each.id: each.state for each in after}
    return tuple(
        f"{each.name} ({each.id[:12]})"
        for each in before
        if states.get(each.id) is not ContainerState.RUNNING
    )
