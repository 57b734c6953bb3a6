"""Which pods get quiet CPUs, and how: by Topolet's annotation, by those of CRI-O, or as every owner
of the node does.

| annotation                     | value                                              |
|--------------------------------|----------------------------------------------------|
| `topolet.io/quiet`             | features (`QUIET_FEATURES`), separated by commas;  |
|                                | `all`, or `none`                                   |
| `cpu-load-balancing.crio.io`   | `disable`: `partitions`                            |
| `irq-load-balancing.crio.io`   | `disable`: `interrupts`; `housekeeping` asks for   |
|                                | them too, and the first core of the pod keeps some |
| `cpu-c-states.crio.io`         | `disable`, or `max_latency:MICROSECONDS`           |
| `cpu-freq-governor.crio.io`    | a governor of cpufreq                              |
| `cpu-quota.crio.io`            | `disable`: nothing, because containers with CPUs   |
|                                | of their own have no CPU quota                     |

`enable` takes the feature away. CRI-O takes `true` for `disable` in the annotations that are
switches, and so does this module. Where CRI-O ignores a value, or refuses the container, the value
is an error here, and the pod runs (cri-o: docs/crio.8.md, pkg/annotations, and
internal/runtimehandlerhooks/high_performance_hooks_linux.go)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.pod.annotations import (
    CRIO_C_STATES,
    CRIO_GOVERNOR,
    CRIO_INTERRUPTS,
    CRIO_LOAD_BALANCING,
    CRIO_QUOTA,
    HOUSEKEEPING,
    QUIET,
    QUIET_BYTES,
    QUIET_FEATURES,
    AnnotationError,
    text_of,
)

PERFORMANCE: Final = "performance"
_GOVERNOR: Final = re.compile("[a-z_]{1,15}")  # CPUFREQ_NAME_LEN
_LATENCY: Final = re.compile("max_latency:([1-9][0-9]{0,8})")  # an s32 of the kernel
_ENABLE: Final = "enable"
_DISABLE: Final = "disable"
_DISABLES: Final = (_DISABLE, "true")


class QuietWishes(msgspec.Struct, frozen=True):
    """What an owner of CPUs asks for."""

    features: frozenset[str] = frozenset()
    """They are of QUIET_FEATURES."""
    housekeeping: bool = False
    """Whether its first core keeps interrupts; CRI-O keeps them on that of each container."""
    latency_us: int = 0
    """Idle states that take longer to leave are not used; 0: none is."""
    governor: str = PERFORMANCE


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


def quiet_wishes(
    annotations: Mapping[str, str], default: frozenset[str]
) -> tuple[QuietWishes, tuple[AnnotationError, ...]]:
    """The wishes of a pod, and the errors in its annotations, each of which changes nothing.

    `default`: has the features of an owner that does not ask."""
    errors: list[AnnotationError] = []
    wishes = QuietWishes(default)
    for key, read in _READERS.items():
        try:
            if text := text_of(annotations, key, QUIET_BYTES[key]):
                wishes = read(key, text, wishes)
        except AnnotationError as error:
            errors.append(error)
    return wishes, tuple(errors)


def _own(key: str, text: str, wishes: QuietWishes) -> QuietWishes:
    try:
        return msgspec.structs.replace(wishes, features=quiet_features(text))
    except ValueError as error:
        raise AnnotationError(key, str(error)) from None


def _switch(
    feature: str, key: str, text: str, wishes: QuietWishes, more: tuple[str, ...] = ()
) -> QuietWishes:
    """`more`: has further values that are allowed."""
    if text == _ENABLE:
        return _without(feature, wishes)
    if text not in _DISABLES:
        raise _unknown(key, text, *_DISABLES, _ENABLE, *more)
    return _with(feature, wishes)


def _interrupts(key: str, text: str, wishes: QuietWishes) -> QuietWishes:
    if text == HOUSEKEEPING:
        return msgspec.structs.replace(_with("interrupts", wishes), housekeeping=True)
    return _switch("interrupts", key, text, wishes, (HOUSEKEEPING,))


def _idle_states(key: str, text: str, wishes: QuietWishes) -> QuietWishes:
    if text == _ENABLE:
        return _without("c-states", wishes)
    latency = _LATENCY.fullmatch(text)
    if latency is None and text != _DISABLE:
        raise _unknown(key, text, _DISABLE, _ENABLE, "max_latency:MICROSECONDS")
    latency_us = int(latency[1]) if latency else 0
    return msgspec.structs.replace(_with("c-states", wishes), latency_us=latency_us)


def _governor(key: str, text: str, wishes: QuietWishes) -> QuietWishes:
    if not _GOVERNOR.fullmatch(text):
        raise AnnotationError(key, f"{text!r} is no name of a governor")
    return msgspec.structs.replace(_with("frequency", wishes), governor=text)


def _quota(key: str, text: str, wishes: QuietWishes) -> QuietWishes:
    """Changes nothing."""
    _switch("", key, text, wishes)
    return wishes


def _unknown(key: str, text: str, *allowed: str) -> AnnotationError:
    return AnnotationError(key, bounds.unknown_value("value", text, allowed))


def _with(feature: str, wishes: QuietWishes) -> QuietWishes:
    return msgspec.structs.replace(wishes, features=wishes.features | {feature})


def _without(feature: str, wishes: QuietWishes) -> QuietWishes:
    return msgspec.structs.replace(wishes, features=wishes.features - {feature})


_READERS: Final[Mapping[str, Callable[[str, str, QuietWishes], QuietWishes]]] = {
    QUIET: _own,
    CRIO_LOAD_BALANCING: partial(_switch, "partitions"),
    CRIO_INTERRUPTS: _interrupts,
    CRIO_C_STATES: _idle_states,
    CRIO_GOVERNOR: _governor,
    CRIO_QUOTA: _quota,
}
