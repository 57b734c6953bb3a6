"""The health of GPUs: the faults of a card, and the evidence that ends each fault.

There are two kinds of faults. A *state* is present while reports of the driver show it; it stays if
the driver does not answer. An *XID* is an event. It stays until later evidence shows that the
required action was taken (`_EVIDENCE`); an answer of the card is not such evidence. An XID that
requires only a restart of the application ends when the processes that used the card then no longer
use it, or after `RESTART_SECONDS`. No function reads a clock: times are arguments, in seconds since
1970.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
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
from agent.node import gpu_actions
from agent.node.gpu_actions import Action, GpuActions


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
            yield gpu_actions.NOT_ENUMERATED, f"the driver does not list the card{also}"
        reading = self.reading(gpu)
        if reading is not None:
            yield from _conditions(reading)

    def unanswered(self, gpu: Gpu) -> frozenset[str]:
        """Reasons for which the driver did not report the value: the reading neither shows nor
        refutes them."""
        reading = self.reading(gpu) or GpuReading(gpu.uuid)
        rows, pages = reading.remapped, reading.retirement_pending
        answered = {
            gpu_actions.REMAP_PENDING: rows is not None,
            gpu_actions.REMAP_FAILED: rows is not None,
            gpu_actions.RETIREMENT_PENDING: rows is not None or pages is not None,
            gpu_actions.UNCORRECTABLE: rows is not None or reading.ecc_uncorrected is not None,
            gpu_actions.ADVISED: reading.recovery_action is not None,
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
        yield gpu_actions.REMAP_FAILED, "no spare rows are left where memory failed"
    if rows is not None and rows.pending:
        yield gpu_actions.REMAP_PENDING, "a reset will replace rows of memory that failed"
    if reading.retirement_pending:
        yield gpu_actions.RETIREMENT_PENDING, "a reset will retire pages of memory that failed"
    # A card that remaps rows is not affected by a contained error.
    if rows is None and reading.ecc_uncorrected:
        errors = f"{reading.ecc_uncorrected} uncorrectable ECC errors"
        yield gpu_actions.UNCORRECTABLE, f"{errors} since the driver's start"
    if reading.recovery_action:
        yield gpu_actions.ADVISED, f"the driver advises recovery action {reading.recovery_action}"


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
RESET_ENDS: Final = frozenset({*gpu_actions.STATES, gpu_actions.DRIVER_NOT_LOADED})
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
    reason = gpu_actions.xid_reason(event.xid)
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
        if gpu_actions.is_xid(each.reason)
        or each.reason in gpu_actions.STATES
        or each.reason == report.fault
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
            if gpu_actions.is_xid(each.reason)
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
