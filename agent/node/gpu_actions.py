"""The action that each fault of a GPU requires. For XIDs it is the immediate action in NVIDIA's
catalogue (docs.nvidia.com/deploy/xid-errors, Ampere and later), as far as it concerns the health of
a card. A site can override it.

Faults are named like Kubernetes reasons: `XID79`, `RowRemapPending`."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final


class GpuActionError(ValueError):
    """An invalid action table; the message names the entry."""


class Action(enum.StrEnum):
    """What a fault requires, from nothing to manual repair. `agent.node.gpu_health` has
    the evidence that ends each."""

    IGNORE = "ignore"
    RESTART_APP = "restart-app"
    RESET = "reset"
    REBOOT = "reboot"
    SUPPORT = "support"


def xids(text: str) -> Iterator[int]:
    """The XIDs of a row of the catalogue, such as `45 154-156`."""
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


# Ignored although the catalogue lists them: XIDs that add details to another XID (45, 154, 171,
# 172), and XIDs that require only monitoring (162-166). The workflows for NVLink and for 48 end in
# a reset.
CATALOGUE_ROWS: Final = {
    Action.IGNORE: "14 37 38 43-45 63 66 67 92 93 106-108 121 137 141 152-154 157 160-166 171 172",
    Action.RESTART_APP: "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 "
    "139 159",
    Action.RESET: "46 48 62 64 74 95 109 110 119 120 136 140 143-150 155 156 158 167 169",
    Action.REBOOT: "79 151",
}
CATALOGUE: Final[Mapping[int, Action]] = {
    number: action for action, text in CATALOGUE_ROWS.items() for number in xids(text)
}
ANY_OTHER: Final = Action.SUPPORT
"""The action for XIDs that the catalogue calls unused."""


LOST: Final = "GpuLost"
RESET_REQUIRED: Final = "ResetRequired"
NOT_ENUMERATED: Final = "NotEnumerated"
REMAP_PENDING: Final = "RowRemapPending"
REMAP_FAILED: Final = "RowRemapFailure"
RETIREMENT_PENDING: Final = "PageRetirementPending"
UNCORRECTABLE: Final = "UncorrectableEcc"
ADVISED: Final = "RecoveryAction"
DRIVER_NOT_LOADED: Final = "DriverNotLoaded"

STATES: Final[Mapping[str, Action]] = {
    LOST: Action.REBOOT,
    RESET_REQUIRED: Action.RESET,
    NOT_ENUMERATED: Action.REBOOT,
    REMAP_PENDING: Action.RESET,
    REMAP_FAILED: Action.SUPPORT,
    RETIREMENT_PENDING: Action.RESET,
    UNCORRECTABLE: Action.RESET,
    ADVISED: Action.RESET,
}
"""Faults that a report of the driver shows, with their actions."""

_XID: Final = "XID"


def xid_reason(number: int) -> str:
    return f"{_XID}{number}"


def is_xid(reason: str) -> bool:
    return reason.startswith(_XID) and reason[len(_XID) :].isdecimal()


class GpuActions:
    """The action for each reason. A reason without one is a fault of the driver, which needs an
    administrator: `SUPPORT`.

    `overrides`: the site's actions.
    `any_other`: the action for XIDs that the catalogue does not have."""

    def __init__(self, overrides: Mapping[str, Action], any_other: Action = ANY_OTHER) -> None:
        catalogue = {xid_reason(number): action for number, action in CATALOGUE.items()}
        self._actions = {**catalogue, **STATES, **overrides}
        self._any_other = any_other

    def __getitem__(self, reason: str) -> Action:
        return self._actions.get(reason, self._any_other if is_xid(reason) else Action.SUPPORT)


def parse(text: str) -> GpuActions:
    """Parses `109=ignore,RowRemapPending=ignore,*=reset`. A key is an XID or a state; `*` is every
    XID that the catalogue does not have. Raises GpuActionError."""
    overrides: dict[str, Action] = {}
    any_other = ANY_OTHER
    for entry in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = (part.strip() for part in entry.partition("="))
        try:
            action = Action(value)
        except ValueError:
            allowed = ", ".join(Action)
            raise GpuActionError(f"GPU action {entry!r}: {value!r} is none of {allowed}") from None
        if name == "*":
            any_other = action
        elif name in STATES:
            overrides[name] = action
        elif name.isascii() and name.isdecimal() and len(name) <= 4:
            overrides[xid_reason(int(name))] = action
        else:
            allowed = f"an XID or one of {', '.join(STATES)}"
            raise GpuActionError(f"GPU action {entry!r}: {name!r} is not {allowed}")
    return GpuActions(overrides, any_other)
