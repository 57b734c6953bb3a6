"""What containers keep secret stays in their requests."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from agent.model.verdict import Refuse
from agent.proto import cri_pb2 as pb
from tests.proxy.exchanges import SHOWN, Exchange, sandbox

SECRET = "s3cr3t-of-the-database"


@pytest.mark.parametrize("spoil", [b"", b"\xff\xff"], ids=["valid", "invalid"])
@pytest.mark.parametrize("uid", ["own", "lost", "unknown"])
def test_no_variable_of_a_container_is_logged_or_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, uid: str, spoil: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    exchange = Exchange(tmp_path, hold_seconds=0)
    exchange.publish(SHOWN)
    message = pb.CreateContainerRequest(sandbox_config=sandbox(uid, "LSE", "1"))
    message.config.metadata.name = "main"
    message.config.envs.add(key="DB_PASSWORD", value=SECRET.encode())
    message.config.annotations["note"] = SECRET
    message.sandbox_config.annotations["example.com/token"] = SECRET
    call = exchange.arrived("CreateContainer", message)
    exchange.messages[call] += spoil
    verdict = exchange.again(call)
    notifications = [msgspec.json.encode(each) for each in exchange.notifications()]
    exchange.close()
    assert SECRET not in caplog.text
    assert SECRET.encode() not in b"".join(notifications)
    if isinstance(verdict, Refuse):
        assert SECRET not in verdict.message
