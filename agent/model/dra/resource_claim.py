"""ResourceClaims (resource.k8s.io/v1), as far as the driver `cpu.topolet.io` reads them: which
devices of it a scheduler allocated, how much of each, and with which parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.model.dra import cpu_parameters
from agent.model.dra.cpu_parameters import CpuParameters, ParametersError
from agent.model.dra.names import DRIVER, PEER_DRIVER
from agent.model.objects import ObjectError, ObjectIdentity, decoded
from agent.model.quantities import Quantity, QuantityError, milli, whole

KIND: Final = "ResourceClaim"
CPU: Final = "cpu"
MEMORY: Final = "memory"
HUGE_PAGES: Final = "hugepages_"
"""The capacities of a device. The API allows no other character in the names of huge pages; the
size follows as in resource names: `hugepages_2Mi`."""

MAX_RESULTS: Final = 32
MAX_CONFIGS: Final = 64
"""Those of the claim and those of its DeviceClasses, 32 each."""
MAX_CONSUMERS: Final = 256
"""The API's limits (Kubernetes: AllocationResultsMaxSize, DeviceConfigMaxSize and
ResourceClaimReservedForMaxSize in resource/v1/types.go)."""


class ClaimedGroup(msgspec.Struct, frozen=True):
    """What a claim has of one device."""

    request: str
    """The request in the claim; `request/subrequest` for one of a prioritized list."""
    pool: str
    device: str
    cpu_milli: int | None = None
    """None for a whole device."""
    amounts: Mapping[str, int] = {}
    """The other capacities by name, in bytes."""
    share: str | None = None
    """The share's id; None if nobody else may have a part of the device."""
    admin: bool = False
    """The claim looks at the device and takes nothing of it."""
    parameters: CpuParameters = CpuParameters()


class ClaimConsumer(msgspec.Struct, frozen=True):
    """A pod that the claim is reserved for."""

    name: str = ""
    uid: str = ""


class CpuResourceClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim with CPUs."""

    uid: str
    namespace: str
    name: str
    allocated: bool
    """Whether a scheduler has allocated it."""
    groups: tuple[ClaimedGroup, ...] = ()
    """What it has of devices of this driver, in the order of the allocation."""
    consumers: tuple[ClaimConsumer, ...] = ()
    pod_claim: str = ""
    """The name in the pod, if the claim was made from a template for one."""

    @property
    def title(self) -> str:
        """The name in logs and errors."""
        return f"{self.namespace}/{self.name}"


class _ClaimResult(msgspec.Struct, frozen=True, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None


class _Opaque(msgspec.Struct, frozen=True):
    driver: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Config(msgspec.Struct, frozen=True):
    source: str
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct, frozen=True):
    results: tuple[_ClaimResult, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


class _ClaimConsumer(ClaimConsumer, frozen=True):
    resource: str = ""


class _ClaimStatus(msgspec.Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_ClaimConsumer, ...] | None = None


class _ClaimMetadata(ObjectIdentity, frozen=True, rename="camel"):
    annotations: dict[str, str] | None = None


class _Claim(msgspec.Struct, frozen=True):
    metadata: _ClaimMetadata
    status: _ClaimStatus = _ClaimStatus()


_decoder: Final = msgspec.json.Decoder(_Claim)
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_NAME: Final = re.compile(r"[0-9a-z-]{1,63}")
"""Names of claims in pods are labels of DNS. The annotation is any text that the claim's author
wrote, and is a folder in containers."""
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_REQUEST: Final = re.compile(r"[0-9a-z-]{1,63}(?:/[0-9a-z-]{1,63})?")
"""File names are made of both."""
_OF_CLASS: Final = "FromClass"


def decode(text: bytes) -> CpuResourceClaim:
    """Raises ObjectError, also for parameters that can't be read."""
    claim = decoded(text, KIND, _decoder)
    metadata, status = claim.metadata, claim.status
    title = f"{metadata.namespace}/{metadata.name}"
    if not is_uid(metadata.uid):
        raise ObjectError(KIND, title, "metadata.uid: is not a uid")
    allocation = status.allocation
    devices = allocation.devices if allocation is not None else _Devices()
    of_driver = [entry for entry in devices.results or () if entry.driver == DRIVER]
    configs = devices.config or ()
    consumers = status.reserved_for or ()
    for field, entries, most in (
        ("allocation.devices.results", devices.results or (), MAX_RESULTS),
        ("allocation.devices.config", configs, MAX_CONFIGS),
        ("reservedFor", consumers, MAX_CONSUMERS),
    ):
        if len(entries) > most:
            raise ObjectError(KIND, title, f"status.{field}: has more than {most} entries")
    parameters = tuple(_parameters(configs, title)) if of_driver else ()
    pod_claim = (metadata.annotations or {}).get(_POD_CLAIM, "")
    return CpuResourceClaim(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        allocation is not None,
        tuple(_group(entry, parameters, title) for entry in of_driver),
        tuple(ClaimConsumer(user.name, user.uid) for user in consumers if user.resource == "pods"),
        pod_claim if _NAME.fullmatch(pod_claim) else "",
    )


