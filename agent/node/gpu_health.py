"""The health of GPUs: the faults of a card, the action that each requires, and the evidence that
ends it.

There are two kinds of faults. A *state* is present while reports of the driver show it; it stays if
the driver does not answer. An *XID* is an event. It stays until later evidence shows that the
required action was taken (`_EVIDENCE`); an answer of the card is not such evidence. An XID that
requires only a restart of the application ends when the processes that used the card then no longer
use it, or after `RESTART_SECONDS`. No function reads a clock: times are arguments, in seconds since
1970."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.model.devices.gpus import (
    NOT_QUERIED,
    Gpu,
    GpuEvent,
    GpuInventory,
    GpuReading,
    GpuReport,
    SilentGpu,
)
from agent.model.objects import label_value


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


def parse_actions(text: str) -> GpuActions:
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


class GpuStates:
    """The faults that one report shows.

    `buses`: the PCI addresses of NVIDIA's GPUs, None before PCI was read."""

    def __init__(
        self,
        inventory: GpuInventory,
        readings: Collection[GpuReading],
        buses: Collection[str] | None,
    ) -> None:
        self._silent = inventory.silent
        self._enumerated = {gpu.uuid for gpu in inventory.gpus}
        self._places = {gpu.bus for gpu in inventory.gpus}
        self._readings = {each.uuid: each for each in readings}
        self._buses = buses

    def reading(self, gpu: Gpu) -> GpuReading | None:
        return self._readings.get(gpu.uuid)

    def enumerates(self, gpu: Gpu) -> bool:
        """Whether the driver lists the card, possibly without any value."""
        return gpu.uuid in self._enumerated or self._silence(gpu) is not None

    def replaced(self, gpu: Gpu) -> bool:
        """Whether another card has the address of this one."""
        return gpu.uuid not in self._enumerated and gpu.bus in self._places

    def removed(self, gpu: Gpu) -> bool:
        """Whether neither NVML nor PCI lists the card."""
        here = gpu.uuid in self._enumerated or self._buses is None or gpu.bus in self._buses
        return not here and self._silence(gpu) is None

    def of(self, gpu: Gpu) -> Iterator[tuple[str, str]]:
        """Reason and message of each fault."""
        silent = self._silence(gpu)
        if silent is not None:
            yield silent.fault, "the card does not answer the driver"
        elif gpu.uuid not in self._enumerated:
            there = self._buses is not None and gpu.bus in self._buses
            also = f", while PCI has a card at {gpu.bus}" if there else ""
            yield NOT_ENUMERATED, f"the driver does not list the card{also}"
        reading = self.reading(gpu)
        if reading is not None:
            yield from _conditions(reading)

    def unanswered(self, gpu: Gpu) -> frozenset[str]:
        """Reasons for which the driver did not report the value: the reading neither shows nor
        refutes them."""
        reading = self.reading(gpu) or GpuReading(gpu.uuid)
        rows, pages = reading.remapped, reading.retirement_pending
        answered = {
            REMAP_PENDING: rows is not None,
            REMAP_FAILED: rows is not None,
            RETIREMENT_PENDING: rows is not None or pages is not None,
            UNCORRECTABLE: rows is not None or reading.ecc_uncorrected is not None,
            ADVISED: reading.recovery_action is not None,
        }
        return frozenset(reason for reason, is_answered in answered.items() if not is_answered)

    def _silence(self, gpu: Gpu) -> SilentGpu | None:
        """The entry of a lost card. The driver may list it by its index only, without its UUID."""
        for silent in self._silent:
            nameless = not silent.uuid and gpu.uuid not in self._enumerated
            if silent.uuid == gpu.uuid or (nameless and silent.index == gpu.index):
                return silent
        return None


def _conditions(reading: GpuReading) -> Iterator[tuple[str, str]]:
    rows = reading.remapped
    if rows is not None and rows.failed:
        yield REMAP_FAILED, "no spare rows are left where memory failed"
    if rows is not None and rows.pending:
        yield REMAP_PENDING, "a reset will replace rows of memory that failed"
    if reading.retirement_pending:
        yield RETIREMENT_PENDING, "a reset will retire pages of memory that failed"
    # A card that remaps rows is not affected by a contained error.
    if rows is None and reading.ecc_uncorrected:
        errors = f"{reading.ecc_uncorrected} uncorrectable ECC errors"
        yield UNCORRECTABLE, f"{errors} since the driver's start"
    if reading.recovery_action:
        yield ADVISED, f"the driver advises recovery action {reading.recovery_action}"


