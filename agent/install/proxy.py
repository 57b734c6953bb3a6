"""`topolet install-proxy`: observes this node, plans and installs, or takes everything back."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError
from agent.host.locks import Lock, LockedError
from agent.install import folder, journal, observe, plan, unitfiles
from agent.install.checks import CheckError, Checks, HostCommand, host_command
from agent.install.endpoint import EndpointError
from agent.install.folder import FolderError
from agent.install.installer import Installer, InstallError
from agent.install.journal import InstallJournal, InstallJournalError
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

Say = Callable[[str], None]


class Prepared(msgspec.Struct, frozen=True):
    """What an installation does on this node: none of it is done yet."""

    steps: tuple[Step, ...]
    unit: str
    runtime: str


class ProxyInstallation:
    """On the host below `settings.root`. Methods raise ERRORS: LockedError while another one
    runs."""

    def __init__(
        self, settings: InstallSettings, say: Say, command: HostCommand | None = None
    ) -> None:
        self._settings = settings
        self._tree = HostTree(settings.root)
        self._command = command or host_command(self._tree.root)
        self._say = say
        checks = Checks(
            self._tree, self._command, settings.deadline_seconds, settings.settle_seconds
        )
        self._installer = Installer(self._tree, self._command, checks, self._stage, say)

    def install(self) -> bool:
        """Whether anything was changed."""
        with self._locked():
            recovered = self._installer.recover()
            prepared = self.prepared()
            if not prepared.steps:
                return recovered
            self._installer.install(prepared.steps, prepared.unit, prepared.runtime)
            return True

    def remove(self) -> bool:
        """False where nothing is installed."""
        with self._locked():
            return self._installer.remove()

    def shown(self, *, remove: bool) -> Iterator[str]:
        """The steps that one of the two would do, with the changes of files."""
        noted = journal.read(self._tree)
        if noted and (remove or not noted.finished):
            changes = plan.merged(noted.installed if remove else (), noted.pending)
            yield from _described(self._installer.undo_steps(noted, changes))
        if remove:
            return
        if noted and not noted.finished:
            yield "then observe the node again, and install"
            return
        yield from _described(self.prepared().steps)

    def runtime(self) -> str:
        """The runtime's endpoint, which the kubelet uses directly or through the proxy."""
        return self._settings.runtime_endpoint or plan.runtime_endpoint(self._observed())

    def prepared(self) -> Prepared:
        """Observes and decides."""
        if not self._tree.is_folder("/run/systemd/system"):
            raise ObservationError(
                "systemd does not run this host (Talos, for example, starts no service of others): "
                "topolet nri does the same in the runtime, without a service of the host"
            )
        node = self._observed()
        runtime = self._settings.runtime_endpoint or plan.runtime_endpoint(node)
        units = {name: (_UNITS / name).read_text() for name in (plan.SERVICE, plan.SOCKET)}
        steps = plan.install(node, folder.version(), runtime, units)
        return Prepared(steps, node.kubelet.unit.name, runtime)

    def _observed(self) -> ObservedNode:
        noted = journal.read(self._tree) or InstallJournal("", "")
        own_group = own_group_of(self._settings, self._tree.path("/proc"))
        return ObservedNode(
            observe.kubelet(self._tree, own_group),
            {path: self._tree.state(path) for path in plan.OWN_FILES},
            unitfiles.read(self._tree, plan.SERVICE),
            self._active(plan.SERVICE),
            noted.runtime,
        )

    def _active(self, unit: str) -> bool:
        shown = self._command(["systemctl", "show", "--property=ActiveState", unit])
        return shown.strip() == "ActiveState=active"

    def _stage(self, version: str) -> None:
        top = self._tree.path(plan.FOLDER)
        Path(top).mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.stage(f"{top}/{version}")
        if Path(self._tree.path(_RESTORECON)).exists():
            # SELinux: a service may execute the files by the labels of their paths.
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
