"""`topolet top` on a real terminal, with the files of a machine and of an agent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model import snapshot as snapshots
from agent.model.audit import AuditEvent, Record
from agent.model.devices.gpus import pci_address
from agent.node.sampler import NodeSampler
from agent.telemetry.audit import Trail
from tests.cli.conftest import Topolet
from tests.discover import buses, fakenvml, gpumachines
from tests.discover.fakenvml import FakeDriver
from tests.fixtures import screen, trees
from tests.fixtures.screen import EmulatedTerminal
from tests.view.top import nodes
from tests.waiting import eventually


@pytest.fixture
def command_line(tmp_path: Path) -> list[str]:
    """The command line, for a machine of two sockets whose agent does not run."""
    state = tmp_path / "state"
    state.mkdir()
    topology = nodes.machine(2, 1, 1, 4, 1)
    root = trees.write(str(tmp_path / "root"), trees.machine(2, 1, 1, 4, 1))
    load(tmp_path, 0)
    (state / "snapshot.json").write_bytes(snapshots.encode(nodes.snapshot(topology)))
    Trail(str(state), "agent", 1 << 20).append(
        [
            Record(
                event=AuditEvent.CPUS_ASSIGNED,
                namespace="ml",
                pod="train",
                uid="t",
                after="1-2",
                reason="ResourceStatus",
            )
        ]
    )
    return screen.topolet(
        "top",
        f"--root={root}",
        f"--state-dir={state}",
        f"--runtime-endpoint=unix://{tmp_path}/no.sock",
        f"--cgroup-root={tmp_path}/cgroup",
        "--node-name=node-a",
        "--every=0.2",
    )


def words_of(command_line: list[str]) -> list[str]:
    """Without the interpreter."""
    return command_line[command_line.index("top") :]


def load(folder: Path, ticks: int) -> None:
    """Writes /proc/stat: CPU 1 is always busy, the others never."""
    lines = [
        f"cpu{cpu} {ticks if cpu == 1 else 0} 0 0 {0 if cpu == 1 else ticks} 0 0 0 0"
        for cpu in range(8)
    ]
    (folder / "root" / "proc" / "stat").write_text("\n".join(lines) + "\n")


@pytest.fixture
def terminal(command_line: list[str]) -> Iterator[EmulatedTerminal]:
    with EmulatedTerminal(command_line) as terminal:
        terminal.until("the first frame", lambda text: "ml/train" in text)
        yield terminal


def test_the_whole_screen(terminal: EmulatedTerminal) -> None:
    text = terminal.until("the changes", lambda text: "The pod owns CPUs 1-2" in text)
    lines = terminal.lines
    assert "node-a  8 CPUs" in lines[0]
    assert "! the agent does not run: these are its last decisions" in lines[1]
    assert "q end" in lines[23]
    assert "Claim refused" in text or "more" in lines[2]


def test_loads_as_they_change(terminal: EmulatedTerminal, tmp_path: Path) -> None:
    for ticks in range(100, 10_000, 100):
        load(tmp_path, ticks)
        terminal.pump(0.1)
        if "1a█" in terminal.text:
            break
    assert "1a█" in terminal.until("the load of CPU 1", lambda text: "1a█" in text)
    row = next(number for number, line in enumerate(terminal.lines) if "1a█" in line)
    column = terminal.lines[row].index("1a█")
    assert terminal.colour_at(row, column) != "default"


def test_the_values_as_json(topolet: Topolet, command_line: list[str]) -> None:
    done = topolet(*words_of(command_line), "--output=json")
    document = done.json
    assert (document["schema_version"], document["node"]["node"]) == (1, "node-a")
    assert [pod["title"] for pod in document["node"]["pods"]][:2] == ["ml/train", "db/postgres"]
    assert document["loads"].keys() == {str(cpu) for cpu in range(8)}
    assert "hour" not in document, "no agent samples it"
    assert "the agent does not run" in document["problems"][0]


def test_a_new_decision(terminal: EmulatedTerminal, tmp_path: Path) -> None:
    topology = nodes.machine(2, 1, 1, 4, 1)
    text = snapshots.encode(nodes.snapshot(topology, shared=1))
    (tmp_path / "state" / "snapshot.json").write_bytes(text.replace(b"ml/train", b"ml/other"))
    terminal.until("the new pod", lambda text: ">a ml/other" in text and " 3 pods" in text)


def test_every_size(terminal: EmulatedTerminal) -> None:
    for columns, rows in ((200, 50), (60, 12), (30, 5), (80, 24)):
        terminal.resize(columns, rows)
        row, wanted = (0, "too small: 30x5, needs") if columns < 40 else (rows - 1, "q end")
        terminal.until(
            f"a frame of {columns}x{rows}",
            lambda text, row=row, wanted=wanted: wanted in terminal.lines[row],
        )
    terminal.until("the pods", lambda text: "ml/train" in text)


def test_keys(terminal: EmulatedTerminal) -> None:
    terminal.press("?")
    terminal.until("the help", lambda text: "PageUp, PageDown" in text)
    terminal.press("\x1b")
    terminal.until("the overview", lambda text: "Pools over" in text)
    terminal.press("/front-2\r")
    terminal.until("one pod", lambda text: "1 of 8 pods" in text and "filter front-2" in text)
    terminal.press("\x1b")
    terminal.until("all pods", lambda text: " 8 pods" in text)
    terminal.press("3\x1b[B")
    terminal.until("the second pod", lambda text: ">b db/postgres" in text)
    terminal.press("\r")
    terminal.until("the pod", lambda text: "Pod db/postgres" in text)
    assert (
        "the runtime does not answer"
        in terminal.until("the error", lambda text: "Asking" not in text)
        or "no cgroup" in terminal.text
        or "cannot" in terminal.text
    )
    terminal.press("\x1bf")
    terminal.until("the frozen screen", lambda text: "FROZEN" in text)
    terminal.press("q")
    assert terminal.ended() == 0


def test_the_filter_has_the_arrows_of_slow_terminals(terminal: EmulatedTerminal) -> None:
    """An escape sequence that arrives in parts is one key."""
    terminal.press("3")
    terminal.until("the page of pods", lambda text: "Pools over" not in text)
    for part in ("\x1b", "[B"):
        terminal.press(part)
    terminal.until("the second pod", lambda text: ">b db/postgres" in text)


@pytest.mark.parametrize("input_", ["</dev/null", "<&-"])
def test_without_keys(command_line: list[str], input_: str) -> None:
    """The command shows the node until a signal ends it."""
    command = " ".join(f"'{word}'" for word in command_line)
    with EmulatedTerminal(["bash", "-c", f"exec {command} {input_}"]) as terminal:
        terminal.until("the first frame", lambda text: "ml/train" in text)
        terminal.press("\x03")
        assert terminal.ended() == 0
        assert terminal.modes == terminal.modes_before


EXITS = [("q", None, 0), ("\x03", None, 0), (None, signal.SIGTERM, 143), (None, signal.SIGHUP, 129)]


@pytest.mark.parametrize(("key", "number", "code"), EXITS)
def test_the_terminal_is_restored_after_each_exit(
    terminal: EmulatedTerminal, key: str | None, number: signal.Signals | None, code: int
) -> None:
    assert terminal.modes != terminal.modes_before
    if number is not None:
        os.kill(terminal.pid, number)
    terminal.press(key or "")
    assert terminal.ended() == code
    assert terminal.modes == terminal.modes_before
    assert terminal.received.endswith(b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l")


def test_stopped_and_continued(command_line: list[str]) -> None:
    """A shell with job control stops the command, and has the terminal meanwhile."""
    command = " ".join(f"'{word}'" for word in command_line)
    shell = ["bash", "--norc", "-i", "-c", f"set -m; {command}; stty -a; echo STOPPED; read; fg"]
    with EmulatedTerminal(shell) as terminal:
        terminal.until("the first frame", lambda text: "q end" in text)
        terminal.press("\x1a")
        terminal.until("the shell", lambda text: "STOPPED" in text)
        assert " icanon" in terminal.text
        assert " echo " in terminal.text
        terminal.press("\n")
        terminal.until("the screen again", lambda text: "q end" in terminal.lines[-1])
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.modes == terminal.modes_before


def test_continued_after_a_stop_that_can_not_be_caught(terminal: EmulatedTerminal) -> None:
    os.kill(terminal.pid, signal.SIGSTOP)
    os.waitpid(terminal.pid, os.WUNTRACED)
    before = len(terminal.received)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until("a whole frame", lambda text: b"ml/train" in terminal.received[before:])


def test_the_connection_breaks(terminal: EmulatedTerminal) -> None:
    terminal.hang_up()
    assert terminal.ended() in (0, 129)


def test_nothing_is_written_while_nothing_changes(command_line: list[str]) -> None:
    """The test freezes the screen, because its clock changes every second."""
    with EmulatedTerminal([*command_line[:-1], "--every=0.1"]) as terminal:
        terminal.until("the first frame", lambda text: "ml/train" in text)
        terminal.press("f")
        terminal.until("the frozen screen", lambda text: "FROZEN" in text)
        terminal.pump(0.3)
        before = len(terminal.received)
        for _ in range(5):
            terminal.pump(0.1)
        assert len(terminal.received) == before


def test_ascii_without_colours(command_line: list[str]) -> None:
    plain = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    with EmulatedTerminal(command_line, environment=plain) as terminal:
        terminal.until("the first frame", lambda text: "ml/train" in text)
        assert terminal.text.isascii()
        assert b"38;5" not in terminal.received
        terminal.press("q")
        assert terminal.ended() == 0


def test_a_pipe_gets_one_picture(
    command_line: list[str], topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    printed = topolet(*words_of(command_line))
    assert printed.err == ""
    assert "\x1b" not in printed.out
    assert "web/front-5" in printed.out
    assert "S0 N0" in printed.out


def test_a_dumb_terminal_gets_one_picture(command_line: list[str]) -> None:
    with EmulatedTerminal(command_line, environment={"TERM": "dumb"}) as terminal:
        assert terminal.ended() == 0
        assert b"\x1b" not in terminal.received
        assert b"ml/train" in terminal.received


def test_ctrl_c_before_the_screen(
    command_line: list[str], monkeypatch: pytest.MonkeyPatch, topolet: Topolet
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeSampler, "observe", interrupted)
    topolet(*words_of(command_line), code=130)


def test_the_machine_can_not_be_read(
    command_line: list[str], tmp_path: Path, topolet: Topolet
) -> None:
    (tmp_path / "empty").mkdir()
    printed = topolet(*words_of(command_line), f"--root={tmp_path}/empty", code=1)
    assert printed.out == ""
    assert str(tmp_path / "empty") in printed.err


@pytest.mark.parametrize("every", ["0", "x", "1e9", "nan"])
def test_a_wrong_period(command_line: list[str], every: str, topolet: Topolet) -> None:
    printed = topolet(*words_of(command_line), f"--every={every}", code=2)
    assert "is not a number of seconds from 0.1 to 3600" in printed.err


def test_the_machine_vanishes_while_it_runs(terminal: EmulatedTerminal, tmp_path: Path) -> None:
    """For example an unmounted folder: the command restores the terminal, prints the reason and
    ends."""
    os.rename(tmp_path / "root", tmp_path / "moved")
    assert terminal.ended() == 1
    assert terminal.modes == terminal.modes_before
    assert "topolet:" in terminal.text


def test_an_internal_error_does_not_leave_the_screen(command_line: list[str]) -> None:
    code = "import sys, agent.cli.top as top; from agent.__main__ import main; "
    code += "top.PodReader = None; sys.exit(main())"
    with EmulatedTerminal([sys.executable, "-c", code, *command_line[3:]]) as terminal:
        assert terminal.ended() == 1
        assert terminal.modes == terminal.modes_before
        assert "topolet: thread reads has failed: TypeError" in terminal.text


@pytest.mark.skipif(fakenvml.missing() is not None, reason=str(fakenvml.missing()))
def test_gpus_and_a_driver_that_dies(command_line: list[str], tmp_path: Path) -> None:
    """The process that calls NVML is restarted when it has died, and ends with the command."""
    cards = gpumachines.a100_hgx()
    for card in cards.cards:
        address = pci_address(card.bus)
        place = f"pci{address.rpartition(':')[0]}/{address}"
        buses.add_function(tmp_path / "root", place, {"class": "0x030200\n", "vendor": "0x10de\n"})
    driver = FakeDriver(tmp_path, cards)
    environment = {"FAKE_NVML": str(driver.facts)}
    command = [*command_line, f"--gpu-driver-root={driver.root}"]
    with EmulatedTerminal(command, 120, 40, environment) as terminal:
        terminal.press("4")
        terminal.until("the cards", lambda text: text.count("NVIDIA A100") == len(cards.cards))
        (child,) = children(terminal.pid)
        terminal.pump(0.5)
        assert children(terminal.pid) == [child]
        os.kill(child, signal.SIGKILL)
        terminal.until("a driver that does not answer", lambda text: "not answer" in text)
        terminal.until("the cards again", lambda text: "NVIDIA A100" in text)
        (child,) = children(terminal.pid)
        terminal.press("q")
        assert terminal.ended() == 0
    eventually("its child has ended", lambda: not os.path.exists(f"/proc/{child}/exe"))


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted({int(each) for task in tasks for each in (task / "children").read_text().split()})
