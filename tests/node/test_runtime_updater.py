from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from agent.cri.client import Cri, VerboseStatus
from agent.model.linux_resources import NO_QUOTA, NO_RESOURCES, CpuQuota, LinuxResources
from agent.model.verdict import Code
from agent.node.runtime_updater import RuntimeUpdater, stores
from agent.rpc.grpc import RpcError
from tests.waiting import DEADLINE_SECONDS, eventually

POOL, SMALLER_POOL = LinuxResources("0-3"), LinuxResources("0,2-3")


class Runtime(Cri):
    """A runtime that answers when the test allows it; `failing`: by container."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.updates: list[tuple[str, LinuxResources]] = []
        self.failing: dict[str, Code] = {}
        self.ended: set[str] = set()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def update(self, container_id: str, wanted: LinuxResources) -> None:
        self.may_answer.wait(10)
        self.updates.append((container_id, wanted))
        if container_id in self.failing:
            raise RpcError(self.failing[container_id], "set by the test")


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def updater(runtime: Runtime) -> Iterator[RuntimeUpdater]:
    updater = RuntimeUpdater(runtime, lambda group: group not in runtime.ended, settle_seconds=0.0)
    yield updater
    runtime.may_answer.set()
    updater.close()


def test_differing_values_are_sent_to_the_runtime_once(
    runtime: Runtime, updater: RuntimeUpdater
) -> None:
    for _ in range(3):
        updater.update(
            {"c1": POOL, "c2": POOL},
            {"c1": VerboseStatus(resources=LinuxResources("0-3")), "c2": VerboseStatus()},
            {},
        )
        eventually("the runtime is updated", updater.idle)
    assert runtime.updates == [("c2", POOL)]
    updater.update({"c1": SMALLER_POOL, "c2": POOL}, {}, {})
    eventually("the runtime is updated", updater.idle)
    assert runtime.updates[1:] == [("c1", SMALLER_POOL)]


def test_container_that_has_ended_is_not_updated(runtime: Runtime, updater: RuntimeUpdater) -> None:
    runtime.may_answer.clear()
    updater.update({"c1": POOL, "c2": POOL, "c3": POOL}, {}, {"c2": "/pod/c2", "c3": "/pod/c3"})
    eventually("a call is in progress", updater.in_progress)
    runtime.ended.add("/pod/c2")
    runtime.may_answer.set()
    eventually("the runtime is updated", updater.idle)
    assert runtime.updates == [("c1", POOL), ("c3", POOL)]


def test_wanted_without_values_is_never_sent(runtime: Runtime, updater: RuntimeUpdater) -> None:
    updater.update({"c1": NO_RESOURCES}, {}, {})
    assert updater.idle()


def test_cpus_of_a_call_in_progress_count_and_waiting_calls_are_dropped(
    runtime: Runtime, updater: RuntimeUpdater
) -> None:
    runtime.may_answer.clear()
    updater.update({"c1": POOL, "c2": POOL}, {}, {})
    eventually("a call is in progress", updater.in_progress)
    assert {each: str(cpus) for each, cpus in updater.in_progress().items()} == {"c1": "0-3"}
    assert updater.pause()
    runtime.may_answer.set()
    eventually("the runtime is updated", updater.idle)
    assert not updater.pause()
    assert runtime.updates == [("c1", POOL)]


@pytest.mark.parametrize(("code", "warnings"), [(Code.UNKNOWN, 1), (Code.NOT_FOUND, 0)])
def test_a_refused_update_is_logged_once_and_not_repeated(
    runtime: Runtime,
    updater: RuntimeUpdater,
    caplog: pytest.LogCaptureFixture,
    code: Code,
    warnings: int,
) -> None:
    """A container that the runtime does not have has ended, which is not logged."""
    runtime.failing = {"c1": code}
    for _ in range(2):
        updater.update({"c1": POOL}, {}, {})
        eventually("the runtime is updated", updater.idle)
    assert len(runtime.updates) == 1
    assert [each.levelname for each in caplog.records] == ["WARNING"] * warnings


def test_an_update_is_repeated_when_the_runtime_returns(
    runtime: Runtime, updater: RuntimeUpdater, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.node.runtime_updater.RETRY_SECONDS", 0.01)
    runtime.failing = {"c1": Code.UNAVAILABLE}
    updater.update({"c1": POOL}, {}, {})
    eventually("tried", lambda: runtime.updates)
    runtime.failing = {}
    eventually("idle", updater.idle)
    updater.update({"c1": POOL}, {}, {})
    eventually("the runtime is updated", lambda: len(runtime.updates) == 2)


def test_call_without_an_answer_may_take_effect_until_a_later_one_is_answered(
    runtime: Runtime, updater: RuntimeUpdater, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.node.runtime_updater.RETRY_SECONDS", 0.01)
    updater.update({"c1": POOL}, {}, {})
    eventually("the runtime is updated", updater.idle)
    runtime.failing = {"c1": Code.DEADLINE_EXCEEDED}
    updater.update({"c1": SMALLER_POOL}, {}, {})
    eventually("tried", lambda: updater.idle() and len(runtime.updates) == 2)
    assert updater.pause()
    assert {each: str(cpus) for each, cpus in updater.in_progress().items()} == {"c1": "0,2-3"}
    runtime.failing = {}
    updater.update({"c1": POOL}, {"c1": VerboseStatus(resources=LinuxResources("0-3"))}, {})
    eventually("updated with the same values again", lambda: runtime.updates[2:] == [("c1", POOL)])
    eventually("idle", updater.idle)
    assert not updater.pause()
    assert not updater.in_progress()


@pytest.mark.parametrize("later", [{}, {"c1": NO_RESOURCES}])
def test_call_without_an_answer_is_forgotten_with_its_container(
    runtime: Runtime,
    updater: RuntimeUpdater,
    monkeypatch: pytest.MonkeyPatch,
    later: dict[str, LinuxResources],
) -> None:
    monkeypatch.setattr("agent.node.runtime_updater.RETRY_SECONDS", 0.01)
    runtime.failing = {"c1": Code.DEADLINE_EXCEEDED}
    updater.update({"c1": POOL}, {}, {})
    eventually("tried", lambda: updater.idle() and runtime.updates)
    eventually("counted", updater.in_progress)
    updater.update(later, {}, {})
    assert not updater.in_progress()


@pytest.mark.parametrize(
    ("stored", "wanted", "same"),
    [
        (LinuxResources("1", quota=CpuQuota(5)), LinuxResources("1"), True),
        (LinuxResources("1", quota=CpuQuota(5)), LinuxResources("1", quota=NO_QUOTA), False),
        (LinuxResources("1", quota=NO_QUOTA), LinuxResources("1", quota=NO_QUOTA), True),
        (LinuxResources("1"), LinuxResources("1", shares=5), False),
        (LinuxResources("1", shares=5), LinuxResources("1", shares=5), True),
        (LinuxResources("0-3"), LinuxResources("1"), False),
    ],
)
def test_values_that_the_runtime_has_already(
    stored: LinuxResources, wanted: LinuxResources, same: bool
) -> None:
    assert stores(VerboseStatus(resources=stored), wanted) == same


def test_an_update_is_delayed_by_the_settle_time(runtime: Runtime) -> None:
    updater = RuntimeUpdater(runtime, lambda group: True, settle_seconds=0.3)
    start = time.monotonic()
    updater.update({"c1": SMALLER_POOL}, {}, {})
    while not runtime.updates:  # a pass drops the queue, and the next decision fills it again
        assert time.monotonic() < start + DEADLINE_SECONDS, "passes delay the update without end"
        updater.pause()
        updater.update({"c1": SMALLER_POOL}, {}, {})
        time.sleep(0.01)
    assert time.monotonic() >= start + 0.3
    eventually("the runtime is updated", updater.idle)
    updater.close()


def test_an_update_that_is_not_needed_any_more_is_never_sent(runtime: Runtime) -> None:
    updater = RuntimeUpdater(runtime, lambda group: True, settle_seconds=0.2)
    updater.update({"c1": SMALLER_POOL}, {"c1": VerboseStatus(resources=LinuxResources("0-3"))}, {})
    updater.pause()
    updater.update({"c1": POOL}, {"c1": VerboseStatus(resources=LinuxResources("0-3"))}, {})
    assert updater.idle()
    time.sleep(0.3)  # longer than the settle time
    assert not runtime.updates
    updater.close()
