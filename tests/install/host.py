"""A host of files whose kubelet systemctl restarts, and on which the installer can be killed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from agent.cri.client import RuntimeContainer
from agent.install import installer as journal
from agent.install import observe, plan
from agent.install.endpoint import FileChange, naming_proxy
from agent.install.installer import CheckError, Checks, Installer, lost
from agent.install.observe import ObservationError
from agent.install.plan import CURRENT, FOLDER, SERVICE_DROP_IN, SOCKET_FILE, ObservedNode
from agent.install.tree import FileState, HostTree
from agent.install.unitfiles import read as read_unit
from agent.model.pod.pods import ContainerState
from tests.install.kubelets import PROXY, Kubelet, run

UNITS = {plan.SERVICE: "[Service]\n", plan.SOCKET: "[Socket]\n"}
ONE = "1.0-00000001"
POD = RuntimeContainer("c1", "s1", "app", ContainerState.RUNNING, 1)


class Killed(BaseException):
    """The installer is killed with SIGKILL."""


class Host:
    """`moment`: the number of the operation before which, or with .5 in the middle of which, the
    installer is killed. `fault`: the number of the operation that fails."""

    def __init__(self, root: Path, kubelet: Kubelet) -> None:
        self.root = root
        self.kubelet = kubelet
        self.tree = _Tree(self)
        self.moment: float | None = None
        self.fault: int | None = None
        self.count = 0
        self.proxy_runs = False
        self.loses_container = False
        self.runtime_fails = False
        self.pods: tuple[RuntimeContainer, ...] = (POD,)
        self.commands: list[str] = []
        self.messages: list[str] = []
        self.loaded = kubelet.runtime

    def installer(self) -> Installer:
        checks = _Checks(self)
        return Installer(self.tree, self.command, checks, self._stage, self.messages.append)

    def begin_operation(self) -> None:
        """The start of an operation: here it fails, or the installer is killed before it."""
        self.count += 1
        if self.moment is not None and self.count >= self.moment:
            raise Killed
        if self.count == self.fault:
            raise CheckError("a fault")

    def end_operation(self) -> None:
        """The end of an operation: here the installer is killed in the middle of it."""
        if self.moment is not None and self.count + 0.5 >= self.moment:
            raise Killed

    def command(self, argv: Sequence[str]) -> str:
        self.begin_operation()
        self.commands.append(" ".join(argv))
        match list(argv[1:]):
            case ["restart", self.kubelet.unit]:
                self.restart_kubelet()
            case ["restart", "topolet-proxy.service"]:
                drop_in = (self.root / SERVICE_DROP_IN.lstrip("/")).read_text()
                assert (
                    f"{CURRENT}/bin/topolet proxy --runtime-endpoint {self.kubelet.runtime}"
                    in drop_in
                )
                assert (self.root / CURRENT.lstrip("/")).is_dir(), "no interpreter"
                self.proxy_runs = True
            case ["stop", "topolet-proxy.socket", "topolet-proxy.service"]:
                self.proxy_runs = False
        self.end_operation()
        return ""

    def restart_kubelet(self) -> None:
        """Restarts the kubelet with the endpoint that its files name."""
        self.loaded = self.configured_endpoint()
        flag = "container-runtime-endpoint"
        path = self.kubelet.runtime.removeprefix("unix://")
        argv = [each.replace(PROXY, self.loaded) for each in self.kubelet.argv]
        if self.loaded == PROXY:
            argv = [each.replace(f"unix://{path}", path).replace(path, PROXY) for each in argv]
        if self.loaded == PROXY and flag not in "".join(argv) and self._by_flag():
            argv.append(f"--{flag}={PROXY}")
        run(self.root, self.kubelet._replace(argv=tuple(argv)))

    def configured_endpoint(self) -> str:
        """The endpoint that a restarted kubelet uses."""
        files = {**self.kubelet.changed, "": ""}
        contents = (
            (self.root / path.lstrip("/")).read_text()
            for path in files
            if path and (self.root / path.lstrip("/")).exists()
        )
        return PROXY if any(PROXY in each for each in contents) else self.kubelet.runtime

    def _by_flag(self) -> bool:
        return any("--container-runtime-endpoint" in each for each in self.kubelet.changed.values())

    def works(self) -> bool:
        """Whether the running kubelet has a runtime, and would have one after a restart."""
        served = self.proxy_runs and os.path.lexists(self.root / SOCKET_FILE.lstrip("/"))
        return all(each != PROXY or served for each in (self.loaded, self.configured_endpoint()))

    def observed(self) -> observe.ObservedKubelet:
        return observe.kubelet(self.tree, "/")

    def files(self) -> dict[str, str]:
        """All files of the host, without its processes."""
        return {
            str(path.relative_to(self.root)): f"-> {os.readlink(path)}"
            if path.is_symlink()
            else path.read_text()
            for path in self.root.rglob("*")
            if (path.is_symlink() or path.is_file())
            and path.relative_to(self.root).parts[0] != "proc"
            and not path.name.endswith(".tmp")
        }

    def _stage(self, version: str) -> None:
        self.begin_operation()
        folder = self.root / FOLDER.lstrip("/") / version
        folder.with_name(f"{version}.unfinished").mkdir(parents=True, exist_ok=True)
        self.end_operation()
        shutil.rmtree(folder.with_name(f"{version}.unfinished"))
        folder.mkdir(exist_ok=True)
        (folder / "program").write_text(version)


class _Tree(HostTree):
    def __init__(self, host: Host) -> None:
        super().__init__(str(host.root))
        self._host = host

    def put(self, path: str, state: FileState) -> None:
        self._host.begin_operation()
        super().put(path, state)
        self._host.end_operation()

    def remove_folder(self, path: str) -> None:
        try:
            self._host.begin_operation()
        except CheckError as error:
            raise OSError(str(error)) from error
        super().remove_folder(path)
        self._host.end_operation()


class _Checks(Checks):
    def __init__(self, host: Host) -> None:
        super().__init__(host.tree, host.command, 1, 0)
        self._host = host

    def running(self, runtime: str) -> tuple[RuntimeContainer, ...]:
        assert runtime == self._host.kubelet.runtime
        if self._host.runtime_fails:
            raise CheckError("no answer")
        return self._host.pods

    def await_proxy(self, runtime: str) -> None:
        self._host.begin_operation()
        if not self._host.proxy_runs:
            raise CheckError("the proxy does not answer")

    def await_kubelet(
        self,
        unit: str,
        runtime: str,
        before: Sequence[RuntimeContainer],
        *,
        through_proxy: bool,
    ) -> None:
        self._host.begin_operation()
        if through_proxy != (self._host.loaded == PROXY):
            raise CheckError(f"the kubelet uses {self._host.loaded}")
        if through_proxy and self._host.loses_container:
            self._host.pods = ()
        if lost_containers := lost(before, self._host.pods):
            raise CheckError(
                f"containers that ran before do not run any more: {', '.join(lost_containers)}"
            )


def planned(host: Host, version: str = ONE) -> tuple[plan.Step, ...]:
    recorded = journal.read_journal(host.tree)
    node = ObservedNode(
        host.observed(),
        {path: host.tree.state(path) for path in plan.OWN_FILES},
        read_unit(host.tree, plan.SERVICE),
        host.proxy_runs,
        recorded.runtime if recorded else "",
    )
    return plan.install(node, version, plan.runtime_endpoint(node), UNITS)


def install(host: Host, version: str = ONE) -> None:
    installer = host.installer()
    installer.recover()
    installer.install(planned(host, version), host.kubelet.unit, host.kubelet.runtime)


def remove(host: Host) -> None:
    others: tuple[FileChange, ...] = ()
    with contextlib.suppress(ObservationError):  # as ProxyInstallation does
        others = naming_proxy(host.observed(), host.kubelet.runtime)
    host.installer().remove(others)
