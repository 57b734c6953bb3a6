"""A host of files on which a kubelet restarts when systemctl says so, and which can be killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from agent.cri.client import RuntimeContainer
from agent.install import observe
from agent.install.installer import CheckError, Checks, Installer, lost
from agent.install.plan import CURRENT, FOLDER, SERVICE_DROP_IN, SOCKET_FILE
from agent.install.tree import FileState, HostTree
from agent.model.pod.pods import ContainerState
from tests.install.kubelets import PROXY, Kubelet, run

POD = RuntimeContainer("c1", "s1", "app", ContainerState.RUNNING, 1)


class Killed(BaseException):
    """SIGKILL: nothing after it runs."""


class Host:
    """`moment`: of the operations, the one before which, or in the middle of which, it is killed;
    `fault`: the one that fails."""

    def __init__(self, root: Path, it: Kubelet) -> None:
        self.root = root
        self.it = it
        self.tree = _Tree(self)
        self.moment: float | None = None
        self.fault: int | None = None
        self.count = 0
        self.proxy_runs = False
        self.loses_container = False
        self.runtime_away = False
        self.pods: tuple[RuntimeContainer, ...] = (POD,)
        self.commands: list[str] = []
        self.said: list[str] = []
        self.loaded = it.runtime

    def installer(self) -> Installer:
        checks = _Answers(self)
        return Installer(self.tree, self.command, checks, self._stage, self.said.append)

    def operate(self) -> None:
        """Before an operation."""
        self.count += 1
        if self.moment is not None and self.count >= self.moment:
            raise Killed
        if self.count == self.fault:
            raise CheckError("a fault")

    def operated(self) -> None:
        """In the middle of it, or before the next."""
        if self.moment is not None and self.count + 0.5 >= self.moment:
            raise Killed

    def command(self, words: Sequence[str]) -> str:
        self.operate()
        self.commands.append(" ".join(words))
        match list(words[1:]):
            case ["restart", self.it.unit]:
                self.restart_kubelet()
            case ["restart", "topolet-proxy.service"]:
                drop_in = (self.root / SERVICE_DROP_IN.lstrip("/")).read_text()
                assert (
                    f"{CURRENT}/bin/topolet proxy --runtime-endpoint {self.it.runtime}" in drop_in
                )
                assert (self.root / CURRENT.lstrip("/")).is_dir(), "no interpreter"
                self.proxy_runs = True
            case ["stop", "topolet-proxy.socket", "topolet-proxy.service"]:
                self.proxy_runs = False
        self.operated()
        return ""

    def restart_kubelet(self) -> None:
        """With the endpoint that its files name."""
        self.loaded = self.named()
        flag = "container-runtime-endpoint"
        argv = [each.replace(self.it.runtime, self.loaded) for each in self.it.argv]
        argv = [each.replace(PROXY, self.loaded) for each in argv]
        if self.loaded == PROXY and flag not in "".join(argv) and self._by_flag():
            argv.append(f"--{flag}={PROXY}")
        run(self.root, self.it._replace(argv=tuple(argv)))

    def named(self) -> str:
        """The endpoint with which a kubelet would start."""
        places = {**self.it.changed, "": ""}
        texts = (
            (self.root / path.lstrip("/")).read_text()
            for path in places
            if path and (self.root / path.lstrip("/")).exists()
        )
        return PROXY if any(PROXY in each for each in texts) else self.it.runtime

    def _by_flag(self) -> bool:
        return any("--container-runtime-endpoint" in each for each in self.it.changed.values())

    def works(self) -> bool:
        """Whether a kubelet that restarts at this moment finds a runtime, as the one does that
        runs."""
        served = self.proxy_runs and os.path.lexists(self.root / SOCKET_FILE.lstrip("/"))
        return all(each != PROXY or served for each in (self.loaded, self.named()))

    def observed(self) -> observe.ObservedKubelet:
        return observe.kubelet(self.tree, "/")

    def files(self) -> dict[str, str]:
        """All of the host, without its processes."""
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
        self.operate()
        folder = self.root / FOLDER.lstrip("/") / version
        folder.with_name(f"{version}.unfinished").mkdir(parents=True, exist_ok=True)
        self.operated()
        shutil.rmtree(folder.with_name(f"{version}.unfinished"))
        folder.mkdir(exist_ok=True)
        (folder / "program").write_text(version)


class _Tree(HostTree):
    def __init__(self, host: Host) -> None:
        super().__init__(str(host.root))
        self._host = host

    def put(self, path: str, state: FileState) -> None:
        self._host.operate()
        super().put(path, state)
        self._host.operated()

    def remove_folder(self, path: str) -> None:
        try:
            self._host.operate()
        except CheckError as error:
            raise OSError(str(error)) from error
        super().remove_folder(path)
        self._host.operated()


class _Answers(Checks):
    def __init__(self, host: Host) -> None:
        super().__init__(host.tree, host.command, 1, 0)
        self._host = host

    def running(self, runtime: str) -> tuple[RuntimeContainer, ...]:
        assert runtime == self._host.it.runtime
        if self._host.runtime_away:
            raise CheckError("no answer")
        return self._host.pods

    def await_proxy(self, runtime: str) -> None:
        self._host.operate()
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
        self._host.operate()
        if through_proxy != (self._host.loaded == PROXY):
            raise CheckError(f"the kubelet uses {self._host.loaded}")
        if through_proxy and self._host.loses_container:
            self._host.pods = ()
        if gone := lost(before, self._host.pods):
            raise CheckError(f"containers that ran before do not run any more: {', '.join(gone)}")
