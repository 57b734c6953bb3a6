"""A Node's annotations that keep CPUs from pods, as values (keys and shapes: Koordinator's)."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.annotations import AnnotationError, cpu_list, decoded, text_of
from agent.model.cpuset import CpuSet
from agent.model.quantities import Quantity, QuantityError, milli

SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
RESERVATION: Final = "node.koordinator.sh/reservation"
CPU_NORMALIZATION_RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
AMPLIFICATION_RATIO: Final = "node.koordinator.sh/resource-amplification-ratio"
NUMA_MEMORY_POLICY: Final = "node.koordinator.sh/numa-memory-policy"
"""A label; no value of it is defined, that it is there counts."""


class SystemQos(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The CPUs (Linux list) of SYSTEM pods; no other pod shares them where they are exclusive."""

    cpuset: str = ""
    cpuset_exclusive: bool = True

    def cpus(self) -> CpuSet:
        """Raises AnnotationError."""
        return cpu_list(SYSTEM_QOS, "cpuset", self.cpuset)


class ApplyPolicy(enum.StrEnum):
    """What a scheduler does with a reservation: it never uses it, or only its CPUs count. The agent
    treats them alike."""

    DEFAULT = "Default"
    RESERVED_CPUS_ONLY = "ReservedCPUsOnly"


class NodeReservation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What is kept from pods: CPUs by number (`reserved_cpus`, a Linux list), else by amount."""

    resources: dict[str, Quantity] = {}
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    apply_policy: ApplyPolicy | None = None

    def cpus(self) -> CpuSet:
        """Those that are named. Raises AnnotationError."""
        return cpu_list(RESERVATION, "reservedCPUs", self.reserved_cpus)

    def cpu_milli(self) -> int:
        """The amount of CPU, 0 where none is given. Raises AnnotationError."""
        try:
            amount = milli(self.resources.get("cpu", 0))
        except QuantityError as error:
            raise AnnotationError(RESERVATION, f"resources.cpu: {error}") from None
        if amount < 0:
            raise AnnotationError(RESERVATION, f"resources.cpu: {amount}m is below zero")
        return amount


MOST_AMPLIFICATION: Final = 1000
_MOST_RATIO: Final = 100
_MOST_BYTES: Final = bounds.OBJECT_VALUE_BYTES
_system_qos: Final = msgspec.json.Decoder(SystemQos | None)
_reservation: Final = msgspec.json.Decoder(NodeReservation | None)
_ratios: Final = msgspec.json.Decoder(dict[str, float] | None)


def system_qos(annotations: Mapping[str, str]) -> SystemQos:
    """One without CPUs where the node has none. Raises AnnotationError."""
    return decoded(annotations, SYSTEM_QOS, _system_qos, _MOST_BYTES) or SystemQos()


def node_reservation(annotations: Mapping[str, str]) -> NodeReservation:
    """An empty one where the node has none. Raises AnnotationError."""
    return decoded(annotations, RESERVATION, _reservation, _MOST_BYTES) or NodeReservation()


def cpu_normalization_ratio(annotations: Mapping[str, str]) -> float:
    """How much faster the node's CPUs are than the CPUs of requests; 1 without the annotation.
    Raises AnnotationError."""
    text = text_of(annotations, CPU_NORMALIZATION_RATIO, _MOST_BYTES)
    try:
        ratio = float(text or 1)
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio <= _MOST_RATIO:
        raise AnnotationError(
            CPU_NORMALIZATION_RATIO, f"{text[:40]!r} is no number from 1 to {_MOST_RATIO}"
        )
    return ratio


def amplification_ratios(annotations: Mapping[str, str]) -> dict[str, float]:
    """By resource, how many one unit of it is sold as; only those above 1, and 1000 at most. Raises
    AnnotationError."""
    ratios = decoded(annotations, AMPLIFICATION_RATIO, _ratios, _MOST_BYTES) or {}
    for name, ratio in ratios.items():
        if not ratio <= MOST_AMPLIFICATION:
            raise AnnotationError(
                AMPLIFICATION_RATIO, f"{name[:60]!r}: {ratio} is more than {MOST_AMPLIFICATION}"
            )
    return {name: ratio for name, ratio in ratios.items() if ratio > 1}
