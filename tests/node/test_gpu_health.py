"""Conditions of a GPU, and the evidence that ends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.devices.device_object import Condition, Device, DeviceTopology
from agent.model.devices.gpus import (
    Gpu,
    GpuEvent,
    GpuInventory,
    GpuProcess,
    GpuReading,
    GpuReport,
    RemappedRows,
    SilentGpu,
)
from agent.node import gpu_health as gpu_actions
from agent.node.gpu_health import (
    CATALOGUE,
    Action,
    GpuActionError,
    GpuActions,
    GpuHealth,
    on_event,
    on_report,
    parse_actions,
)
from agent.node.gpus import (
    CORDONED_GPUS,
    conditions,
    cordoned,
    device_entries,
    restored,
    unknown_cordons,
)

ACTIONS = GpuActions({})
HOUR = 3600
FIRST = 1_700_000_000

A, B = "GPU-a", "GPU-b"
GPUS = {
    A: Gpu(A, 0, "0000:07:00.0", "NVIDIA A100-SXM4-80GB", 1, 80 << 30),
    B: Gpu(B, 1, "0000:0f:00.0", "NVIDIA A100-SXM4-80GB", 0, 80 << 30),
}
BUSES = tuple(gpu.bus for gpu in GPUS.values())
GOOD = RemappedRows(0, False, False)


def pids(*numbers: int) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(number) for number in numbers)


def report(
    driver: str = "550", without: Sequence[str] = (), silent: Any = (), **of_a: Any
) -> GpuReport:
    """A successful report of two cards; `of_a`: the readings of the first."""
    gpus = tuple(gpu for uuid, gpu in GPUS.items() if uuid not in without)
    readings = tuple(
        GpuReading(gpu.uuid, remapped=GOOD, energy_millijoules=100, recovery_action=0, processes=())
        for gpu in gpus
    )
    readings = tuple(replace(each, **of_a) if each.uuid == A else each for each in readings)
    return GpuReport(
        inventory=GpuInventory(driver, gpus=gpus, silent=tuple(silent)), readings=readings
    )


def without_driver(fault: str) -> GpuReport:
    return GpuReport(fault, "message")


LOST = report(without=[A], silent=[SilentGpu(0, "GpuLost")])
MISSING = report(without=[A])
PENDING = report(remapped=RemappedRows(1, True, False))
PAGES_PENDING, PAGES_DONE = (
    report(remapped=None, retirement_pending=pending) for pending in (True, False)
)
ADVISED = report(recovery_action=1)
NO_READINGS = report(remapped=None, recovery_action=None)
REPEATED = report()
BUSY = report(processes=pids(1, 2))
XID = {number: GpuEvent(A, number) for number in (13, 43, 48, 63, 79, 94, 95, 154, 9999)}


def after(*steps: Any, actions: GpuActions = ACTIONS, **options: Any) -> list[list[str]]:
    """The conditions of the first card after a successful report and after each step, with an hour
    between two steps. A step is an event, a report, or a report with its options."""
    health, now = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES), FIRST
    found = []
    for step in steps:
        now += HOUR
        if isinstance(step, GpuEvent):
            health = on_event(health, step, now, actions)
        else:
            device_report, extra = step if isinstance(step, tuple) else (step, {})
            settings = {"buses": BUSES, "restart_seconds": 100 * HOUR, **options, **extra}
            health = on_report(health, device_report, now, actions, **settings)
        found.append([each.reason for each in health.cards[0].gpu_conditions])
        assert health.cards[1].healthy or isinstance(step, GpuReport)
    return found


@pytest.mark.parametrize(
    ("steps", "reasons"),
    [
        # Xids of an application, or that accompany another error.
        ([XID[43]], [[]]),
        ([XID[63], XID[154]], [[], []]),
        # A successful report does not end an XID (HAMi's issue 2200).
        ([XID[95], REPEATED, REPEATED], [["XID95"]] * 3),
        ([XID[9999], REPEATED], [["XID9999"]] * 2),
        # A reset: the card was missing, and is back.
        ([XID[95], LOST, REPEATED], [["XID95"], ["GpuLost", "XID95"], []]),
        ([XID[79], LOST, REPEATED], [["XID79"], ["GpuLost", "XID79"], []]),
        ([XID[95], MISSING, REPEATED], [["XID95"], ["NotEnumerated", "XID95"], []]),
        # Rows were remapped; the driver no longer advises an action.
        ([XID[48], PENDING, REPEATED], [["XID48"], ["RowRemapPending", "XID48"], []]),
        ([XID[95], ADVISED, REPEATED], [["XID95"], ["RecoveryAction", "XID95"], []]),
        # Before Ampere: pages were retired.
        ([XID[48], PAGES_PENDING, PAGES_DONE],
         [["XID48"], ["PageRetirementPending", "XID48"], []]),
        # The end of a condition that began before the XID does not end the XID.
        ([PENDING, XID[95], REPEATED],
         [["RowRemapPending"], ["RowRemapPending", "XID95"], ["XID95"]]),
        ([XID[95], LOST, XID[95], REPEATED], [["XID95"], *[["GpuLost", "XID95"]] * 2, ["XID95"]]),
        # The driver was reloaded, as its counters or its version show.
        ([XID[95], report(energy_millijoules=5)], [["XID95"], []]),
        ([XID[95], report(energy_millijoules=None), report(energy_millijoules=5)],
         [["XID95"], ["XID95"], []]),
        ([XID[95], report(driver="570")], [["XID95"], []]),
        ([XID[95], without_driver("DriverNotLoaded"), REPEATED],
         [["XID95"], ["DriverNotLoaded", "XID95"], []]),
        # Also if the report that shows it has another condition too.
        ([XID[95], report(energy_millijoules=5, remapped=RemappedRows(0, False, True)),
          REPEATED],
         [["XID95"], ["RowRemapFailure", "XID95"], []]),
        # This does not end a condition that requires a reboot, and a reset does not end one that
        # requires support.
        ([XID[79], report(driver="570")], [["XID79"]] * 2),
        ([XID[9999], LOST, REPEATED], [["XID9999"], ["GpuLost", "XID9999"], ["XID9999"]]),
        ([XID[79], (REPEATED, {"booted": FIRST + HOUR + 1})], [["XID79"], []]),
        ([XID[9999], (REPEATED, {"booted": FIRST + HOUR + 1})], [["XID9999"], []]),
        ([XID[79], (REPEATED, {"booted": FIRST})], [["XID79"]] * 2),
        # An error of an application ends when none of the processes of that time uses the
        # card.
        ([XID[94], BUSY, report(processes=pids(2, 3)), report(processes=pids(3))],
         [["XID94"], ["XID94"], ["XID94"], []]),
        ([XID[94], REPEATED], [["XID94"], []]),
        ([XID[94], BUSY, XID[94], report(processes=pids(3)), report(processes=pids(3))],
         [["XID94"]] * 5),
        # The processes are unknown, or others use the card: it ends after `restart_seconds`.
        ([XID[94], report(processes=None)], [["XID94"]] * 2),
        ([XID[94], (report(processes=None), {"restart_seconds": HOUR})], [["XID94"], []]),
        ([XID[94], BUSY, (BUSY, {"restart_seconds": 2 * HOUR})], [["XID94"], ["XID94"], []]),
        # Conditions of the current state appear and disappear with the readings.
        ([PENDING, REPEATED], [["RowRemapPending"], []]),
        ([PAGES_PENDING, PAGES_PENDING, PAGES_DONE], [*[["PageRetirementPending"]] * 2, []]),
        ([report(remapped=RemappedRows(9, False, True)), REPEATED], [["RowRemapFailure"], []]),
        ([report(remapped=None, ecc_uncorrected=2), report(remapped=None, ecc_uncorrected=0)],
         [["UncorrectableEcc"], []]),
        ([report(ecc_uncorrected=2)], [[]]),
        ([ADVISED, REPEATED], [["RecoveryAction"], []]),
        # A missing reading ends neither a condition nor an XID.
        ([PAGES_PENDING, NO_READINGS, PAGES_DONE], [*[["PageRetirementPending"]] * 2, []]),
        ([PENDING, NO_READINGS, REPEATED], [*[["RowRemapPending"]] * 2, []]),
        ([ADVISED, NO_READINGS, REPEATED], [*[["RecoveryAction"]] * 2, []]),
        ([report(remapped=None, ecc_uncorrected=2), NO_READINGS, report(ecc_uncorrected=0)],
         [*[["UncorrectableEcc"]] * 2, []]),
        # Remapped rows end a condition that exists only on cards without them.
        ([report(remapped=None, ecc_uncorrected=2), report(ecc_uncorrected=None)],
         [["UncorrectableEcc"], []]),
        ([XID[95], PENDING, NO_READINGS], [["XID95"], *[["RowRemapPending", "XID95"]] * 2]),
        ([PENDING, XID[95], NO_READINGS, REPEATED],
         [["RowRemapPending"], *[["RowRemapPending", "XID95"]] * 2, ["XID95"]]),
        ([PENDING, LOST, NO_READINGS, REPEATED],
         [["RowRemapPending"], ["GpuLost", "RowRemapPending"], ["RowRemapPending"], []]),
        # Except with another driver, which may not know it.
        ([PENDING, report(driver="440", remapped=None)], [["RowRemapPending"], []]),
        ([LOST, LOST, REPEATED], [["GpuLost"], ["GpuLost"], []]),
        ([report(without=[A], silent=[SilentGpu(5, "ResetRequired", A)])], [["ResetRequired"]]),
        ([report(without=[A], silent=[SilentGpu(7, "GpuLost")])], [["NotEnumerated"]]),
        ([report(without=[A], silent=[SilentGpu(0, "GpuLost", "GPU-x")])], [["NotEnumerated"]]),
        # Without a driver the cards stay as they were, and have that condition too.
        ([PENDING, without_driver("DriverMismatch"), without_driver("DriverHung"), REPEATED],
         [["RowRemapPending"], ["DriverMismatch", "RowRemapPending"],
          ["DriverHung", "RowRemapPending"], []]),
        # The end of the agent's child process does not end an XID.
        ([without_driver("ChildEnded"), XID[95], without_driver("ChildEnded")],
         [[], ["XID95"], ["XID95"]]),
    ],
)  # fmt: skip
def test_conditions_after_events_and_reports(steps: list[Any], reasons: list[list[str]]) -> None:
    assert after(*steps) == reasons


def test_a_site_that_ignores_a_reason() -> None:
    actions = parse_actions("95=ignore,RowRemapPending=ignore")
    assert after(XID[95], PENDING, actions=actions) == [[], []]


def test_a_card_that_pci_lists_and_nvml_does_not() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    health = on_report(health, MISSING, FIRST + 1, ACTIONS, BUSES)
    (gpu_condition,) = health.cards[0].gpu_conditions
    assert gpu_condition.message.endswith("while PCI has a card at 0000:07:00.0")
    health = on_report(health, MISSING, FIRST + 2, ACTIONS, BUSES[1:])
    (gpu_condition,) = health.cards[0].gpu_conditions
    assert gpu_condition.message == "the driver does not list the card"
    assert gpu_condition.since == FIRST + 1


def test_one_card_is_missing_in_nvml_from_the_start() -> None:
    health = on_report(GpuHealth(), MISSING, FIRST, ACTIONS, BUSES)
    assert [card.gpu.uuid for card in health.cards] == [B]
    assert health.unclaimed == ("0000:07:00.0",)
    assert on_report(health, report(), FIRST, ACTIONS, BUSES).unclaimed == ()
    assert on_report(health, without_driver("DriverHung"), FIRST, ACTIONS, BUSES).unclaimed == (
        "0000:07:00.0",
    )


def test_a_card_that_is_lost_from_the_start_is_known_by_its_uuid() -> None:
    lost = report(without=[A], silent=[SilentGpu(0, "GpuLost", A, BUSES[0])])
    health = on_report(GpuHealth(), lost, FIRST, ACTIONS, BUSES)
    assert [(card.gpu.uuid, card.healthy) for card in health.cards] == [(A, False), (B, True)]
    back = on_report(health, report(), FIRST + 1, ACTIONS, BUSES)
    assert (back.cards[0].healthy, back.cards[0].gpu) == (True, GPUS[A])


def test_a_condition_keeps_the_time_at_which_it_began() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    for fault in ("DriverMismatch", "DriverMismatch", "LetGo", "DriverMismatch"):
        health = on_report(
            health, without_driver(fault), health.cards[0].health_changed + 5, ACTIONS, BUSES
        )
    assert [each.since for each in health.cards[0].gpu_conditions] == [FIRST + 5]


def test_without_a_driver_from_the_start_there_are_no_gpus() -> None:
    health = on_report(GpuHealth(), without_driver("LibraryNotFound"), FIRST, ACTIONS, BUSES)
    assert (health.cards, health.unclaimed) == ((), BUSES)
    assert on_report(GpuHealth(), without_driver("LibraryNotFound"), FIRST, ACTIONS) == GpuHealth()


def test_a_card_in_the_slot_of_another_is_a_new_card() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    health = on_event(health, GpuEvent(A, 79), FIRST + 1, ACTIONS)
    new = replace(GPUS[A], uuid="GPU-new")
    inventory = GpuInventory("550", gpus=(new, GPUS[B]))
    health = on_report(health, GpuReport(inventory=inventory), FIRST + 2, ACTIONS, BUSES)
    assert [(card.gpu.uuid, card.healthy) for card in health.cards] == [
        (B, True),
        ("GPU-new", True),
    ]


def test_a_removed_card_is_forgotten_after_a_boot() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    listed = on_report(health, MISSING, FIRST + 9, ACTIONS, BUSES[1:], booted=FIRST - 1)
    assert [card.gpu.uuid for card in listed.cards] == [A, B]
    # PCI still lists it.
    listed = on_report(health, MISSING, FIRST + 9, ACTIONS, BUSES, booted=FIRST + 5)
    assert [card.gpu.uuid for card in listed.cards] == [A, B]
    # The driver still lists it.
    listed = on_report(health, LOST, FIRST + 9, ACTIONS, BUSES[1:], booted=FIRST + 5)
    assert [card.gpu.uuid for card in listed.cards] == [A, B]
    listed_after_removal = on_report(
        health, MISSING, FIRST + 9, ACTIONS, BUSES[1:], booted=FIRST + 5
    )
    assert [card.gpu.uuid for card in listed_after_removal.cards] == [B]


def test_an_xid_without_a_card_affects_all_cards() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    health = on_event(health, GpuEvent("", 79), FIRST + 1, ACTIONS)
    assert [card.healthy for card in health.cards] == [False, False]


def test_conditions_have_reason_action_and_time() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    health = on_event(health, GpuEvent(A, 94, 3), FIRST + 60, ACTIONS)
    health = on_event(health, GpuEvent(A, 79), FIRST + 120, ACTIONS)
    found = {each.type: each for each in conditions(health.cards[0])}
    assert list(found) == ["Healthy", "XID79", "XID94"]
    healthy = found["Healthy"]
    assert (healthy.status, healthy.reason) == ("False", "XID79")
    assert healthy.message == "XID79: XID 79: reboot; XID94: XID 94 in GPU instance 3: restart-app"
    assert healthy.last_transition_time == "2023-11-14T22:14:20Z"
    assert (found["XID94"].reason, found["XID79"].reason) == ("RestartApp", "Reboot")
    assert found["XID79"].last_transition_time == "2023-11-14T22:15:20Z"
    (healthy_card,) = conditions(health.cards[1])
    assert (healthy_card.type, healthy_card.status, healthy_card.last_transition_time) == (
        "Healthy",
        "True",
        "2023-11-14T22:13:20Z",
    )


def test_a_card_is_cordoned_by_uuid_or_address() -> None:
    gpus = GPUS.values()
    key = "topolet.io/cordoned-gpus"
    assert (
        cordoned({}, gpus) == cordoned({key: ""}, gpus) == cordoned({key: "GPU-x, 1"}, gpus) == {}
    )
    assert cordoned({key: " gpu-A,"}, gpus) == {A: f"annotation {key}"}
    assert cordoned({key: "0000:0F:00.0,GPU-a"}, gpus).keys() == {A, B}
    assert cordoned({}, gpus, released=True).keys() == {A, B}
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    found = device_entries(health, {}, cordoned={A: "why"})
    assert [(each.uuid, each.healthy) for each in found] == [(B, True), (A, False)]
    assert [each.type for each in found[1].conditions] == ["Cordoned", "Healthy"]
    assert [each.status for each in found[1].conditions] == ["True", "True"]


@pytest.mark.parametrize("name", ["00000000:07:00.0", "0000:07:00.0", "00000000:0F:00.0"])
def test_a_card_is_cordoned_by_the_address_in_nvidia_smis_format(name: str) -> None:
    annotations = {CORDONED_GPUS: name}
    assert len(cordoned(annotations, GPUS.values())) == 1
    assert unknown_cordons(annotations, GPUS.values()) == ()


def test_evidence_that_began_before_a_restart_counts_after_it() -> None:
    health = on_report(GpuHealth(), PENDING, FIRST, ACTIONS, BUSES)
    health = on_event(health, GpuEvent(A, 95), FIRST + 1, ACTIONS)
    again = restored(device_entries(health, {}), ACTIONS)
    assert not on_report(again, report(), FIRST + 3, ACTIONS, BUSES).cards[0].healthy
    health = on_report(health, ADVISED, FIRST + 2, ACTIONS, BUSES)
    again = restored(device_entries(health, {}), ACTIONS)
    assert on_report(again, report(), FIRST + 3, ACTIONS, BUSES).cards[0].healthy


def test_another_driver_than_before_a_restart_is_evidence() -> None:
    """An upgrade while no agent ran is known only by the version: readings are not stored."""
    health = on_event(
        on_report(GpuHealth(), report(), FIRST, ACTIONS), GpuEvent(A, 48), FIRST, ACTIONS
    )
    for driver, now, healthy_card in (
        ("550", "550", False),
        ("570", "550", True),
        ("", "550", False),
        ("550-beta", "550+beta", False),
    ):
        again = restored(device_entries(health, {}), ACTIONS, driver)
        after = on_report(again, report(now), FIRST + HOUR, ACTIONS, BUSES)
        assert after.cards[0].healthy is healthy_card


def test_conditions_of_other_writers_are_not_restored() -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    (device, *_) = device_entries(health, {})
    condition = conditions(health.cards[0])[0]
    foreign = tuple(
        replace(condition, type=type, status=status, last_transition_time=time)
        for type, status, time in [
            ("XID79", "False", ""),
            ("XIDs", "True", "soon"),
            ("Ready", "True", "0001-01-01T00:00:00"),
            ("XID43", "True", "2023-11-14T22:14:20Z"),
            ("RowRemapPending", "True", "2023-11-14T22:14:20Z"),
        ]
    )
    (card,) = restored([replace(device, conditions=foreign)], ACTIONS).cards
    assert card.healthy


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_outside_the_calendar_is_none(time: str) -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    (device, *_) = device_entries(health, {})
    edges = tuple(replace(each, last_transition_time=time) for each in device.conditions)
    again = restored([replace(device, conditions=edges)], ACTIONS)
    assert device_entries(again, {})[0].conditions[0].last_transition_time == "1970-01-01T00:00:00Z"


def test_a_gpu_listed_twice_counts_once() -> None:
    """Any user may write the Device object."""
    device = Device("gpu", A, 0, {}, topology=DeviceTopology(bus=GPUS[A].bus))
    again = restored([device, replace(device, minor=5)], ACTIONS)
    assert [(each.uuid, each.minor) for each in device_entries(again, {})] == [(A, 5)]
    other = restored([device, replace(device, uuid=B)], ACTIONS)
    assert [(each.uuid, each.minor) for each in device_entries(other, {})] == [(A, 0), (B, 1)]


def test_only_gpus_are_restored() -> None:
    nic = Device("rdma", "0000:1a:00.0", 0, {})
    nameless = Device("gpu", "", 0, {})
    assert restored([nic, nameless], ACTIONS) == GpuHealth()


@pytest.mark.parametrize(
    ("time", "since"),
    [
        ("2023-11-14T22:13:20Z", FIRST),
        ("2023-11-14T23:13:20+01:00", FIRST),
        ("2023-11-14T22:13:20", FIRST),
        ("soon", 0),
        ("", 0),
    ],
)
def test_times_of_other_writers(time: str, since: int) -> None:
    (device, *_) = device_entries(on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES), {})
    on_event = Condition("XID79", "True", "Reboot", "", time)
    (card,) = restored([replace(device, conditions=(on_event,))], ACTIONS).cards
    assert [(each.reason, each.since) for each in card.gpu_conditions] == [("XID79", since)]


_reports = st.one_of(
    st.builds(
        report,
        driver=st.sampled_from(["550", "570"]),
        without=st.sampled_from([[], [A], [A, B]]),
        silent=st.lists(
            st.builds(
                SilentGpu,
                st.integers(0, 2),
                st.sampled_from(["GpuLost", "ResetRequired", "NoAnswer"]),
                st.sampled_from(["", A, "GPU-x"]),
            ),
            max_size=2,
        ),
        energy_millijoules=st.one_of(st.none(), st.integers(0, 9)),
        remapped=st.one_of(
            st.none(), st.builds(RemappedRows, st.integers(0, 2), *[st.booleans()] * 2)
        ),
        retirement_pending=st.one_of(st.none(), st.booleans()),
        ecc_uncorrected=st.one_of(st.none(), st.integers(0, 2)),
        recovery_action=st.one_of(st.none(), st.integers(0, 2)),
        processes=st.one_of(
            st.none(), st.lists(st.integers(1, 3), max_size=2).map(lambda n: pids(*n))
        ),
    ),
    st.sampled_from(["DriverMismatch", "DriverNotLoaded", "GpuLost", "ChildEnded"]).map(
        without_driver
    ),
)
_steps = st.lists(
    st.one_of(
        _reports, st.builds(GpuEvent, st.sampled_from([A, B, ""]), st.sampled_from([None, *XID]))
    ),
    max_size=12,
)


def apply_steps(steps: list[Any], health: GpuHealth, now: int) -> GpuHealth:
    """The time of a transition is that of the step that caused it."""
    for step in steps:
        now += 1
        before = {card.gpu.uuid: card for card in health.cards}
        if isinstance(step, GpuEvent):
            health = on_event(health, step, now, ACTIONS)
        else:
            health = on_report(health, step, now, ACTIONS, BUSES, booted=FIRST - 1)
        for card in health.cards:
            old = before.get(card.gpu.uuid)
            if old is not None:
                assert card.health_changed == (
                    old.health_changed if old.healthy == card.healthy else now
                )
    return health


@given(_steps)
def test_every_card_is_listed_once_and_every_condition_has_its_time(
    steps: list[Any],
) -> None:
    health = apply_steps(steps, on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES), FIRST)
    uuids = [card.gpu.uuid for card in health.cards]
    assert uuids == sorted(set(uuids))
    assert {A, B} <= set(uuids)
    for card in health.cards:
        assert all(FIRST < each.since <= FIRST + len(steps) for each in card.gpu_conditions)
        assert len({each.reason for each in card.gpu_conditions}) == len(card.gpu_conditions)
        assert Action.IGNORE not in {each.action for each in card.gpu_conditions}


@given(_steps)
def test_an_xid_that_needs_support_lasts_until_a_boot(steps: list[Any]) -> None:
    health = on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES)
    health = on_event(health, GpuEvent(A, 9999), FIRST, ACTIONS)
    health = apply_steps(steps, health, FIRST)
    assert "XID9999" in {each.reason for each in health.cards[0].gpu_conditions}
    booted = on_report(health, report(energy_millijoules=1), FIRST + 99, ACTIONS, BUSES, FIRST + 98)
    assert booted.cards[0].healthy


@given(_steps)
def test_a_repeated_report_changes_nothing(steps: list[Any]) -> None:
    """Except that the first ends a condition that the second no longer shows."""
    health = apply_steps(steps, on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES), FIRST)
    once = on_report(health, report(), FIRST + 50, ACTIONS, BUSES)
    twice = on_report(once, report(), FIRST + 50, ACTIONS, BUSES)
    assert [card.gpu_conditions for card in twice.cards] == [
        card.gpu_conditions for card in once.cards
    ]


@given(_steps, st.sets(st.sampled_from([A, B])))
def test_a_restart_of_the_agent_changes_no_device(
    steps: list[Any], cordoned_uuids: set[str]
) -> None:
    health = apply_steps(steps, on_report(GpuHealth(), report(), FIRST, ACTIONS, BUSES), FIRST)
    places = {BUSES[0]: DeviceTopology(0, 1, "0000:00:01.0", BUSES[0])}
    before = device_entries(health, places, cordons := dict.fromkeys(cordoned_uuids, "why"))
    again = restored(before, ACTIONS)
    assert device_entries(again, places, cordons) == before
    # Neither does a driver that cannot be queried yet.
    waiting = on_report(again, without_driver("NoProcess"), FIRST + 99, ACTIONS, BUSES)
    assert device_entries(waiting, places, cordons) == before


@pytest.mark.parametrize(
    ("xid", "action"),
    [
        (13, Action.RESTART_APP),
        (31, Action.RESTART_APP),
        (43, Action.IGNORE),
        (45, Action.IGNORE),
        (48, Action.RESET),
        (62, Action.RESET),
        (63, Action.IGNORE),
        (64, Action.RESET),
        (74, Action.RESET),
        (79, Action.REBOOT),
        (94, Action.RESTART_APP),
        (95, Action.RESET),
        (109, Action.RESET),
        (119, Action.RESET),
        (120, Action.RESET),
        (140, Action.RESET),
        (149, Action.RESET),
        (154, Action.IGNORE),
        (158, Action.RESET),
        (54, Action.SUPPORT),
        (61, Action.SUPPORT),
        (9999, Action.SUPPORT),
    ],
)
def test_the_catalogue(xid: int, action: Action) -> None:
    assert GpuActions({})[gpu_actions.xid_reason(xid)] is action


def test_each_xid_is_in_one_row() -> None:
    rows = [set(gpu_actions.xids(text)) for text in gpu_actions.CATALOGUE_ROWS.values()]
    assert sum(map(len, rows)) == len(CATALOGUE)


def test_a_site_overrides_the_catalogue() -> None:
    actions = parse_actions(" 109=ignore, 64 = support ,*=reset, RowRemapPending=ignore,")
    assert (actions["XID109"], actions["XID64"]) == (Action.IGNORE, Action.SUPPORT)
    assert (actions["XID9999"], actions["XID94"]) == (Action.RESET, Action.RESTART_APP)
    assert (actions["RowRemapPending"], actions["GpuLost"]) == (Action.IGNORE, Action.REBOOT)
    assert (actions["DriverMismatch"], actions["XIDx"]) == (Action.SUPPORT, Action.SUPPORT)
    assert parse_actions("")["XID109"] is Action.RESET


@pytest.mark.parametrize(
    "text", ["109", "109=", "=reset", "x=reset", "109=panic", "-1=reset", "1²=reset", "12345=reset"]
)
def test_invalid_entries_are_named(text: str) -> None:
    with pytest.raises(GpuActionError, match="GPU action"):
        parse_actions(text)
