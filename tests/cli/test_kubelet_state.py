"""The command `topolet kubelet-state`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Printed, Topolet
from tests.kubelet.state_files import FILLED, KUBELETS_OWN, REAL

Run = Callable[..., Printed]
CPUS = json.dumps(KUBELETS_OWN["whole pods"][1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "cpu_manager_state").write_text(CPUS)
    (tmp_path / "memory_manager_state").write_text(json.dumps(FILLED | {"checksum": 4215593881}))
    (tmp_path / "device-plugins/kubelet_internal_checkpoint").write_text(json.dumps(REAL))
    return tmp_path


@pytest.fixture
def run(folder: Path, topolet: Topolet) -> Run:
    return lambda *words, code=0: topolet(
        "kubelet-state", f"--kubelet-dir={folder}", *words, code=code
    )


def test_three_files(run: Run) -> None:
    printed = run()
    assert printed.err == ""
    assert printed.out == (
        """\
cpu_manager_state: version 3, policy static, checksum correct
  shared CPUs: 1-2
  POD   CONTAINER   CPUS
  pod2  (pod)       7-9
  pod1  container1  5-6
  pod1  container2  3-4
memory_manager_state: version 1, policy static, checksum correct
  NODE  KIND    TOTAL BYTES  RESERVED  FREE
  0     memory  2048         512       1024
  POD  CONTAINER   KIND    NODES  BYTES
  pod  container1  memory  0      512
device-plugins/kubelet_internal_checkpoint: version 2, checksum correct
  RESOURCE        DEVICES
  nvidia.com/gpu  1
  POD                                   CONTAINER  RESOURCE        NODE  DEVICES
  bf52b2cd-b611-4e79-86b1-280b283185c3  check      nvidia.com/gpu  -     tegra
"""
    )


def test_json(run: Run) -> None:
    found = run("--output=json").json
    assert found["schema_version"] == 1
    cpus, memory, devices = found["files"]
    assert (cpus["name"], cpus["error"], cpus["state"]["checked"]) == (
        "cpu_manager_state",
        "",
        "verified",
    )
    assert cpus["state"]["entries"] == {"pod1": {"container1": "5-6", "container2": "3-4"}}
    assert memory["state"]["machine"]["0"] == FILLED["machineState"]["0"]
    (entry,) = devices["state"]["entries"]
    assert entry["devices"] == {"-1": ["tegra"]}
    answer = base64.b64decode(REAL["Data"]["PodDeviceEntries"][0]["AllocResp"])
    assert entry["answer"] == f"{len(answer)} bytes"


def test_absent_files_are_not_errors(tmp_path: Path, topolet: Topolet) -> None:
    printed = topolet("kubelet-state", f"--kubelet-dir={tmp_path}")
    assert printed.err == ""
    assert [line.split(": ")[1] for line in printed.out.splitlines()] == ["absent"] * 3


def test_torn_and_changed_files_and_problems(folder: Path, run: Run) -> None:
    (folder / "cpu_manager_state").write_text(CPUS.replace("7-9", "x").replace("2284712151", "0"))
    printed = run()
    assert "version unknown, policy static, checksum unknown" in printed.out
    assert "  problem: podEntries.pod2: CPU list 'x'" in printed.out
    (folder / "cpu_manager_state").write_text(CPUS.replace("7-9", "7-8"))
    assert "version 3, policy static, checksum WRONG" in run(code=1).out
    (folder / "cpu_manager_state").write_text(CPUS[:-1])
    printed = run(code=1)
    assert "cpu_manager_state: is not JSON: " in printed.out
    assert "memory_manager_state: version 1" in printed.out


def test_a_refused_write_and_nothing_to_write(folder: Path, tmp_path: Path, run: Run) -> None:
    words = ("--write-kubelet-state", f"--state-dir={tmp_path / 'none'}", f"--root={tmp_path}")
    (tmp_path / "proc").mkdir()
    printed = run(*words, code=1)
    assert printed.out == ""
    assert printed.err.startswith("topolet: the agent's decisions can't be read: ")
    assert (folder / "cpu_manager_state").read_text() == CPUS
    (folder / "cpu_manager_state").write_text('{"policyName":"none"}')
    printed = run(*words)
    assert printed.err == ""
    assert printed.out.startswith("Nothing to write: the kubelet's CPU manager policy is none")
