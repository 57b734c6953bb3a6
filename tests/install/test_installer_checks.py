from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.cri.client import RuntimeContainer
from agent.install.installer import CheckError, Checks, host_command, lost
from agent.install.tree import HostTree
from agent.model.pod.pods import ContainerState

RUNNING, ENDED = ContainerState.RUNNING, ContainerState.ENDED


def container(name: str, state: ContainerState = RUNNING) -> RuntimeContainer:
    return RuntimeContainer(f"id-{name}", "s", name, state, 1)


def test_containers_that_do_not_run_any_more_are_lost() -> None:
    before = [container("a"), container("b"), container("c")]
    after = [container("a"), container("b", ENDED), container("new")]
    assert lost(before, after) == ("b (id-b)", "c (id-c)")
    assert lost(before, before) == ()


class FakeChecks(Checks):
    """Checks of a runtime with `containers`."""

    def __init__(self, tree: HostTree, pids: Sequence[str], deadline_seconds: float = 5.0) -> None:
        super().__init__(tree, self._systemctl, deadline_seconds, 0.0)
        self._pids = list(pids)
        self.containers = [container("a")]

    def _systemctl(self, argv: Sequence[str]) -> str:
        pid = self._pids.pop(0) if len(self._pids) > 1 else self._pids[0]
        state = "active" if pid != "0" else "activating"
        return f"MainPID={pid}\nActiveState={state}\n"

    def _containers(self, endpoint: str) -> list[RuntimeContainer]:
        return self.containers


def tree_with_connection(
    root: Path, path: str = "/run/topolet/cri.sock", state: str = "03"
) -> HostTree:
    folder = root / "proc/1/net"
    folder.mkdir(parents=True)
    header = "Num       RefCount Protocol Flags    Type St Inode Path\n"
    row = f"0: 00000003 00000000 00000000 0001 {state} 1 {path}\n"
    (folder / "unix").write_text(f"{header}0: 00000002 00000000 00010000 0001 01 2\n{row}")
    return HostTree(str(root))


def await_kubelet(checks: Checks, *, through_proxy: bool = True) -> None:
    checks.await_kubelet(
        "kubelet.service", "unix:///r", [container("a")], through_proxy=through_proxy
    )


def test_a_kubelet_that_uses_the_proxy(tmp_path: Path) -> None:
    await_kubelet(FakeChecks(tree_with_connection(tmp_path), ["0", "0", "7"]))


def test_a_kubelet_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"kubelet\.service does not run"):
        await_kubelet(FakeChecks(tree_with_connection(tmp_path), ["0"], 0.1))


@pytest.mark.parametrize(
    ("path", "state"), [("/run/other.sock", "03"), ("/run/topolet/cri.sock", "01")]
)
def test_a_kubelet_that_does_not_use_the_proxy(tmp_path: Path, path: str, state: str) -> None:
    tree = tree_with_connection(tmp_path, path, state)
    with pytest.raises(CheckError, match="nothing is connected to"):
        await_kubelet(FakeChecks(tree, ["7"], 0.1))
    await_kubelet(FakeChecks(tree, ["7"], 0.1), through_proxy=False)


def test_a_lost_container_is_named(tmp_path: Path) -> None:
    checks = FakeChecks(tree_with_connection(tmp_path), ["7"])
    checks.containers = [container("a", ENDED)]
    with pytest.raises(CheckError, match=r"ran before do not run any more: a \(id-a\)"):
        await_kubelet(checks)


def test_a_program_of_the_host_that_fails() -> None:
    with pytest.raises(CheckError, match="sh -c echo no >&2; exit 3: no"):
        host_command("/")(["sh", "-c", "echo no >&2; exit 3"])
    with pytest.raises(CheckError, match=r"/no/such: .*No such file"):
        host_command("/")(["/no/such"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_program_below_the_root_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=f"chroot {tmp_path} systemctl stop a: .*No such file"):
        host_command(str(tmp_path))(["systemctl", "stop", "a"])
