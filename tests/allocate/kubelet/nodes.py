"""Builders of static policies and pods."""

from __future__ import annotations

import msgspec

from agent.allocate.kubelet.static_policy import AllocationRefused, StaticOptions
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout, of
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod_request import ContainerCpu, PodCpu
from conformance.machines import cpus
from conformance.static_cpu_manager import (
    EMPTY,
    Exclusive,
    Placement,
    StaticPolicy,
    StaticState,
    allocate,
    make,
    remove,
    start,
)


def options(*names: str) -> StaticOptions:
    return msgspec.convert(dict.fromkeys(names, True), StaticOptions)


def machine(sockets: int, nodes: float, cores: int, threads: int) -> Layout:
    """CPU n + cores * thread is a thread of core n."""
    return of(cpus([sockets, nodes, cores, threads], "interleaved", sockets))


def policy(layout: Layout, *names: str, reserved: str = "0") -> StaticPolicy:
    return make(layout, options(*names), NumaPolicy.NONE, mask(reserved))


def pod(uid: str, *requests: str, init: tuple[str, ...] = ()) -> PodCpu:
    """A Guaranteed pod with containers c0, c1, ... and init containers i0, i1, ...; a request is a
    number of CPUs, with an `s` after it for a sidecar."""
    return PodCpu(
        uid,
        "guaranteed",
        tuple(_container(f"c{index}", each) for index, each in enumerate(requests)),
        tuple(_container(f"i{index}", each) for index, each in enumerate(init)),
    )


def _container(name: str, request: str) -> ContainerCpu:
    return ContainerCpu(name, int(float(request.rstrip("s")) * 1000), request.endswith("s"))


class Node:
    """A policy and its current state."""

    def __init__(self, policy: StaticPolicy, found: StaticState = EMPTY) -> None:
        self.policy = policy
        self.state = start(policy, found)

    def place(self, pod: PodCpu, container: str, *nodes: int) -> Placement:
        self.state, placement = allocate(self.policy, self.state, pod, container, nodes or None)
        return placement

    def cpus(self, pod: PodCpu, container: str, *nodes: int) -> str:
        """Allocates, and returns the assigned CPUs. Fails if none were assigned."""
        placement = self.place(pod, container, *nodes)
        assert isinstance(placement, Exclusive), placement
        return text(placement.cpus)

    def refused(self, pod: PodCpu, container: str, *nodes: int) -> AllocationRefused:
        before = self.state
        placement = self.place(pod, container, *nodes)
        assert isinstance(placement, AllocationRefused), placement
        assert self.state == before
        return placement

    def remove(self, pod: PodCpu, container: str) -> None:
        self.state = remove(self.state, pod.uid, container)

    @property
    def default(self) -> str:
        return text(self.state.default)


def mask(cpus: str) -> int:
    return CpuSet.parse(cpus).mask


def text(cpus: int) -> str:
    return str(CpuSet.from_int(cpus))
