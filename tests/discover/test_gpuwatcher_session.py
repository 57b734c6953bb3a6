"""A session with the child process: the real NVML binding and a fake driver."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.discover.gpuwatcher import GpuSession, SessionError
from agent.model.devices.gpus import Ancestor, GpuEvent, GpuInventory, GpuReport, LinkEnd
from tests.discover import fakenvml, gpumachines
from tests.discover.fakenvml import FakeDriver, Machine
from tests.waiting import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.skipif(fakenvml.missing() is not None, reason=str(fakenvml.missing()))

GIB = 1 << 30
Start = Callable[..., tuple[FakeDriver, GpuSession]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    sessions: list[GpuSession] = []

    def started(machine: Machine, *without: str) -> tuple[FakeDriver, GpuSession]:
        driver = FakeDriver(tmp_path, machine, without)
        sessions.append(GpuSession(str(driver.root), driver.environment))
        return driver, sessions[-1]

    yield started
    for session in sessions:
        assert session.close()


def query(session: GpuSession) -> GpuReport:
    return session.report(DEADLINE_SECONDS)


def inventory(session: GpuSession) -> GpuInventory:
    found = query(session).inventory
    assert found is not None
    return found


def test_a100_hgx(start: Start) -> None:
    _, session = start(gpumachines.a100_hgx())
    report = query(session)
    found = report.inventory
    assert found is not None
    assert (found.driver, found.silent) == ("550.163.01", ())
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert [gpu.minor for gpu in found.gpus] == [2, 3, 0, 1, 6, 7, 4, 5]
    first = found.gpus[0]
    assert first.uuid == gpumachines.uuid(0)
    assert (first.bus, first.product) == ("0000:07:00.0", "NVIDIA A100-SXM4-80GB")
    assert (first.memory_bytes, first.module, first.capability) == (80 * GIB, 1, (8, 0))
    assert (first.serial, first.mig, first.instances) == ("1321021000000", False, ())
    assert {(link.end, link.version) for link in first.links} == {(LinkEnd.SWITCH, 3)}
    assert len(found.pairs) == 28
    assert {(pair.links, pair.mb_per_second, pair.peer) for pair in found.pairs} == {
        (12, 300_000, True)
    }
    assert [pair.ancestor for pair in found.pairs[:4]] == [
        Ancestor.SWITCHES,
        Ancestor.NODE,
        Ancestor.NODE,
        Ancestor.SYSTEM,
    ]
    reading = report.readings[0]
    assert (reading.sm_mhz, reading.gpu_percent) == (1410, 30)
    assert (reading.power_milliwatts, reading.energy_millijoules) == (70123, 1000)
    assert (reading.ecc_uncorrected, reading.recovery_action, reading.processes) == (0, 0, ())


def test_dgx1_has_the_links_of_its_cube_mesh(start: Start) -> None:
    _, session = start(gpumachines.dgx1())
    found = inventory(session)
    index = {gpu.uuid: gpu.index for gpu in found.gpus}
    links = {(index[pair.one], index[pair.two]): pair.links for pair in found.pairs}
    assert {pair: count for pair, count in links.items() if count} == gpumachines.DGX1_LINKS
    speeds = {(index[pair.one], index[pair.two]): pair.mb_per_second for pair in found.pairs}
    assert (speeds[0, 3], speeds[0, 1], speeds[0, 7]) == (50_000, 25_000, 0)
    assert {gpu.mig for gpu in found.gpus} == {None}


def test_mixed_models_and_a_pci_domain_of_five_digits(start: Start) -> None:
    _, session = start(gpumachines.mixed())
    found = inventory(session)
    assert [(gpu.product, gpu.minor, gpu.bus) for gpu in found.gpus] == [
        ("NVIDIA A100-PCIE-40GB", 1, "0000:3b:00.0"),
        ("Tesla T4", 0, "10000:01:00.0"),
    ]
    assert [(pair.peer, pair.links) for pair in found.pairs] == [(False, 0)]


def test_a_card_in_mig_mode_has_its_instances(start: Start) -> None:
    _, session = start(gpumachines.with_mig())
    found = inventory(session)
    assert [(gpu.mig, len(gpu.instances)) for gpu in found.gpus] == [
        (False, 0),
        (True, 2),
        (True, 0),
        (False, 0),
    ]
    instance = found.gpus[1].instances[1]
    assert instance.uuid.startswith("MIG-")
    assert (instance.index, instance.gpu_instance, instance.compute_instance) == (1, 2, 0)
    assert instance.slices == (3, 3)
    assert instance.memory_bytes == 20096 << 20


def test_readings_that_mig_mode_hides_are_reported_after_it(start: Start) -> None:
    undivided = gpumachines.a100_hgx()
    divided = dataclasses.replace(undivided.cards[0], mig=(1, 1))
    machine = Machine((divided,)).with_values(0, **{"return.nvmlDeviceGetUtilizationRates": 3})
    driver, session = start(machine)
    assert [each.gpu_percent for each in query(session).readings] == [None]
    driver.set_machine(Machine(undivided.cards[:1]))
    assert [each.gpu_percent for each in query(session).readings] == [30]


def test_an_instance_that_is_being_deleted_does_not_remove_its_card(start: Start) -> None:
    deleting = {"uuid": "MIG-1", "return.nvmlDeviceGetGpuInstanceId": 6}
    card = dataclasses.replace(gpumachines.with_mig().cards[1], instances=(deleting,))
    _, session = start(Machine((card,)))
    found = inventory(session)
    assert [(gpu.mig, gpu.instances) for gpu in found.gpus] == [(True, ())]


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMinorNumber"]
)
def test_a_card_of_unknown_kind_is_not_reported_as_another_kind(start: Start, call: str) -> None:
    """A card in MIG mode would count as an undivided one, and a card with memory of its own as one
    that uses the host's memory."""
    machine = gpumachines.with_mig()
    driver, session = start(machine)
    assert len(inventory(session).gpus) == 4
    driver.set_machine(machine.with_values(1, **{f"return.{call}": 999}))
    found = inventory(session)
    assert [gpu.index for gpu in found.gpus] == [0, 2, 3]
    assert [(each.uuid, each.fault) for each in found.silent] == [
        (machine.cards[1].uuid, "NoAnswer")
    ]


