"""Secrets in a container's request are neither logged nor sent."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from agent.model.verdict import Refuse
from agent.proto import cri_pb2 as pb
from tests.proxy.harness import WITH_DEVICES, GateHarness, sandbox

SECRET = "s3cr3t-of-the-database"


@pytest.mark.parametrize("suffix", [b"", b"\xff\xff"], ids=["valid", "invalid"])
@pytest.mark.parametrize("uid", ["own", "lost", "unknown"])
def test_no_variable_of_a_container_is_logged_or_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, uid: str, suffix: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    harness = GateHarness(tmp_path, hold_seconds=0)
    harness.publish(WITH_DEVICES)
    message = pb.CreateContainerRequest(sandbox_config=sandbox(uid, "LSE", "1"))
    message.config.metadata.name = "main"
    message.config.envs.add(key="DB_PASSWORD", value=SECRET.encode())
    message.config.annotations["note"] = SECRET
    message.sandbox_config.annotations["example.com/token"] = SECRET
    call = harness.new_call("CreateContainer", message)
    harness.messages[call] += suffix
    verdict = harness.retry(call)
    notifications = [msgspec.json.encode(each) for each in harness.notifications()]
    harness.close()
    assert SECRET not in caplog.text
    assert SECRET.encode() not in b"".join(notifications)
    if isinstance(verdict, Refuse):
        assert SECRET not in verdict.message
