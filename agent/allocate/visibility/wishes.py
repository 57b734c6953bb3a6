"""What each container of a pod asks of devices, from the pod as the API server tells of it."""

from __future__ import annotations

from agent.allocate.devices.request import RequestError, asks
from agent.allocate.visibility.split import ContainerWish
from agent.model.apipods import ApiPod


def container_wishes(pod: ApiPod) -> tuple[ContainerWish, ...] | None:
    """In the order in which they start; None where what one asks for means something only together
    with what others do."""
    ordered = [(each, True) for each in pod.init_containers]
    ordered += [(each, False) for each in pod.containers]
    try:
        return tuple(
            ContainerWish(each.name, asks({**each.requests, **each.limits}), init, each.sidecar)
            for each, init in ordered
        )
    except RequestError:
        return None