RESTART_SECONDS: Final = 300
"""The longest time for which an XID with the action restart-app keeps a card unhealthy. It counts
if the card's processes are unknown, or do not end."""


class Evidence(enum.Enum):
    BOOTED = enum.auto()
    """The machine was booted after the XID."""
    RELOADED = enum.auto()
    """The driver was loaded again: its version differs, or its energy counter fell."""
    CLEARED = enum.auto()
    """A state that only a reset ends occurred after the XID, and has ended."""


_EVIDENCE: Final = {
    Action.RESTART_APP: frozenset(Evidence),
    Action.RESET: frozenset(Evidence),
    Action.REBOOT: frozenset({Evidence.BOOTED, Evidence.CLEARED}),
    Action.SUPPORT: frozenset({Evidence.BOOTED}),
}
RESET_ENDS: Final = frozenset({*STATES, DRIVER_NOT_LOADED})
"""States that only a reset of the card ends."""


class GpuCondition(msgspec.Struct, frozen=True):
    """A fault of a card."""

    reason: str
    action: Action
    since: int
    """For an XID the last time it was reported."""
    message: str
    holders: tuple[int, ...] | None = None
    """The processes that used the card in the first report after the XID and still use it; None
    before that report."""
    reloaded: bool = False
    """The evidence RELOADED was found."""
    cleared: bool = False
    """A state that only a reset ends has occurred since."""


class GpuCard(msgspec.Struct, frozen=True):
    """A card that the driver has listed."""

    gpu: Gpu
    seen: int
    """When it was listed last."""
    health_changed: int
    """When its health changed last."""
    gpu_conditions: tuple[GpuCondition, ...] = ()
    energy_millijoules: int | None = None
    """The last reading, which falls only when the driver restarts; None if there is none."""
    labels: dict[str, str] = {}
    """The labels of a card from an earlier run, until the driver lists it again."""

    @property
    def healthy(self) -> bool:
        return not self.gpu_conditions


class GpuHealth(msgspec.Struct, frozen=True):
    """The health of all cards."""

    cards: tuple[GpuCard, ...] = ()
    """By UUID."""
    driver: str = ""
    unclaimed: tuple[str, ...] = ()
    """PCI addresses of GPUs that NVML never listed, for example because no driver is loaded."""


def on_event(health: GpuHealth, event: GpuEvent, now: int, actions: GpuActions) -> GpuHealth:
    """The health after an event. An event without a card affects all cards."""
    if event.xid is None:
        return health
    reason = xid_reason(event.xid)
    action = actions[reason]
    if action is Action.IGNORE:
        return health
    where = "" if event.gpu_instance is None else f" in GPU instance {event.gpu_instance}"
    gpu_condition = GpuCondition(reason, action, now, f"XID {event.xid}{where}: {action.value}")
    return replace(
        health,
        cards=tuple(
            _with(
                card,
                [*(each for each in card.gpu_conditions if each.reason != reason), gpu_condition],
                now,
            )
            if event.uuid in ("", card.gpu.uuid)
            else card
            for card in health.cards
        ),
    )


def on_report(
    health: GpuHealth,
    report: GpuReport,
    now: int,
    actions: GpuActions,
    buses: Collection[str] | None = None,
    booted: int | None = None,
    restart_seconds: int = RESTART_SECONDS,
) -> GpuHealth:
    """The health after a report.

    `buses`: the PCI addresses of NVIDIA's GPUs, None before PCI was read.
    `booted`: the boot time, None if unknown."""
    if report.inventory is None:
        if report.fault in NOT_QUERIED:
            return health
        cards = [_without_driver(card, report, now, actions) for card in health.cards]
        return _summed(cards, health.driver, buses)
    states = GpuStates(report.inventory, report.readings, buses)
    driver = report.inventory.driver
    # A restored version was read from a label.
    other_driver = health.driver != "" and label_value(health.driver) != label_value(driver)
    update = _Update(states, now, actions, booted, restart_seconds, other_driver)
    by_uuid = {card.gpu.uuid: card for card in health.cards}
    for gpu in report.inventory.gpus:
        card = by_uuid.get(gpu.uuid, GpuCard(gpu, now, now))
        by_uuid[gpu.uuid] = replace(card, gpu=gpu, seen=now, labels={})
    for gpu in _named(report.inventory.silent):
        by_uuid.setdefault(gpu.uuid, GpuCard(gpu, now, now))
    cards = [update.at(card) for card in by_uuid.values() if not update.is_gone(card)]
    return _summed(cards, driver, buses)


