"""The real agent and frontends take only steps that the model has, and broken ones do not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.hooks import cpuset
from agent.hooks.cpuset import AssumedContainer, AssumedContainers
from agent.host.locks import SharedLock
from agent.node.notifications import AnnouncedPods
from agent.node.publisher import Publisher
from tests.protocol.replay import DeviationError, Driver

STEPS = 400
KINDS = frozenset(
    (
        "run", "sandbox", "sandbox fails", "create", "admit", "announce", "wait ends", "created",
        "creation fails", "start", "started", "remove", "agent starts", "observe", "revoke",
        "observe again", "journal", "write", "room", "publish", "agent crashes",
        "frontend crashes", "frontend drains", "admit by the other", "wait of the other ends",
        "session ends",
    )
)  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    path = tempfile.mkdtemp(prefix="topolet-replay-", dir=memory if memory.is_dir() else None)
    yield Path(path)
    shutil.rmtree(path)


def replay(folder: Path, seeds: range) -> set[str]:
    """The kinds of the steps."""
    kinds = set()
    for seed in seeds:
        driver = Driver(folder / str(seed), seed)
        driver.run(STEPS)
        kinds |= {each.rstrip(" 0123456789") for each in driver.names}
    return kinds


def test_agent_and_frontends_follow_the_model(folder: Path) -> None:
    assert {"revoke", "write", "admit", "frontend drains"} <= replay(folder, range(5))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_agent_and_frontends_follow_the_model_for_long(folder: Path) -> None:
    assert replay(folder, range(100, 200)) == KINDS


def _not_starting(self: AssumedContainers, snapshot: Any) -> tuple[AssumedContainer, ...]:
    return tuple(each for each in _all(self, snapshot) if each is not cpuset._STARTING)


_all = AssumedContainers.all


@pytest.mark.parametrize(
    ("of", "name", "broken"),
    [
        (Publisher, "revoke", lambda *_: False),
        (AssumedContainer, "seen_by", lambda self, _: self.answered_at is not None),
        (AssumedContainers, "all", _not_starting),
        (SharedLock, "has_others", lambda _: False),
        (AnnouncedPods, "session_ended", lambda *_: None),
    ],
    ids=[
        "drops an owner at once",
        "any snapshot has seen a creation",
        "forgets starts",
        "forgets other proxies",
        "keeps the claims of ended sessions",
    ],
)
def test_a_broken_agent_or_frontend_deviates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, of: type, name: str, broken: Any
) -> None:
    monkeypatch.setattr(of, name, broken)
    with pytest.raises(DeviationError):
        replay(folder, range(20))
