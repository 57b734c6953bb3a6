"""The opaque parameters of a ResourceClaim or a DeviceClass on CPUs.

A claim's author, an administrator (DeviceClass) or an external allocator writes them. An external
allocator that chooses the CPUs itself names them in this schema or in that of dra-driver-cpu
(OpaqueConfig in its api/v1alpha1), for the one driver or the other.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.cpu.policies import BindPolicy, ExclusivePolicy

API_VERSION: Final = "cpu.topolet.io/v1alpha1"
KIND: Final = "CpuParameters"
MAX_BYTES: Final = 10 << 10
"""The API server's limit (Kubernetes: OpaqueParametersMaxLength in resource/v1/types.go)."""

_OF_PEER: Final = "v1alpha1"
"""The API version in the schema of dra-driver-cpu."""


class ParametersError(ValueError):
    """Parameters that can't be read; the message names the field."""


class CpuSpread(enum.StrEnum):
    """How the CPUs lie in their device."""

    PACKED = "Packed"
    """On the fewest L3 caches."""
    EVENLY = "Evenly"
    """An equal part on each L3 cache."""


class ClaimMemoryPolicy(enum.StrEnum):
    """From which NUMA nodes the memory of the containers comes."""

    BIND = "Bind"
    """From those of the CPUs alone."""
    ANY = "Any"


class CpuParameters(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The parameters of one request. None: not set here; `over` combines them."""

    cpu_bind_policy: BindPolicy | None = None
    cpu_exclusive_policy: ExclusivePolicy | None = None
    spread: CpuSpread | None = None
    shared: bool | None = None
    """Whether the containers run on the shared pool too."""
    memory_policy: ClaimMemoryPolicy | None = None
    cpus: str = ""
    """The CPUs that an external allocator chose, as a list; "" lets the node choose."""

    @property
    def cpu_set(self) -> CpuSet:
        """`cpus` as a set."""
        return CpuSet.parse(self.cpus)

    def over(self, other: CpuParameters) -> CpuParameters:
        """These parameters, and those of `other` where a field is not set here."""
        unset = {
            name: getattr(other, name)
            for name in self.__struct_fields__
            if getattr(self, name) in (None, "")
        }
        return msgspec.structs.replace(self, **unset)


class _Own(CpuParameters, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: str = ""
    kind: str = ""


class _PeerCpus(msgspec.Struct, frozen=True):
    cpuset: str = ""


class _OfPeer(msgspec.Struct, frozen=True, rename="camel"):
    cpu_config: _PeerCpus = _PeerCpus()


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""


_version: Final = msgspec.json.Decoder(_Version)
_own: Final = msgspec.json.Decoder(_Own)
_of_peer: Final = msgspec.json.Decoder(_OfPeer)
_NO_BIND: Final = (BindPolicy.CONSTRAINED_BURST,)


def parsed(raw: bytes) -> CpuParameters:
    """The parameters in `opaque.parameters`. Raises ParametersError."""
    if len(raw) > MAX_BYTES:
        raise ParametersError(f"has more than {MAX_BYTES} bytes")
    try:
        version = bounds.decode(_version, raw).api_version
        if version == _OF_PEER:
            cpus = bounds.decode(_of_peer, raw).cpu_config.cpuset
            if not cpus:
                raise ParametersError("cpuConfig.cpuset: is empty")
            return CpuParameters(cpus=_checked(cpus, "cpuConfig.cpuset"))
        if version != API_VERSION:
            raise ParametersError(
                bounds.unknown_value("apiVersion", version, (API_VERSION, _OF_PEER))
            )
        own = bounds.decode(_own, raw)
    except JsonError as error:
        raise ParametersError(str(error)) from None
    if own.kind != KIND:
        raise ParametersError(bounds.unknown_value("kind", own.kind, (KIND,)))
    if own.cpu_bind_policy in _NO_BIND:
        raise ParametersError(f"cpuBindPolicy: {own.cpu_bind_policy} binds no CPUs")
    _checked(own.cpus, "cpus")
    fields = {name: getattr(own, name) for name in CpuParameters.__struct_fields__}
    return CpuParameters(**fields)


def _checked(cpus: str, field: str) -> str:
    try:
        CpuSet.parse(cpus)
    except CpuSetError as error:
        raise ParametersError(bounds.reason(f"{field}: {error}")) from None
    return cpus