def test_gb10_has_no_memory_of_its_own(start: Start) -> None:
    _, session = start(gpumachines.gb10())
    report = query(session)
    assert report.inventory is not None
    assert [(gpu.product, gpu.memory_bytes) for gpu in report.inventory.gpus] == [
        ("NVIDIA GB10", None)
    ]
    assert report.readings[0].memory_used_bytes is None


def test_a_driver_without_gpus(start: Start) -> None:
    _, session = start(Machine())
    assert inventory(session).gpus == ()


def test_processes_with_and_without_samples_and_memory(start: Start) -> None:
    undivided = 0xFFFFFFFF
    machine = gpumachines.mixed().with_values(
        0,
        compute=f"100 512 {undivided} {undivided} 101 -1 3 0",
        graphics=f"100 512 {undivided} {undivided} 102 1 {undivided} {undivided}",
        samples="100 40 20 0 0",
    )
    _, session = start(machine)
    processes = query(session).readings[0].processes
    assert processes is not None
    assert [
        (each.pid, each.memory_bytes, each.gpu_instance, each.graphics, each.sm_percent)
        for each in processes
    ] == [
        (100, 512 << 20, None, False, 40),
        (101, None, 3, False, None),
        (102, 1 << 20, None, True, None),
    ]


def test_symbols_that_an_old_driver_lacks_give_unknown_values(start: Start) -> None:
    _, session = start(
        gpumachines.a100_hgx(),
        "nvmlDeviceGetModuleId",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlEventSetCreate",
    )
    report = query(session)
    assert report.inventory is not None
    gpu, reading = report.inventory.gpus[0], report.readings[0]
    assert (gpu.module, gpu.mig, gpu.memory_bytes) == (None, None, 80 * GIB)
    # The first layout counts the driver's reserved memory as used.
    assert (reading.memory_used_bytes, reading.remapped, reading.processes) == (
        600 << 20,
        None,
        None,
    )
    assert {pair.links for pair in report.inventory.pairs} == {0}
    assert query(session) == report


