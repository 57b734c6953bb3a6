"""What schedulers gave to the pods of a node, and what of it others have too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.allocate.foreign.coexistence import conflicts
from agent.allocate.foreign.existing import of_allocation
from agent.model import device_allocation
from agent.model.annotations import AnnotationError
from agent.model.device_allocation import GivenDevices, Holdings
from agent.model.devices import Device
from agent.model.holding import Form, Holding
from agent.model.pods import Pod


def given(pods: Iterable[Pod]) -> tuple[dict[str, GivenDevices], tuple[str, ...]]:
    """By pod (uid) what schedulers gave it, and what of it can't be read."""
    found: dict[str, GivenDevices] = {}
    troubles = []
    for pod in pods:
        try:
            of_pod = device_allocation.given(pod.annotations)
        except AnnotationError as error:
            troubles.append(f"pod {pod.title}: {error}")
            continue
        if any(of_pod.values()):
            found[pod.uid] = {kind: devices for kind, devices in of_pod.items() if devices}
    return found, tuple(troubles)


def had_twice(
    held: Mapping[str, Holdings],
    devices: Iterable[Device],
    holdings: Iterable[Holding],
    pods: Mapping[str, Pod],
) -> Iterator[str]:
    """What two pods have that may not: one of them came by a way that nobody could hold up."""
    devices = tuple(devices)
    allocations = (
        holding
        for uid, of_pod in sorted(held.items())
        for holding in of_allocation(uid, of_pod, {}, devices)
    )
    capacities = {(device.type, device.uuid): device.resources for device in devices}
    of_devices = (each for each in holdings if each.form is not Form.CPUS)
    for each in conflicts((*allocations, *of_devices), capacities):
        kept, refused = (pods[it.uid].title for it in (each.kept, each.refused))
        what = f"{each.kept.type} {each.kept.device}"
        yield f"pod {refused} has {what} beside pod {kept}, by {each.refused.source.value}"
