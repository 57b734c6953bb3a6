"""Containers that own fewer CPUs than the annotation of their pod, or the checkpoint of a static
kubelet, promises."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.pools import Decision
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.shares import sidecars
from agent.model.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.pods import ContainerState, Pod


class Shortfall(msgspec.Struct, frozen=True):
    """`container` of the pod was `promised` CPUs and has `held` of its own, each a CPU list.
    `by_kubelet`: the kubelet promised them, not the annotation."""

    uid: str
    title: str
    container: str
    promised: str
    held: str
    reason: str
    by_kubelet: bool = False

    @property
    def text(self) -> str:
        """A message that does not name the pod."""
        by = "the kubelet gave" if self.by_kubelet else f"annotation {RESOURCE_STATUS} claims"
        held = f"CPUs {self.held}" if self.held else "no CPUs"
        return (
            f"{by} CPUs {self.promised}, container {self.container} has {held} of its own: "
            f"{self.reason}"
        )


def find(
    pods: tuple[Pod, ...],
    decision: Decision,
    kubelet: KubeletCpus,
    holds: Mapping[str, CpuSet],
) -> tuple[Shortfall, ...]:
    """Of containers that exist, in the order of `pods`. `holds`: by container id, the CPUs that it
    holds or will start with."""
    refused = {each.uid: each.reason for each in decision.refusals}
    offline = {each.uid: each.offline for each in decision.owners if each.offline}
    owned = {each.uid: each.cpus for each in decision.owners}
    found = []
    for pod in pods:
        claimed = _claimed(pod)
        given = kubelet.containers.get(pod.uid, {}) if kubelet.static else {}
        sharing = sidecars(pod)
        for container in pod.containers:
            if container.state is ContainerState.ENDED or container.virtual:
                continue
            wanted = decision.pods[pod.uid].of(container.name)
            by_kubelet = container.name in given and (wanted.kubelet or wanted.hands_off)
            promised = given[container.name] if by_kubelet else claimed
            if not promised or (container.name in sharing and not by_kubelet):
                continue
            own = CpuSet.parse(wanted.cpuset or "") if wanted.exclusive else EMPTY
            if wanted.hands_off:
                # The kubelet gave CPUs to unknown containers of the pod.
                own = owned.get(pod.uid, EMPTY)
            held = own & holds.get(container.id, own)
            if len(held) >= len(promised):
                continue
            reason = refused.get(pod.uid) or wanted.blocked
            if pod.uid in offline:
                reason = reason or f"CPUs {offline[pod.uid]} are offline"
            if len(own) >= len(promised):
                reason = f"its cgroup lacks CPUs {own - held}"
            found.append(
                Shortfall(
                    pod.uid,
                    pod.title,
                    container.name,
                    str(promised),
                    str(held),
                    reason or "the agent decided otherwise",
                    by_kubelet,
                )
            )
    return tuple(found)


def _claimed(pod: Pod) -> CpuSet:
    try:
        return resource_status(pod.annotations).cpus()
    except AnnotationError:
        return EMPTY  # reported as a refusal
