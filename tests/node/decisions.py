"""Decisions, and their publication in a snapshot."""

from __future__ import annotations

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.visibility.pod_devices import DeviceVisibility
from agent.model.pod.pods import Pod
from agent.node.publisher import Publisher
from tests.builders import machine, pod, running

PODS = (
    pod("a", "LSE", "1", containers=(running("c1"),)),
    pod("b", "LS", containers=(running("c2"), running("c3"))),
)


def decision(pods: tuple[Pod, ...] = PODS) -> Decision:
    return decide(machine(), pods, KubeletCpus(), {}, {})


def publish(
    publisher: Publisher,
    pods: tuple[Pod, ...] = PODS,
    *,
    blocked: dict[str, str] | None = None,
    listed_at: int = 1,
    fresh: bool = False,
    visibility: DeviceVisibility | None = None,
) -> None:
    publisher.publish(
        decision(pods), pods, blocked or {}, False, listed_at, fresh=fresh, visibility=visibility
    )
