"""Which pods get quiet CPUs, and how: by Topolet's annotation, by those of CRI-O, or as every owner
of the node does.

| annotation                     | value                                              |
|--------------------------------|----------------------------------------------------|
| `topolet.io/quiet`             | features (`QUIET_FEATURES`), separated by commas;  |
|                                | `all`, or `none`                                   |
| `cpu-load-balancing.crio.io`   | `disable`: `partitions`                            |
| `irq-load-balancing.crio.io`   | `disable`: `interrupts`; `housekeeping`: these,    |
|                                | but the first core of the pod keeps them           |
| `cpu-c-states.crio.io`         | `disable`, or `max_latency:MICROSECONDS`           |
| `cpu-freq-governor.crio.io`    | a governor of cpufreq                              |

`enable` in one of CRI-O's first three annotations takes the feature away. `cpu-quota.crio.io` needs
nothing: containers with CPUs of their own have no CPU quota (cri-o: docs/crio.8.md and
internal/runtimehandlerhooks/high_performance_hooks_linux.go)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.pod.annotations import AnnotationError, text_of

QUIET_FEATURES: Final = (
    "partitions",
    "interrupts",
    "host-slices",
    "workqueues",
    "packet-steering",
    "c-states",
    "frequency",
)
"""The names of the features of `node.quiet`."""
QUIET: Final = "topolet.io/quiet"
CRIO_LOAD_BALANCING: Final = "cpu-load-balancing.crio.io"
CRIO_INTERRUPTS: Final = "irq-load-balancing.crio.io"
CRIO_C_STATES: Final = "cpu-c-states.crio.io"
CRIO_GOVERNOR: Final = "cpu-freq-governor.crio.io"
QUIET_BYTES: Final = {
    QUIET: 256,
    CRIO_LOAD_BALANCING: 64,
    CRIO_INTERRUPTS: 64,
    CRIO_C_STATES: 64,
    CRIO_GOVERNOR: 64,
}
"""These annotations, with the longest length of each in bytes."""
HOUSEKEEPING: Final = "housekeeping"
PERFORMANCE: Final = "performance"
_GOVERNOR: Final = re.compile("[a-z_]{1,16}")  # CPUFREQ_NAME_LEN
_LATENCY: Final = re.compile("max_latency:([0-9]{1,7})")


class QuietWishes(msgspec.Struct, frozen=True):
    """What an owner of CPUs asks for."""

    features: frozenset[str] = frozenset()
    """They are of QUIET_FEATURES."""
    housekeeping: bool = False
    """Whether its first core keeps interrupts."""
    latency_us: int = 0
    """Idle states that take longer to leave are not used; 0: none is."""
    governor: str = PERFORMANCE


def quiet_wishes(
    annotations: Mapping[str, str], default: frozenset[str]
) -> tuple[QuietWishes, tuple[AnnotationError, ...]]:
    """The wishes of a pod, and the errors in its annotations, each of which asks for nothing.

    `default`: has the features of an owner that does not ask."""
    errors: list[AnnotationError] = []
    wishes = QuietWishes(default)
    for read in (_own, _switches, _idle_states, _governor):
        try:
            wishes = read(annotations, wishes)
        except AnnotationError as error:
            errors.append(error)
    return wishes, tuple(errors)


def quiet_features(text: str) -> frozenset[str]:
    """The features that a list names. Raises ValueError."""
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if words == ["all"]:
        return frozenset(QUIET_FEATURES)
    if words == ["none"]:
        return frozenset()
    allowed = ("all", "none", *QUIET_FEATURES)
    for word in words:
        if word not in QUIET_FEATURES:
            raise ValueError(bounds.unknown_value("feature", word, allowed))
    return frozenset(words)


def _own(annotations: Mapping[str, str], wishes: QuietWishes) -> QuietWishes:
    if QUIET not in annotations:
        return wishes
    text = text_of(annotations, QUIET, QUIET_BYTES[QUIET])
    try:
        return msgspec.structs.replace(wishes, features=quiet_features(text))
    except ValueError as error:
        raise AnnotationError(QUIET, str(error)) from None


def _switches(annotations: Mapping[str, str], wishes: QuietWishes) -> QuietWishes:
    features = set(wishes.features)
    for key, feature in _SWITCHES.items():
        value = text_of(annotations, key, QUIET_BYTES[key])
        allowed = _VALUES[key]
        if value and value not in allowed:
            raise AnnotationError(key, bounds.unknown_value("value", value, allowed))
        if value == "enable":
            features.discard(feature)
        elif value:
            features.add(feature)
    housekeeping = annotations.get(CRIO_INTERRUPTS) == HOUSEKEEPING
    return msgspec.structs.replace(wishes, features=frozenset(features), housekeeping=housekeeping)


_SWITCHES: Final = {CRIO_LOAD_BALANCING: "partitions", CRIO_INTERRUPTS: "interrupts"}
_VALUES: Final[Mapping[str, Collection[str]]] = {
    CRIO_LOAD_BALANCING: ("disable", "enable"),
    CRIO_INTERRUPTS: ("disable", "enable", HOUSEKEEPING),
}


def _idle_states(annotations: Mapping[str, str], wishes: QuietWishes) -> QuietWishes:
    value = text_of(annotations, CRIO_C_STATES, QUIET_BYTES[CRIO_C_STATES])
    if not value:
        return wishes
    if value == "enable":
        return msgspec.structs.replace(wishes, features=wishes.features - {"c-states"})
    latency = _LATENCY.fullmatch(value)
    if value != "disable" and latency is None:
        allowed = ("disable", "enable", "max_latency:MICROSECONDS")
        raise AnnotationError(CRIO_C_STATES, bounds.unknown_value("value", value, allowed))
    return msgspec.structs.replace(
        wishes,
        features=wishes.features | {"c-states"},
        latency_us=int(latency[1]) if latency else 0,
    )


def _governor(annotations: Mapping[str, str], wishes: QuietWishes) -> QuietWishes:
    value = text_of(annotations, CRIO_GOVERNOR, QUIET_BYTES[CRIO_GOVERNOR])
    if not value:
        return wishes
    if not _GOVERNOR.fullmatch(value):
        raise AnnotationError(CRIO_GOVERNOR, f"{value!r} is no name of a governor")
    return msgspec.structs.replace(wishes, features=wishes.features | {"frequency"}, governor=value)
