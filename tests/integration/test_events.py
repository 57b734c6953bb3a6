"""The agent receives the events of containerd 2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    create_container,
    create_request,
    remove_pod,
    run_sandbox,
    start_container,
)
from tests.integration.harness import NO_FULL_PASS, TestNode, fresh_node
from tests.waiting import eventually


@pytest.fixture
def agent_node(containerd2: Containerd) -> Iterator[TestNode]:
    """A node whose agent has received events, and makes full passes only at long intervals."""
    with fresh_node(containerd2) as node:
        node.start_agent(NO_FULL_PASS)
        wait_for_event(node)
        yield node


def triggers(node: TestNode, source: str) -> float:
    return node.metric(f'topolet_reconciliation_triggers_total{{trigger="{source}"}}')


def wait_for_event(node: TestNode) -> None:
    """Waits until the agent has received the event of a pod and waits for further events."""
    before = triggers(node, "runtime")
    remove_pod(node.direct, run_sandbox(node.direct, node.spec("event")))
    eventually("the agent gets the event", lambda: triggers(node, "runtime") > before)
    eventually(
        "the agent waits for events",
        lambda: node.metric("topolet_reconciliation_interval_seconds") == 600,
    )


def test_a_start_is_followed_by_its_cpuset_without_a_periodic_pass(agent_node: TestNode) -> None:
    before = {source: triggers(agent_node, source) for source in ("runtime", "timer")}
    for name in ("first", "second", "third"):
        spec = agent_node.spec(name, "LSE", "1")
        sandbox = run_sandbox(agent_node.direct, spec)
        container = create_container(agent_node.direct, create_request(spec, sandbox))
        assert agent_node.direct.container_status(container).pid == 0
        start_container(agent_node.direct, container)
        eventually(f"{name} is on its CPU", lambda id=container: agent_node.cpus(id) == "1")
        remove_pod(agent_node.direct, sandbox)
    assert triggers(agent_node, "runtime") > before["runtime"]
    assert triggers(agent_node, "timer") == before["timer"]


def test_events_of_a_restarted_runtime_are_received(agent_node: TestNode) -> None:
    agent_node.containerd.kill()
    agent_node.containerd.start()
    eventually("the agent is ready again", lambda: agent_node.get("/readyz")[0] == 200)
    wait_for_event(agent_node)
