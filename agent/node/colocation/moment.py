"""What the features of colocation decide by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.allocate.pools import Decision
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS
from agent.node.usage import sampled_pod
from agent.usage.pod_strategies import PodStrategies, class_of, of_pod
from agent.usage.strategies import Strategies


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
