"""What the features of colocation decide by, and what they want."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from agent.allocate.pools import Decision
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS
from agent.node.usage import sampled_pod
from agent.usage.pod_strategies import PodStrategies, class_of, of_pod
from agent.usage.strategies import Strategies

CHECK_SECONDS: Final = 5.0
"""What does not change is compared with what the machine has so often."""
Key = tuple[str, str]
"""A group and a file of it."""


class ColocatedPod(msgspec.Struct, frozen=True):
    """A pod that runs, with the strategies in force for it."""

    uid: str
    title: str
    qos: QoS
    group: str
    containers: Mapping[str, str]
    """Their cgroups by name."""
    strategies: PodStrategies
    api_pod: ApiPod
    sandboxes: tuple[str, ...] = ()
    """Their cgroups."""


class Moment(msgspec.Struct, frozen=True):
    """The pods and the strategies of one second."""

    pods: tuple[ColocatedPod, ...] = ()
    strategies: Strategies = Strategies()
    decision: Decision | None = None
    """Of the last pass; None before the first."""


class WantedFiles(msgspec.Struct, frozen=True):
    """What a feature wants."""

    files: Mapping[Key, str] = {}
    """The contents of files."""
    problem: str = ""
    """Why it can't have, on this machine or now, what a strategy wants."""
    notes: tuple[str, ...] = ()
    """What people are told about them beside their number."""


class Feature(Protocol):
    """A feature. It is called from the thread of the passes."""

    name: str
    """One of `model.settings.colocation.FEATURES`."""

    def wanted(self, moment: Moment) -> WantedFiles:
        """What it wants now. Files that it wants no more get their values back. A feature that is
        off gets a moment without pods and strategies."""


def colocated(
    pods: Iterable[Pod], in_api: Mapping[str, ApiPod], strategies: Strategies
) -> Iterator[ColocatedPod]:
    """The pods that run on this kernel and that the API server knows.

    `in_api`: by uid."""
    for pod in pods:
        api_pod, sampled = in_api.get(pod.uid), sampled_pod(pod)
        if api_pod is not None and sampled is not None:
            in_force = strategies.pods.get(pod.title) or of_pod(strategies.slo, api_pod)[0]
            yield ColocatedPod(
                pod.uid,
                pod.title,
                class_of(api_pod),
                sampled.group,
                sampled.containers,
                in_force,
                api_pod,
                tuple(
                    each.group
                    for each in pod.sandboxes
                    if each.group is not None and not each.virtual
                ),
            )
