"""The idle states of owners' CPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.model.pod.annotations import CRIO_C_STATES, QUIET
from agent.node.features import WantedFiles
from agent.node.quiet.c_states import CStates
from tests.node.quiet.quieted import QuietMachine, moment_of, quiet_pod

DRIVER = "sys/devices/system/cpu/cpuidle/current_driver"


def latency(cpu: int) -> str:
    return f"sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"


@pytest.fixture
def node(tmp_path: Path) -> QuietMachine:
    node = QuietMachine(tmp_path, CStates(str(tmp_path / "host")))
    node.put(DRIVER, "intel_idle")
    for cpu in range(8):
        node.put(latency(cpu), 0)
    return node


def latencies(node: QuietMachine) -> str:
    return " ".join(node.text(latency(cpu)) for cpu in range(8))


def test_the_cpus_of_an_owner_leave_idle_states_within_its_latency(node: QuietMachine) -> None:
    node.put(latency(3), 500)
    node.follow(
        quiet_pod("polls", "2-3", {CRIO_C_STATES: "disable"}),
        quiet_pod("waits", "5", {CRIO_C_STATES: "max_latency:10"}),
        quiet_pod("asks", "6", {QUIET: "c-states"}),
        quiet_pod("sleeps", "7", {QUIET: "all", CRIO_C_STATES: "enable"}),
    )
    assert latencies(node) == "0 0 n/a n/a 0 10 n/a 0"
    node.follow()
    assert latencies(node) == "0 0 0 500 0 0 0 0"
    assert not node.journal.values


def test_owners_that_share_cpus_have_the_shorter_latency(tmp_path: Path) -> None:
    (tmp_path / DRIVER).parent.mkdir(parents=True)
    (tmp_path / DRIVER).write_text("haltpoll\n")
    first = moment_of([quiet_pod("first", "2", {CRIO_C_STATES: "max_latency:20"})])
    second = moment_of([quiet_pod("second", "2-3", {CRIO_C_STATES: "max_latency:100"})])
    for owners in (first.owners + second.owners, second.owners + first.owners):
        both = msgspec.structs.replace(first, owners=owners)
        files = CStates(str(tmp_path)).wanted(both).files
        assert {group: text for (group, _), text in files.items()} == {
            "/cpu2": "20",
            "/cpu3": "100",
        }


@pytest.mark.parametrize("driver", [None, "none"])
def test_a_machine_without_a_driver_has_a_problem_if_an_owner_asks(
    node: QuietMachine, driver: str | None
) -> None:
    (node.root / DRIVER).unlink()
    if driver is not None:
        node.put(DRIVER, driver)
    asks = moment_of([quiet_pod("asks", "2", {QUIET: "c-states"})])
    c_states = CStates(str(node.root))
    assert c_states.wanted(asks) == WantedFiles(problem="this machine has no cpuidle")
    assert c_states.wanted(moment_of([quiet_pod("other", "2", {})])) == WantedFiles()
