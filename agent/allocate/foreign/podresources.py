"""The kubelet's PodResources as grants: devices of its plugins and of claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.model.holding import Grant, Source
from agent.model.podresources import PodName, PodResources


def grants(pods: Iterable[PodResources], uids: Mapping[PodName, str]) -> tuple[Grant, ...]:
    """`uids`: of the pods on the node, since the API names none; a pod that is not among them has
    ended, or comes with the next look."""
    found: list[Grant] = []
    for pod in pods:
        uid = uids.get(pod.key)
        if uid is None:
            continue
        for container in pod.containers:
            by_resource: dict[str, list[str]] = {}
            for device in container.devices:
                by_resource.setdefault(device.resource, []).append(device.id)
            found += [
                Grant(uid, container.name, resource, tuple(names), Source.CHECKPOINT)
                for resource, names in by_resource.items()
            ]
            found += [
                Grant(
                    uid,
                    container.name,
                    claimed.driver,
                    (claimed.device,),
                    Source.CLAIM,
                    f"{claim.namespace}/{claim.name}",
                    claimed.share or "",
                    claimed.cdi,
                )
                for claim in container.claims
                for claimed in claim.devices
            ]
    return tuple(found)
