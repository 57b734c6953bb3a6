"""One part of what a node allocates: its CPUs with NUMA amounts (`cpus`), its devices (`devices`),
or the NUMA nodes of its report (`zones`). A node allocator asks each part the same: whether the
node may take a pod, for an offer with its price, and whether an offer can still be committed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

import msgspec

from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.refusal import Refusal
from agent.allocate.steps import Steps
from agent.model.pod_request import PodRequest, Reads

Choice = TypeVar("Choice")


class Priced(msgspec.Struct, Generic[Choice], frozen=True):
    """What a part offers to a pod, and its price."""

    choice: Choice
    score: int | None = None
    """0 to 100, more is better; `None` if the part does not score the node for the pod."""
    order: tuple[int, ...] = ()
    """Smaller is better among equal scores."""
    avoided: bool = False
    """Whether the pod avoids the node: every other one is better."""


class NodePart(Protocol[Choice]):
    """Offers are to pods that hold nothing on the node."""

    properties: NodeProperties

    def admits(self, pod_request: PodRequest, steps: Steps) -> Refusal | None:
        """Why the node does not take the pod whatever is chosen for it; None if it may take it.
        Raises TooComplexError."""

    def offer(self, pod_request: PodRequest, steps: Steps) -> Priced[Choice] | Refusal:
        """Changes nothing. Raises TooComplexError."""

    def missing(self, pod_request: PodRequest, choice: Choice, steps: Steps) -> str:
        """What the offer needs and the node no longer has; "" if the node has all of it. Raises
        TooComplexError."""

    def record(self, pod: AssignedPod) -> None:
        """Adds a pod without checks."""

    def forget(self, pod: AssignedPod) -> None:
        """Removes a pod that was recorded."""

    def without(self, pods: Collection[AssignedPod]) -> NodePart[Choice]:
        """A copy in which these pods hold nothing."""

    def state(self, reads: Reads) -> object:
        """What an offer reads besides the properties; equal for equal states."""
