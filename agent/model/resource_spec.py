"""What a pod asks for beyond amounts: how its CPUs lie on cores and on NUMA nodes.

Two annotations of Koordinator's: `resource-spec` and `numa-topology-spec`
(apis/extension/numa_aware.go).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from agent.model.annotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC, AnnotationError, decoded
from agent.model.policies import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy


class ResourceSpec(msgspec.Struct, frozen=True):
    """`required` None: nothing is required. DEFAULT in either place: the configured policy. No
    exclusive policy is configured, so the proposal's `Default` is NONE."""

    preferred: BindPolicy = BindPolicy.DEFAULT
    required: BindPolicy | None = None
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE


class NumaSpec(msgspec.Struct, frozen=True):
    """`policy` None: the node's. `exclusive` None: as the policy implies."""

    policy: NumaPolicy | None = None
    exclusive: NumaExclusive | None = None


class _ResourceSpecText(msgspec.Struct, frozen=True):
    preferred_bind: str = msgspec.field(default="", name="preferredCPUBindPolicy")
    required_bind: str = msgspec.field(default="", name="requiredCPUBindPolicy")
    exclusive: str = msgspec.field(default="", name="preferredCPUExclusivePolicy")


class _NumaSpecText(msgspec.Struct, frozen=True):
    policy: str = msgspec.field(default="", name="numaTopologyPolicy")
    exclusive: str = msgspec.field(default="", name="singleNUMANodeExclusive")


_resource_spec_decoder = msgspec.json.Decoder(_ResourceSpecText | None)
_numa_spec_decoder = msgspec.json.Decoder(_NumaSpecText | None)
_Word = TypeVar("_Word", bound=enum.StrEnum)


def resource_spec(annotations: Mapping[str, str]) -> ResourceSpec:
    """Fields that are absent have their defaults. Raises AnnotationError that names the field."""
    text = decoded(annotations, RESOURCE_SPEC, _resource_spec_decoder)
    if text is None:
        return ResourceSpec()

    def word(kind: type[_Word], value: str, field: str) -> _Word | None:
        return _word(kind, value, RESOURCE_SPEC, field)

    return ResourceSpec(
        word(BindPolicy, text.preferred_bind, "preferredCPUBindPolicy") or BindPolicy.DEFAULT,
        word(BindPolicy, text.required_bind, "requiredCPUBindPolicy"),
        word(
            ExclusivePolicy,
            "" if text.exclusive == BindPolicy.DEFAULT else text.exclusive,
            "preferredCPUExclusivePolicy",
        )
        or ExclusivePolicy.NONE,
    )


def numa_spec(annotations: Mapping[str, str]) -> NumaSpec:
    """Fields that are absent have their defaults. Raises AnnotationError that names the field."""
    text = decoded(annotations, NUMA_TOPOLOGY_SPEC, _numa_spec_decoder)
    if text is None:
        return NumaSpec()
    return NumaSpec(
        _word(NumaPolicy, text.policy, NUMA_TOPOLOGY_SPEC, "numaTopologyPolicy"),
        _word(NumaExclusive, text.exclusive, NUMA_TOPOLOGY_SPEC, "singleNUMANodeExclusive"),
    )


def _word(kind: type[_Word], value: str, key: str, field: str) -> _Word | None:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise AnnotationError(key, f"{field}: {value[:40]!r} is none of {known}") from None
