"""`topolet uninstall-node` on a tree of files; tests/integration has it with an API server, and the
removal of the proxy with systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import usage
from agent.__main__ import main
from agent.cgroup import writer
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.host.locks import Lock
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.names import SHOWN_FILE
from agent.usage import predictor
from tests.cli.conftest import Topolet

GROUP = "/kubepods/besteffort/podx/box"
OF_PEOPLE = (
    *(text for name, text in vars(usage).items() if name.endswith("_FILE")),
    predictor.FILE,
    SHOWN_FILE,
)
"""The files of parts of an agent that tell people, or a later agent, what they do."""


@pytest.fixture
def command_line(tmp_path: Path) -> list[str]:
    (tmp_path / "host/run").mkdir(parents=True)
    for depth in range(5):
        path = tmp_path / "cgroup/cpuset" / "/".join(GROUP.split("/")[1 : depth + 1])
        path.mkdir(parents=True, exist_ok=True)
        (path / "cpuset.cpus").write_text("0-3\n")
    state = tmp_path / "state"
    for path, text in {
        "snapshot.json": "{}",
        "cluster.json": "{}",
        **dict.fromkeys(OF_PEOPLE, "{}"),
        "door.lock": "",
        "audit/agent.1700000000.jsonl": "{}",
        "containers/pod/box/cpus": "1",
        "objects/noderesourcetopology/n.yaml": "",
        "objects/node/n.yaml": "",
    }.items():
        (state / path).parent.mkdir(parents=True, exist_ok=True)
        (state / path).write_text(text)
    hierarchy = Hierarchy(str(tmp_path / "cgroup"))
    assert writer.apply(hierarchy, Journal(state / "journal"), {GROUP: CpuSet([1])}).ok
    return [
        "uninstall-node",
        "--without-cluster",
        "--node-name=n",
        f"--root={tmp_path}/host",
        f"--state-dir={state}",
        f"--cgroup-root={tmp_path}/cgroup",
    ]


def cpus(tmp_path: Path) -> str:
    return (tmp_path / "cgroup/cpuset" / GROUP[1:] / "cpuset.cpus").read_text().strip()


def test_uninstall_removes_everything(
    tmp_path: Path, command_line: list[str], topolet: Topolet
) -> None:
    assert cpus(tmp_path) == "1"
    captured = topolet(*command_line)
    assert captured.out.endswith("node n: nothing of Topolet is left\n")
    assert captured.err == ""
    assert cpus(tmp_path) == "0-3"
    assert not (tmp_path / "state").exists()
    assert list((tmp_path / "host/run").iterdir()) == []
    topolet(*command_line)


def test_files_of_others_stay(tmp_path: Path, command_line: list[str], topolet: Topolet) -> None:
    files_of_others = {"objects/pod/default/p.yaml", "containers/storage.json", "own/file"}
    for each in files_of_others:
        (tmp_path / "state" / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "state" / each).write_text("")
    printed = topolet(*command_line)
    assert "stays, because it has files of others: containers, objects, own" in printed.out
    state = tmp_path / "state"
    assert {
        str(each.relative_to(state)) for each in state.rglob("*") if each.is_file()
    } == files_of_others


def test_while_an_agent_runs_the_journal_stays(
    tmp_path: Path, command_line: list[str], topolet: Topolet
) -> None:
    lock = Lock(str(tmp_path / "state/agent.lock"))
    lines = topolet(*command_line, code=1).err.splitlines()
    assert [line.split(": ")[2] for line in lines] == ["cgroups", f"{tmp_path}/state"]
    assert "agent.lock is locked by process" in lines[0]
    assert cpus(tmp_path) == "1"
    lock.release()
    topolet(*command_line)
    assert cpus(tmp_path) == "0-3"


def test_without_credentials_nothing_is_changed(
    tmp_path: Path,
    command_line: list[str],
    topolet: Topolet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program may be in the folder that it removes, so that it can't be run again."""
    command_line.remove("--without-cluster")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (line,) = topolet(*command_line, code=2).err.splitlines()
    assert "not in a cluster: nothing is changed; with --without-cluster a later run" in line
    assert cpus(tmp_path) == "1"
    assert (tmp_path / "state").exists()


def test_a_proxy_that_stays_keeps_its_socket_and_its_lock(
    tmp_path: Path, command_line: list[str], topolet: Topolet
) -> None:
    (tmp_path / "state/cri.sock").touch()
    printed = topolet(*command_line, "--without-proxy")
    assert "stays, because the proxy has its socket there" in printed.out
    assert cpus(tmp_path) == "0-3"
    assert {each.name for each in (tmp_path / "state").iterdir()} == {"cri.sock", "door.lock"}


def test_without_a_proxy_nothing_is_kept_for_it(tmp_path: Path, command_line: list[str]) -> None:
    assert main([*command_line, "--without-proxy"]) == 0
    assert not (tmp_path / "state").exists()