def _summed(cards: Iterable[GpuCard], driver: str, buses: Collection[str] | None) -> GpuHealth:
    ordered = tuple(sorted(cards, key=lambda card: card.gpu.uuid))
    unclaimed = set(buses or ()) - {card.gpu.bus for card in ordered}
    return GpuHealth(ordered, driver, tuple(sorted(unclaimed)))


def _named(silent: Iterable[SilentGpu]) -> Iterator[Gpu]:
    """The cards of which the driver reports only UUID and address."""
    return (Gpu(each.uuid, each.index, each.bus) for each in silent if each.uuid and each.bus)


def _without_driver(card: GpuCard, report: GpuReport, now: int, actions: GpuActions) -> GpuCard:
    """The card keeps its faults, and gets the driver's fault in addition."""
    cleared = report.fault in RESET_ENDS
    fault = GpuCondition(report.fault, actions[report.fault], now, report.message)
    kept = {
        each.reason: replace(each, cleared=each.cleared or cleared)
        for each in card.gpu_conditions
        if is_xid(each.reason) or each.reason in STATES or each.reason == report.fault
    }
    return _with(card, {report.fault: fault, **kept}.values(), now)


class _Update:
    """The update of each card from one complete report."""

    def __init__(
        self,
        states: GpuStates,
        now: int,
        actions: GpuActions,
        booted: int | None,
        restart_seconds: int,
        other_driver: bool,
    ) -> None:
        self._states = states
        self._now = now
        self._actions = actions
        self._booted = booted
        self._restart_seconds = restart_seconds
        self._other_driver = other_driver

    def is_gone(self, card: GpuCard) -> bool:
        """Whether another card has replaced this one, or this one was removed before the last
        boot."""
        rebooted = self._booted is not None and self._booted > card.seen
        return self._states.replaced(card.gpu) or (rebooted and self._states.removed(card.gpu))

    def at(self, card: GpuCard) -> GpuCard:
        old = {each.reason: each.since for each in card.gpu_conditions}
        states = [
            GpuCondition(reason, action, old.get(reason, self._now), message)
            for reason, message in self._states.of(card.gpu)
            if (action := self._actions[reason]) is not Action.IGNORE
        ]
        reading = self._states.reading(card.gpu)
        energy = None if reading is None else reading.energy_millijoules
        before = card.energy_millijoules
        fell = energy is not None and before is not None and energy < before
        reloaded = self._other_driver or fell
        cleared = any(each.reason in RESET_ENDS for each in states)
        xids = [
            replace(each, reloaded=each.reloaded or reloaded, cleared=each.cleared or cleared)
            for each in card.gpu_conditions
            if is_xid(each.reason)
        ]
        # Another driver may never report such a state, which would then stay forever.
        unanswered = frozenset() if self._other_driver else self._states.unanswered(card.gpu)
        kept = [each for each in card.gpu_conditions if each.reason in unanswered]
        if not states and not kept and reading is not None:
            xids = [left for each in xids if (left := self._after(each, reading))]
        gpu = card.gpu if self._states.enumerates(card.gpu) else replace(card.gpu, index=-1)
        updated = replace(card, gpu=gpu, energy_millijoules=before if energy is None else energy)
        return _with(updated, [*xids, *states, *kept], self._now)

    def _after(self, gpu_condition: GpuCondition, reading: GpuReading) -> GpuCondition | None:
        """The XID after a report without any other fault of the card, None if it has ended."""
        evidence = {
            Evidence.BOOTED: self._booted is not None and self._booted > gpu_condition.since,
            Evidence.RELOADED: gpu_condition.reloaded,
            Evidence.CLEARED: gpu_condition.cleared,
        }
        if any(evidence[kind] for kind in _EVIDENCE[gpu_condition.action]):
            return None
        if gpu_condition.action is not Action.RESTART_APP:
            return gpu_condition
        if self._now - gpu_condition.since >= self._restart_seconds:
            return None
        if reading.processes is None:
            return gpu_condition
        now = {process.pid for process in reading.processes}
        holders = now if gpu_condition.holders is None else now & set(gpu_condition.holders)
        return replace(gpu_condition, holders=tuple(sorted(holders))) if holders else None


def _with(card: GpuCard, gpu_conditions: Iterable[GpuCondition], now: int) -> GpuCard:
    """The card with these faults, sorted, and the time at which its health changed."""
    new = replace(card, gpu_conditions=tuple(sorted(gpu_conditions, key=lambda each: each.reason)))
    return new if new.healthy == card.healthy else replace(new, health_changed=now)