def is_uid(text: str) -> bool:
    """Whether the text may be a uid of the API server, which is part of a file's name."""
    return _UID.fullmatch(text) is not None


_Parameters = tuple[tuple[str, ...], CpuParameters]
"""The requests that the parameters are for, none for all; and the parameters."""


def _parameters(configs: Iterable[_Config], title: str) -> Iterator[_Parameters]:
    """Those for this driver. Raises ObjectError."""
    for index, config in enumerate(configs):
        if config.opaque is None or config.opaque.driver not in (DRIVER, PEER_DRIVER):
            continue
        field = f"status.allocation.devices.config[{index}]"
        requests = config.requests or ()
        try:
            of_config = cpu_parameters.parsed(bytes(config.opaque.parameters))
        except ParametersError as error:
            raise ObjectError(KIND, title, f"{field}.opaque.parameters: {error}") from None
        if of_config.cpus and (config.source == _OF_CLASS or len(requests) != 1):
            # The CPUs of a class would be those of all its claims.
            text = "names CPUs, and is not of the claim, for one request"
            raise ObjectError(KIND, title, f"{field}: {text}")
        yield requests, of_config


_CAPACITY: Final = "status.allocation.devices.results: consumedCapacity"


def _group(entry: _ClaimResult, parameters: Iterable[_Parameters], title: str) -> ClaimedGroup:
    """Later parameters override earlier ones: the API server lists those of the class first."""
    if not _REQUEST.fullmatch(entry.request):
        field = "status.allocation.devices.results: request"
        raise ObjectError(KIND, title, f"{field}: {entry.request[:60]!r} is no name")
    of_request = CpuParameters()
    request, _, _ = entry.request.partition("/")
    for requests, of_config in parameters:
        if not requests or entry.request in requests or request in requests:
            of_request = of_config.over(of_request)
    amounts = {}
    cpu_milli = None
    for key, quantity in (entry.consumed_capacity or {}).items():
        name = key.removeprefix(f"{DRIVER}/")
        try:
            if name == CPU:
                cpu_milli = milli(quantity)
            else:
                amounts[name] = whole(quantity)
        except QuantityError as error:
            raise ObjectError(KIND, title, f"{_CAPACITY} {key[:60]}: {error}") from None
        if (cpu_milli or 0) < 0 or amounts.get(name, 0) < 0:
            text = f"{_CAPACITY} {key[:60]}: {str(quantity)[:60]} is below 0"
            raise ObjectError(KIND, title, text)
    return ClaimedGroup(
        entry.request,
        entry.pool,
        entry.device,
        cpu_milli,
        amounts,
        entry.share,
        bool(entry.admin_access),
        of_request,
    )
