"""The devices that a scheduler gave a pod (annotation device-allocated, koordinator.md §1.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.model import jsontext
from agent.model.annotations import AnnotationError
from agent.model.jsontext import JsonError
from agent.model.quantities import Quantity, QuantityError, whole

DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
GPU_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
"""A label of pods that want a part of a GPU enforced, by the library that it names."""

Holdings = dict[tuple[str, int], dict[str, int]]
"""By type and minor of a device, and by resource, what is held of it, in units."""


def allocated(annotations: Mapping[str, str]) -> Holdings:
    """What one pod holds, nothing where it was given none; negative amounts are none. Raises
    AnnotationError."""
    text = annotations.get(DEVICE_ALLOCATED)
    if not text:
        return {}
    try:
        by_type = jsontext.decode(_decoder, text) or {}
    except JsonError as error:
        raise AnnotationError(DEVICE_ALLOCATED, str(error)) from None
    found: Holdings = {}
    for kind, devices in by_type.items():
        for place, device in enumerate(devices or ()):
            of_device = found.setdefault((kind, device.minor), {})
            for name, quantity in (device.resources or {}).items():
                try:
                    amount = whole(quantity)
                except QuantityError as error:
                    where = f"{kind[:40]}[{place}].resources[{name[:60]!r}]"
                    raise AnnotationError(DEVICE_ALLOCATED, f"{where}: {error}") from None
                of_device[name] = of_device.get(name, 0) + max(0, amount)
    return found


def together(holdings: Iterable[Holdings]) -> Holdings:
    """What several pods hold."""
    sums: Holdings = {}
    for each in holdings:
        for device, amounts in each.items():
            of_device = sums.setdefault(device, {})
            for name, amount in amounts.items():
                of_device[name] = of_device.get(name, 0) + amount
    return sums


class _Allocation(msgspec.Struct, frozen=True):
    minor: int
    resources: dict[str, Quantity] | None = None


_decoder: Final = msgspec.json.Decoder(dict[str, tuple[_Allocation, ...] | None] | None)
