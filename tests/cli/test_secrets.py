"""No command prints, and no agent logs, secrets of pods, of the kubelet or of files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.__main__ import main
from agent.model.pod.annotations import RESOURCE_STATUS
from tests.cli.conftest import Topolet
from tests.cli.secret_values import (
    ANSWER,
    ENVIRONMENT,
    SECRET,
    add_container,
    write_checkpoint,
)
from tests.faults.conftest import AgentHarness
from tests.faults.launcher import Launcher
from tests.faults.node import SimulatedNode, large_machine
from tests.waiting import eventually


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    """A node of pods with secrets: an owner, a pod with a refused claim and one with an invalid
    claim; a kubelet whose device plugin passed a secret to a container."""
    node = large_machine(tmp_path, 1)
    node.runtime.environment = ENVIRONMENT
    for qos, claim in (("LSE", "1-2"), ("LSR", "90-95"), ("LSE", "1-2"), ("LS", "")):
        add_container(node, qos, claim)
    sandbox = node.runtime.sandboxes[node.add_pod("LSE", "1").sandbox_id]
    sandbox.annotations[RESOURCE_STATUS] = json.dumps({"cpuset": [SECRET], "token": SECRET})
    write_checkpoint(tmp_path / "kubelet")
    yield node
    node.close()


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
    """The agent creates the folder before the file, and the file before its records."""
    return b"".join(each.read_bytes() for each in (node.state / "audit").glob("*"))


def _has_secret(text: str) -> bool:
    return SECRET in text or ANSWER in text


def test_no_command_prints_a_secret(
    node: SimulatedNode,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The agent logs none either, at its lowest level."""
    with Launcher(tmp_path) as launcher:
        harness = AgentHarness(node, launcher)
        harness.start("--log-level=debug")
        eventually("the owner is in the snapshot", lambda: _has_owners(node))
        eventually("the audit trail has records", lambda: _audit_bytes(node))
        launcher.kill()
        assert not _has_secret(launcher.log())
        snapshot = node.state / "snapshot.json"
        assert not _has_secret(snapshot.read_text())
        assert not _has_secret(_audit_bytes(node).decode())
    caplog.set_level(logging.DEBUG)
    common = dict(word[2:].split("=", 1) for word in node.restore_words[1:])
    for command in COMMANDS:
        names = {"topology": ("state-dir",), "audit": ("state-dir",)}.get(command[0], tuple(common))
        arguments = [f"--{name}={common[name]}" for name in names]
        if command[0] in ("doctor", "kubelet-state"):
            arguments.append(f"--kubelet-dir={tmp_path / 'kubelet'}")
        caplog.clear()
        main([*command, *arguments])
        printed = capfd.readouterr()
        assert printed.out + printed.err, command
        assert "Traceback" not in printed.err
        assert not _has_secret(printed.out + printed.err + caplog.text), command


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
    tmp_path: Path, topolet: Topolet, name: str, content: str
) -> None:
    path = tmp_path / "topolet.toml"
    path.write_text(content)
    printed = topolet(name, f"--config={path}", code=2)
    assert printed.err.startswith("topolet: ")
    assert SECRET not in printed.out + printed.err
