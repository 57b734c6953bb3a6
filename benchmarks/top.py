"""`topolet top` on a terminal: the time of its start, its CPU time and output at one picture a
second, and its memory. The machine is generated: 512 CPUs with changing loads, and 110 pods, six of
them with their own CPUs. For comparison, the start and memory of libraries for terminals, if they
are installed.

The machine is a folder: the time to read the kernel's /proc/stat, cgroups and the runtime is not
included.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from benchmarks import common
from tests.fixtures import trees
from tests.fixtures.screen import EmulatedTerminal, topolet

SHAPE = (2, 4, 4, 8, 2)
CPUS = 512
PODS = 110
SIZES = ((80, 24), (200, 50))
LIBRARIES = {
    "textual": "from textual.app import App; App()",
    "rich": "from rich.live import Live; from rich.table import Table; Live(Table())",
    "prompt_toolkit": "from prompt_toolkit import Application; Application()",
    "urwid": "import urwid; urwid.MainLoop(urwid.Filler(urwid.Text('x')))",
    "blessed": "import blessed; blessed.Terminal()",
    "curses": "import curses; curses.setupterm()",
}


def main() -> None:
    options = common.arguments(__doc__, _add_arguments)
    seconds = 6.0 if options.quick else 30.0
    rows: list[common.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        words = command(Path(folder))
        with ChangingLoads(Path(folder)):
            for columns, lines in SIZES:
                rows += measured(words, columns, lines, seconds)
    rows += library_rows(options.python, 3 if options.quick else 10)
    common.report(rows, options.output)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=sys.executable, help="a Python that has the libraries to compare with"
    )


def command(folder: Path) -> list[str]:
    root = trees.write(str(folder / "root"), trees.machine(*SHAPE))
    state = folder / "state"
    state.mkdir()
    (state / "snapshot.json").write_bytes(snapshots.encode(snapshot()))
    flags = (f"--root={root}", f"--state-dir={state}", f"--runtime-endpoint=unix://{folder}/no")
    return topolet("top", *flags, f"--cgroup-root={folder}", "--node-name=node-a")


def snapshot() -> Snapshot:
    owned = CpuSet(cpu for index in range(6) for cpu in range(index * 64, index * 64 + 8))
    owners = tuple(
        Owner(
            f"o{index}",
            f"team-{index}/model",
            QoS.LSE,
            str(CpuSet(range(index * 64, index * 64 + 8))),
        )
        for index in range(6)
    )
    shared = str(CpuSet(range(CPUS)) - owned)
    pods = {
        each.uid: PodWanted(
            each.title, each.qos, Wanted(LinuxResources(each.cpuset), exclusive=True)
        )
        for each in owners
    }
    for number in range(PODS - len(owners)):
        qos = QoS.LS if number % 3 else QoS.BE
        pods[f"u{number}"] = PodWanted(f"shop/web-{number}", qos, Wanted(LinuxResources(shared)))
    pools = (Pool(0, 0, shared),)
    return Snapshot(1, 1, "b", False, {"ls": pools, "be": pools}, owners, pods, {})


class ChangingLoads:
    """Changes the load of each CPU at random, four times a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "root" / "proc" / "stat"
        self._busy = [0] * CPUS
        self._total = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._write()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.25):
            self._total += 25
            self._busy = [each + random.randrange(26) for each in self._busy]
            self._write()

    def _write(self) -> None:
        lines = (
            f"cpu{cpu} {busy} 0 0 {self._total - busy} 0 0 0 0 0 0"
            for cpu, busy in enumerate(self._busy)
        )
        temporary = self._path.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        os.replace(temporary, self._path)


def measured(words: list[str], columns: int, lines: int, seconds: float) -> Iterator[common.Row]:
    name = f"top_{CPUS}_cpus_{columns}x{lines}"
    began = time.monotonic()
    with EmulatedTerminal([*words, "--every=1"], columns, lines) as terminal:
        terminal.until("the first frame", lambda text: "team-0/model" in text)
        yield common.value_row(f"{name}_first_frame", (time.monotonic() - began) * 1e3, "ms")
        terminal.pump(2.0)
        cpu, received, begin = cpu_seconds(terminal.pid), len(terminal.received), time.monotonic()
        terminal.pump(seconds)
        elapsed = time.monotonic() - begin
        used = (cpu_seconds(terminal.pid) - cpu) / elapsed
        yield common.value_row(f"{name}_cpu", used * 100, "% of a CPU")
        yield common.value_row(
            f"{name}_output", (len(terminal.received) - received) / elapsed, "B/s"
        )
        yield common.value_row(f"{name}_memory", resident_bytes(terminal.pid) / 1e6, "MB")
        terminal.press("q")
        terminal.ended()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def library_rows(python: str, rounds: int) -> Iterator[common.Row]:
    """The CPU time of a start, and the memory, of each library without a program."""
    present = {name: code for name, code in LIBRARIES.items() if runs(python, f"import {name}")}
    programs = {"python": "pass", **present}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, code in programs.items():
            samples[name].append(start(python, code))
    for name, found in samples.items():
        cpu_ms, memory_mb = (sorted(each)[len(found) // 2] for each in zip(*found, strict=True))
        yield common.value_row(f"start_{name}_cpu", cpu_ms, "ms")
        yield common.value_row(f"start_{name}_memory", memory_mb, "MB")


def runs(python: str, code: str) -> bool:
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def start(python: str, code: str) -> tuple[float, float]:
    """Milliseconds of CPU time, and megabytes at the end."""
    suffix = (
        "\nimport time; print(time.process_time(), "
        "[each for each in open('/proc/self/status') if each.startswith('VmRSS')][0].split()[1])"
    )
    done = subprocess.run(
        [python, "-c", code + suffix],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    seconds, kilobytes = done.stdout.split()[-2:]
    return float(seconds) * 1e3, int(kilobytes) / 1e3


if __name__ == "__main__":
    main()