@pytest.mark.parametrize(
    ("code", "fault"), [(15, "GpuLost"), (16, "ResetRequired"), (28, "GpuLost"), (999, "NoAnswer")]
)
def test_a_card_that_stops_answering_does_not_affect_the_others(
    start: Start, code: int, fault: str
) -> None:
    machine = gpumachines.a100_hgx()
    driver, session = start(machine)
    assert len(inventory(session).gpus) == 8
    driver.set_machine(machine.with_values(3, **{"return": code}))
    found = inventory(session)
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert [(each.index, each.fault) for each in found.silent] == [(3, fault)]


def test_a_card_lost_before_its_readings_is_reported_with_its_uuid(start: Start) -> None:
    _, session = start(
        gpumachines.a100_hgx().with_values(3, **{"return.nvmlDeviceGetClockInfo": 15})
    )
    report = query(session)
    assert report.inventory is not None
    assert [(each.uuid, each.fault) for each in report.inventory.silent] == [
        (gpumachines.uuid(3), "GpuLost")
    ]
    assert gpumachines.uuid(3) not in {each.uuid for each in report.readings}


def test_a_card_without_permission_is_left_out(start: Start) -> None:
    _, session = start(
        gpumachines.mixed().with_values(1, **{"return.nvmlDeviceGetHandleByIndex_v2": 4})
    )
    found = inventory(session)
    assert (len(found.gpus), [each.fault for each in found.silent]) == (1, ["NoPermission"])


def test_invalid_text_makes_the_product_empty_or_the_card_unknown(start: Start) -> None:
    machine = (
        gpumachines.mixed().with_values(0, name="NVIDIA \udcff").with_values(1, uuid="GPU-\udcff")
    )
    _, session = start(machine)
    found = inventory(session)
    assert [(gpu.uuid, gpu.product) for gpu in found.gpus] == [(gpumachines.uuid(0), "")]
    assert [(each.index, each.fault) for each in found.silent] == [(1, "NoAnswer")]


def test_a_card_that_fell_off_the_bus_shifts_indices_but_not_uuids(start: Start) -> None:
    machine = gpumachines.a100_hgx()
    driver, session = start(machine)
    before = {gpu.uuid: gpu for gpu in inventory(session).gpus}
    driver.set_machine(Machine(machine.cards, machine.driver, (0, 1, 3, 4, 5, 6, 7), machine.pairs))
    after = inventory(session)
    assert [gpu.uuid for gpu in after.gpus] == [gpumachines.uuid(n) for n in (0, 1, 3, 4, 5, 6, 7)]
    assert {gpu.minor == before[gpu.uuid].minor for gpu in after.gpus} == {True}
    assert len(after.pairs) == 21


def test_ecc_errors_remapped_rows_and_the_drivers_advice_are_read(start: Start) -> None:
    machine = gpumachines.a100_hgx().with_values(5, ecc="7 2", remapped="1 2 1 0", field__230=1)
    _, session = start(machine)
    reading = query(session).readings[5]
    assert reading.ecc_uncorrected == 2
    assert reading.remapped is not None
    assert (reading.remapped.uncorrectable, reading.remapped.pending) == (2, True)
    assert (reading.remapped.failed, reading.recovery_action) == (False, 1)
    assert reading.retirement_pending is None


def test_a_card_before_ampere_reports_pages_that_wait_for_retirement(start: Start) -> None:
    machine = gpumachines.dgx1()
    driver, session = start(machine)
    assert {each.retirement_pending for each in query(session).readings} == {False}
    driver.set_machine(machine.with_values(2, retired__pending=1))
    readings = query(session).readings
    assert [each.retirement_pending for each in readings].index(True) == 2
    assert {each.remapped for each in readings} == {None}
    driver.set_machine(machine)
    assert {each.retirement_pending for each in query(session).readings} == {False}


def test_a_card_that_remaps_rows_is_not_queried_for_retired_pages(start: Start) -> None:
    _, session = start(gpumachines.a100_hgx().with_values(0, retired__pending=1))
    assert query(session).readings[0].retirement_pending is None


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"init": 18}, "DriverMismatch"),
        ({"init": 9}, "DriverNotLoaded"),
        ({"init": 4}, "NoPermission"),
        ({"init": 999}, "NoAnswer"),
        ({"alive": 18}, "DriverMismatch"),
        ({"alive": 9}, "DriverNotLoaded"),
        ({"alive": 1}, "SessionLost"),
        ({"return.nvmlDeviceGetCount_v2": 999}, "NoAnswer"),
        ({"return.nvmlDeviceGetCount_v2": 15}, "GpuLost"),
        ({"return.nvmlSystemGetDriverVersion": 999}, "NoAnswer"),
    ],
)
def test_without_a_driver_the_session_ends(
    start: Start, facts: dict[str, object], fault: str
) -> None:
    _, session = start(gpumachines.mixed().with_values(**facts))
    with pytest.raises(SessionError) as raised:
        query(session)
    assert raised.value.fault == fault


