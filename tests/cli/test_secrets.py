"""No command prints, and no agent logs, secrets of pods, of the kubelet and of files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.__main__ import main
from agent.model.pod.annotations import RESOURCE_STATUS
from tests.cli.secret_values import ANSWER, ENVIRONMENT, SECRET, write_checkpoint
from tests.faults.conftest import AgentHarness
from tests.faults.launcher import Launcher
from tests.faults.node import SimulatedNode, large_machine
from tests.waiting import eventually


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    """An owner, a pod whose claim can't be honoured and one whose claim can't be read, all with
    secrets; a kubelet whose device plugin gave one to a container."""
    played = large_machine(tmp_path, 1)
    played.runtime.environment = ENVIRONMENT
    for qos, claim in (("LSE", "1-2"), ("LSR", "90-95"), ("LSE", "1-2"), ("LS", "")):
        pod = played.add_pod(qos, claim)
        played.create_container(pod, start=True)
        sandbox = played.runtime.sandboxes[pod.sandbox_id]
        notes = {**sandbox.annotations, "example.com/token": SECRET, "note": f"Bearer {SECRET}"}
        labels = {**sandbox.labels, "example.com/token": SECRET}
        played.runtime.sandboxes[pod.sandbox_id] = msgspec.structs.replace(
            sandbox, annotations=notes, labels=labels
        )
    sandbox = played.runtime.sandboxes[played.add_pod("LSE", "1").sandbox_id]
    sandbox.annotations[RESOURCE_STATUS] = json.dumps({"cpuset": [SECRET], "token": SECRET})
    write_checkpoint(tmp_path / "kubelet")
    yield played
    played.close()


COMMANDS = (
    ("doctor",),
    ("doctor", "--output=json"),
    ("kubelet-state",),
    ("kubelet-state", "--output=json"),
    ("kubelet-state", "--write-kubelet-state"),
    ("topology", "--output=json"),
    ("topology", "--owners"),
    ("audit",),
    ("audit", "--output=json"),
    ("top", "--once"),
    ("restore",),
)


def _has_owners(node: SimulatedNode) -> bool:
    snapshot = node.snapshot()
    return snapshot is not None and bool(snapshot.owners)


def _audit_bytes(node: SimulatedNode) -> bytes:
    """The agent makes the folder before the file, and the file before its records."""
    return b"".join(each.read_bytes() for each in (node.state / "audit").glob("*"))


def _shown(text: str) -> bool:
    return SECRET in text or ANSWER in text


def test_no_command_prints_a_secret(
    node: SimulatedNode,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor does the agent log one at its lowest level, which includes all others."""
    with Launcher(tmp_path) as launcher:
        harness = AgentHarness(node, launcher)
        harness.start("--log-level=debug")
        eventually("the owner is in the snapshot", lambda: _has_owners(node))
        eventually("the audit trail has records", lambda: _audit_bytes(node))
        launcher.kill()
        assert not _shown(launcher.log())
        snapshot = node.state / "snapshot.json"
        assert not _shown(snapshot.read_text())
        assert not _shown(_audit_bytes(node).decode())
    caplog.set_level(logging.DEBUG)
    common = dict(word[2:].split("=", 1) for word in node.restore_words[1:])
    for command in COMMANDS:
        of_command = {"topology": ("state-dir",), "audit": ("state-dir",)}.get(
            command[0], tuple(common)
        )
        words = [f"--{name}={common[name]}" for name in of_command]
        if command[0] in ("doctor", "kubelet-state"):
            words.append(f"--kubelet-dir={tmp_path / 'kubelet'}")
        caplog.clear()
        main([*command, *words])
        printed = capfd.readouterr()
        assert printed.out + printed.err, command
        assert "Traceback" not in printed.err
        assert not _shown(printed.out + printed.err + caplog.text), command


@pytest.mark.parametrize("name", ["doctor", "agent", "proxy", "scheduler", "webhook"])
@pytest.mark.parametrize(
    "content",
    [
        f'token = "{SECRET}"',
        f'token = "{SECRET}',
        f"{SECRET} = [",
        f'kubeconfig = ["{SECRET}"]',
        f'[kubeconfig]\ntoken = "{SECRET}"',
    ],
    ids=["unknown", "unended", "key", "type", "table"],
)
def test_a_faulty_file_of_options_is_not_quoted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    path = tmp_path / "topolet.toml"
    path.write_text(content)
    assert main([name, f"--config={path}"]) == 2
    printed = capfd.readouterr()
    assert printed.err.startswith("topolet: ")
    assert SECRET not in printed.out + printed.err
