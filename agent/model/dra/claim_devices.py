"""The status of a ResourceClaim (resource.k8s.io/v1) as people read it: which devices of the driver
`cpu.topolet.io` a scheduler allocated, and which of their CPUs the node chose."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.dra.names import DRIVER
from agent.model.dra.resource_claim import KIND, MAX_RESULTS
from agent.model.objects import ObjectError, ObjectIdentity, decoded

READY: Final = "Ready"
"""The type of the driver's condition."""


class ClaimDevice(msgspec.Struct, frozen=True):
    """What a claim has of one device."""

    pool: str
    """The name of the node."""
    device: str
    admin: bool = False
    """The claim looks at the device and takes nothing of it."""
    cpus: str = ""
    """A list, "" while the claim is not prepared."""
    trouble: str = ""
    """Why it can't use all of them, "" if it can."""
    since: str = ""
    """Since when that is so, "" if it is unknown."""


class ClaimStatus(msgspec.Struct, frozen=True):
    """A claim with its devices of this driver, in the order of the allocation."""

    title: str
    allocated: bool
    devices: tuple[ClaimDevice, ...] = ()


class _DeviceName(msgspec.Struct, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    share: str | None = msgspec.field(default=None, name="shareID")

    @property
    def key(self) -> tuple[str, str, str | None]:
        return self.pool, self.device, self.share


class _AllocatedDevice(_DeviceName, frozen=True):
    admin: bool | None = msgspec.field(default=None, name="adminAccess")


class _DeviceCondition(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _DeviceData(msgspec.Struct, frozen=True):
    cpus: str = ""


class _ReportedDevice(_DeviceName, frozen=True):
    conditions: tuple[_DeviceCondition, ...] | None = None
    values: _DeviceData | None = msgspec.field(default=None, name="data")


class _AllocatedDevices(msgspec.Struct, frozen=True):
    results: tuple[_AllocatedDevice, ...] | None = None


class _AllocationOfClaim(msgspec.Struct, frozen=True):
    devices: _AllocatedDevices = _AllocatedDevices()


class _StatusOfClaim(msgspec.Struct, frozen=True):
    allocation: _AllocationOfClaim | None = None
    devices: tuple[_ReportedDevice, ...] | None = None


class _ClaimWithStatus(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity
    status: _StatusOfClaim = _StatusOfClaim()


_decoder: Final = msgspec.json.Decoder(_ClaimWithStatus)


def decode(text: bytes) -> ClaimStatus:
    """Raises ObjectError."""
    claim = decoded(text, KIND, _decoder)
    title = f"{claim.metadata.namespace}/{claim.metadata.name}"
    allocation, reported = claim.status.allocation, claim.status.devices or ()
    allocated = (allocation.devices.results or ()) if allocation is not None else ()
    if max(len(allocated), len(reported)) > MAX_RESULTS:
        raise ObjectError(KIND, title, f"status: has more than {MAX_RESULTS} devices")
    by_key = {device.key: device for device in reported if device.driver == DRIVER}
    return ClaimStatus(
        title,
        allocation is not None,
        tuple(
            _device(device, by_key.get(device.key))
            for device in allocated
            if device.driver == DRIVER
        ),
    )


def _device(allocated: _AllocatedDevice, reported: _ReportedDevice | None) -> ClaimDevice:
    device = ClaimDevice(allocated.pool, allocated.device, bool(allocated.admin))
    if reported is None or reported.values is None:
        return device
    ready = next((each for each in reported.conditions or () if each.type == READY), None)
    return msgspec.structs.replace(
        device,
        cpus=reported.values.cpus,
        trouble=ready.message if ready is not None and ready.status != "True" else "",
        since=(ready.last_transition_time or "") if ready is not None else "",
    )