@pytest.mark.parametrize("free", [0, 1, 3])
def test_a_child_that_cannot_be_started_is_the_agents_fault(free: int) -> None:
    """No descriptor is free for the socket, for the child's streams, or for the pipe that reports
    the result of exec."""
    program = (
        "import os, resource\n"
        "from agent.discover.gpuwatcher import GpuSession, SessionError\n"
        f"limit = len(os.listdir('/proc/self/fd')) + {free}\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "before = os.listdir('/proc/self/fd')\n"
        "try:\n    GpuSession()\n"
        "except SessionError as error:\n"
        "    print(error.fault, before == os.listdir('/proc/self/fd'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stdout == b"NoProcess True\n", done.stderr


def test_a_missing_library_is_reported(tmp_path: Path) -> None:
    session = GpuSession(str(tmp_path))
    try:
        with pytest.raises(SessionError) as raised:
            query(session)
        assert raised.value.fault == "LibraryNotFound"
    finally:
        assert session.close()


def test_symbolic_links_to_the_library_are_resolved_below_the_drivers_root(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, gpumachines.mixed())
    folder = driver.root / "usr" / "lib64"
    (folder / "current").mkdir()
    (folder / fakenvml.SONAME).rename(folder / "current" / "library")
    alternatives = driver.root / "etc" / "alternatives"
    alternatives.mkdir(parents=True)
    (folder / fakenvml.SONAME).symlink_to("/etc/alternatives/nvml")
    (alternatives / "nvml").symlink_to("../../usr/lib64/current/library")
    session = GpuSession(str(driver.root), driver.environment)
    try:
        assert len(inventory(session).gpus) == 2
    finally:
        assert session.close()


def test_a_hanging_driver_takes_the_deadline_and_its_child_is_killed(start: Start) -> None:
    machine = gpumachines.mixed()
    driver, session = start(machine)
    query(session)
    driver.set_machine(machine.with_values(**{"sleep.nvmlDeviceGetCount_v2": 3_600_000}))
    with pytest.raises(SessionError) as raised:
        session.report(0.3)
    assert raised.value.fault == "DriverHung"
    assert session.close()
    assert session.ended()


def test_a_late_answer_is_not_used_for_the_next_query(start: Start) -> None:
    machine = gpumachines.mixed()
    driver, session = start(machine.with_values(**{"sleep.nvmlDeviceGetCount_v2": 500}))
    with pytest.raises(SessionError):
        session.report(0.01)
    driver.set_machine(Machine(machine.cards, enumerated=(1,)))
    # The first report may contain two cards or one; the second is requested after the change.
    assert len(inventory(session).gpus) == 1


def events_of(session: GpuSession) -> list[GpuEvent]:
    session.read_messages()
    return session.events


def test_xids_are_reported_with_card_and_instance(start: Start) -> None:
    driver, session = start(gpumachines.a100_hgx())
    query(session)
    driver.event(2, 79)
    driver.event(4, 94, gi=3, ci=0)
    driver.event(5, 1, type=0x2)
    eventually("three events", lambda: len(events_of(session)) == 3)
    assert session.events == [
        GpuEvent(gpumachines.uuid(2), 79),
        GpuEvent(gpumachines.uuid(4), 94, 3),
        GpuEvent(gpumachines.uuid(5)),
    ]


def test_the_xid_of_a_lost_card_has_its_uuid(start: Start) -> None:
    machine = gpumachines.a100_hgx()
    driver, session = start(machine)
    query(session)
    driver.set_machine(machine.with_values(2, **{"return": 15}))
    driver.event(2, 79)
    eventually("the event", lambda: len(events_of(session)) == 1)
    assert session.events == [GpuEvent(gpumachines.uuid(2), 79)]


def test_the_xid_of_a_card_that_falls_off_during_a_query_is_reported(start: Start) -> None:
    machine = gpumachines.a100_hgx()
    driver, session = start(machine)
    query(session)
    remaining = dataclasses.replace(machine, enumerated=(0, 1, 3, 4, 5, 6, 7))
    driver.set_machine(remaining.with_values(**{"sleep.nvmlDeviceGetCount_v2": 1000}))
    with pytest.raises(SessionError):
        session.report(0.01)

    def query_was_read() -> bool:
        unread = fcntl.ioctl(session.fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unread, sys.byteorder) == 0

    eventually("the child has read the query", query_was_read)
    driver.event(2, 79)
    assert len(inventory(session).gpus) == 7
    assert session.events == [GpuEvent(gpumachines.uuid(2), 79)]


def test_an_unreported_link_does_not_hide_later_ones(start: Start) -> None:
    _, session = start(gpumachines.a100_hgx().with_values(0, **{"link.3": "3 2 -"}))
    found = inventory(session)
    assert [link.number for link in found.gpus[0].links] == [*range(3), *range(4, 12)]
    assert found.pairs[0].links == 11


def test_links_are_read_once_for_the_same_cards_and_again_after_an_nvlink_error(
    start: Start,
) -> None:
    machine = gpumachines.a100_hgx()
    driver, session = start(machine)
    assert inventory(session).pairs[0].links == 12
    driver.set_machine(machine.with_values(0, links=6))
    assert inventory(session).pairs[0].links == 12
    driver.event(0, 74)
    eventually("the event", lambda: len(events_of(session)) == 1)
    assert inventory(session).pairs[0].links == 6


def test_links_that_come_up_later_are_reported_in_time(start: Start) -> None:
    """Links to NVSwitches wait for the fabric manager, which may start after the agent."""
    machine = gpumachines.a100_hgx()
    # Cards without events: a query waits for those of all cards.
    cards = tuple(dataclasses.replace(each, events=None) for each in machine.cards)
    linked = dataclasses.replace(machine, cards=cards)
    unlinked = tuple(dataclasses.replace(each, links=()) for each in cards)
    driver, session = start(dataclasses.replace(machine, cards=unlinked))
    assert inventory(session).pairs[0].links == 0
    driver.set_machine(linked)
    eventually("links", lambda: inventory(session).pairs[0].links == 12)


def test_repeated_failures_of_waiting_for_events_end_the_session(start: Start) -> None:
    machine = gpumachines.mixed()
    driver, session = start(machine)
    query(session)
    driver.set_machine(machine.with_values(**{"return.nvmlEventSetWait_v2": 999}))

    def session_ended() -> bool:
        try:
            session.read_messages()
        except SessionError as error:
            return error.fault == "NoAnswer"
        return False

    eventually("the session ends", session_ended)


@pytest.mark.parametrize("hangs", [False, True])
def test_the_child_ends_with_its_parent(tmp_path: Path, hangs: bool) -> None:
    machine = gpumachines.mixed()
    if hangs:
        machine = machine.with_values(**{"sleep.nvmlDeviceGetCount_v2": 3_600_000})
    driver = FakeDriver(tmp_path, machine)
    program = (
        "import os, signal\n"
        "from agent.discover.gpuwatcher import GpuSession, SessionError\n"
        f"session = GpuSession({str(driver.root)!r})\n"
        "try:\n    session.report(1 if %s else 30)\n"
        "except SessionError: pass\n"
        "print(session.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    ) % hangs
    done = subprocess.run(
        [sys.executable, "-c", program], env=driver.environment, capture_output=True, check=False
    )
    pid = int(done.stdout)
    eventually("the child has ended", lambda: not _running(pid))


def _running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_all_calls_come_from_one_thread(start: Start) -> None:
    """Threads would share the buffers of the binding, and read the answers to each other."""
    driver, session = start(gpumachines.a100_hgx())
    query(session)
    driver.event(2, 79)
    eventually("the event", lambda: len(events_of(session)) == 1)
    query(session)
    assert os.listdir(f"/proc/{session.pid}/task") == [str(session.pid)]


def test_the_agent_itself_does_not_load_the_binding() -> None:
    program = (
        "import sys, agent.discover.gpuwatcher\n"
        "print([each for each in ('pynvml', 'ctypes') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
