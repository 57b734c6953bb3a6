"""The installation of the proxy on a host, and its removal: observe, plan, execute."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError
from agent.host.locks import Lock, LockedError
from agent.install import endpoint, folder, installer, observe, plan, unitfiles
from agent.install.endpoint import EndpointError, FileChange
from agent.install.folder import FolderError
from agent.install.installer import (
    CheckError,
    Checks,
    Installer,
    InstallError,
    InstallJournal,
    InstallJournalError,
    host_command,
)
from agent.install.observe import ObservationError
from agent.install.plan import ObservedNode, Put, Step
from agent.install.tree import HostTree, TreeError
from agent.kube.documents import DocumentError
from agent.kubelet.configuration import ConfigurationError
from agent.model.settings.agent import InstallSettings
from agent.node.takeover import own_group_of

_LOCK: Final = "/run/topolet-install.lock"
_UNITS: Final = Path(__file__).with_name("units")
_RESTORECON: Final = "/usr/sbin/restorecon"
ERRORS: Final = (
    *(CheckError, EndpointError, FolderError, InstallError, InstallJournalError),
    *(ObservationError, TreeError),
    *(CgroupError, ConfigurationError, DocumentError, LockedError, OSError),
)
"""What an installation and its removal raise."""

ReportLine = Callable[[str], None]

DEADLINE_SECONDS: Final = 120.0
"""The longest time that the proxy or the restarted kubelet may take to answer."""


class InstallPlan(msgspec.Struct, frozen=True):
    """The steps of an installation on this node."""

    steps: tuple[Step, ...]
    unit: str
    """The kubelet's service."""
    runtime: str
    """The endpoint to which the proxy connects."""


class ProxyInstallation:
    """The installation on the host below `settings.root`. Methods raise ERRORS; LockedError while
    another installation or removal runs."""

    def __init__(self, settings: InstallSettings, report: ReportLine) -> None:
        self._settings = settings
        self._tree = HostTree(settings.root)
        self._command = host_command(self._tree.root)
        self._report = report
        checks = Checks(self._tree, self._command, DEADLINE_SECONDS, settings.settle_seconds)
        self._installer = Installer(self._tree, self._command, checks, self._stage, report)

    def install(self) -> bool:
        """Installs the proxy. Returns False if nothing had to change."""
        with self._locked():
            recovered = self._installer.recover()
            found = self.planned()
            if not found.steps:
                return recovered
            self._installer.install(found.steps, found.unit, found.runtime)
            return True

    def remove(self) -> bool:
        """Undoes the installation. Returns False if nothing is installed."""
        with self._locked():
            return self._installer.remove(self._naming_proxy())

    def described(self, *, remove: bool) -> Iterator[str]:
        """Lines with the steps of `install`, or of `remove`, and the changes of files."""
        journal = installer.read_journal(self._tree)
        if journal and (remove or not journal.finished):
            changes = installer.undone(journal, self._naming_proxy()) if remove else journal.pending
            yield from _described(self._installer.undo_steps(journal, changes))
        if remove:
            return
        if journal and not journal.finished:
            yield "then observe the node again and install"
            return
        yield from _described(self.planned().steps)

    def runtime(self) -> str:
        """The endpoint of the runtime that the kubelet uses, directly or through the proxy."""
        return self._settings.runtime_endpoint or plan.runtime_endpoint(self._observed())

    def planned(self) -> InstallPlan:
        """Observes the node and plans an installation."""
        if not self._tree.is_folder("/run/systemd/system"):
            raise ObservationError(
                "this host is not run by systemd (Talos, for example, starts no further services): "
                "use topolet nri, which needs no service of the host"
            )
        node = self._observed()
        runtime = self._settings.runtime_endpoint or plan.runtime_endpoint(node)
        units = {name: (_UNITS / name).read_text() for name in (plan.SERVICE, plan.SOCKET)}
        steps = plan.install(node, folder.version(), runtime, units)
        return InstallPlan(steps, node.kubelet.unit.name, runtime)

    def _observed(self) -> ObservedNode:
        journal = installer.read_journal(self._tree) or InstallJournal("", "")
        own_group = own_group_of(self._settings, self._tree.path("/proc"))
        return ObservedNode(
            observe.kubelet(self._tree, own_group),
            {path: self._tree.state(path) for path in plan.OWN_FILES},
            unitfiles.read(self._tree, plan.SERVICE),
            self._active(plan.SERVICE),
            journal.runtime,
        )

    def _naming_proxy(self) -> tuple[FileChange, ...]:
        """The changes that would have put the proxy's endpoint into the files of the kubelet which
        name it. Without a running kubelet its files are not known."""
        journal = installer.read_journal(self._tree)
        if journal is None:
            return ()
        own_group = own_group_of(self._settings, self._tree.path("/proc"))
        try:
            kubelet = observe.kubelet(self._tree, own_group)
        except ObservationError as error:
            self._report(f"only files that the installation changed are restored: {error}")
            return ()
        return endpoint.naming_proxy(kubelet, journal.runtime)

    def _active(self, unit: str) -> bool:
        shown = self._command(["systemctl", "show", "--property=ActiveState", unit])
        return shown.strip() == "ActiveState=active"

    def _stage(self, version: str) -> None:
        top = self._tree.path(plan.FOLDER)
        Path(top).mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.stage(f"{top}/{version}")
        if Path(self._tree.path(_RESTORECON)).exists():
            # With SELinux, a service may execute the files only with the labels for their paths.
            with contextlib.suppress(CheckError):
                self._command([_RESTORECON, "-R", plan.FOLDER])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = Lock(self._tree.path(_LOCK))
        try:
            yield
        finally:
            lock.release()


def _described(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        yield str(step)
        if isinstance(step, Put) and step.change.after.link is None:
            before, after = (
                (each.text or "").splitlines() for each in (step.change.before, step.change.after)
            )
            lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))
            yield from (f"    {line}" for line in lines[2:])
