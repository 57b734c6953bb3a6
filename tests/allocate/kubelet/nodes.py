"""Builders of static policies."""

from __future__ import annotations

import msgspec

from agent.allocate.kubelet.static_policy import StaticOptions
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout, of
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod_request import PodCpu
from conformance.machines import cpus
from conformance.static_cpu_manager import (
    EMPTY,
    Placement,
    StaticPolicy,
    StaticState,
    allocate,
    make,
    start,
)


def options(*names: str) -> StaticOptions:
    return msgspec.convert(dict.fromkeys(names, True), StaticOptions)


def machine(sockets: int, nodes: float, cores: int, threads: int) -> Layout:
    """CPU n + cores * thread is a thread of core n."""
    return of(cpus([sockets, nodes, cores, threads], "interleaved", sockets))


def policy(layout: Layout, *names: str, reserved: str = "0") -> StaticPolicy:
    return make(layout, options(*names), NumaPolicy.NONE, mask(reserved))


class Node:
    """A policy and its current state."""

    def __init__(self, policy: StaticPolicy, found: StaticState = EMPTY) -> None:
        self.policy = policy
        self.state = start(policy, found)

    def place(self, pod: PodCpu, container: str, *nodes: int) -> Placement:
        self.state, placement = allocate(self.policy, self.state, pod, container, nodes or None)
        return placement


def mask(cpus: str) -> int:
    return CpuSet.parse(cpus).mask
