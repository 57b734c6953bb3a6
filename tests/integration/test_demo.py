"""The demonstration of `make run`, and what it leaves after failures."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator

import pytest

from demo.children import started_at
from demo.stage import NAMESPACE, identity
from tests.fixtures import cgroups
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode
from tests.waiting import DEADLINE_SECONDS, eventually

LAST_CPU = str(max(os.sched_getaffinity(0)))


@pytest.fixture
def folder(containerd: Containerd) -> Iterator[pathlib.Path]:
    """A folder for a demo. Skips the test if no runtime can run."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def demo(folder: pathlib.Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "demo", f"--dir={folder}", *flags]


def run_demo(folder: pathlib.Path, *flags: str) -> str:
    """Runs a demo until it shows the LSE pod; the output."""
    output = folder / "output"
    with output.open("w") as out:
        process = subprocess.Popen(demo(folder, *flags), stdout=out, stderr=out)
    try:
        eventually(
            "the LSE pod is shown", lambda: process.poll() is not None or shown(output.read_text())
        )
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 0, output.read_text()
    finally:
        process.kill()
    return output.read_text()


def shown(output: str) -> bool:
    kernel = " ".join(output.rpartition("In the kernel's cpuset files:")[2].split())
    return bool(
        re.search(rf"LSE topolet-demo/lse  {LAST_CPU}\n", output)
        and f"topolet-demo/lse {LAST_CPU} " in kernel
        and f"topolet-demo/ls {LAST_CPU} " not in kernel
    )


def assert_shown(output: str) -> None:
    assert shown(output), output
    assert "cpusets restored" in output


def processes_of(folder: pathlib.Path) -> list[str]:
    """The command lines of all processes that contain the folder."""
    found = []
    for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(each.parent.name) != os.getpid():
            found.append(words)
    return found


class Terminal:
    """A demo in a pseudoterminal that is wide enough for all lines."""

    def __init__(self, command: list[str]) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        # Test runners set the size of their own terminal.
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=own_terminal,
            env=inherited,
        )
        os.close(slave)
        self._seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        """Hangs up the terminal, so that a demo that still runs ends and cleans up."""
        self.hang_up()
        try:
            self.process.wait(DEADLINE_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def wait_for(self, *texts: str) -> None:
        """Waits until each text has been shown."""

        def are_shown() -> bool:
            while select.select([self._master], [], [], 0)[0]:
                try:
                    self._seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:
                    break  # EIO: the program has ended.
            return all(text in self._seen for text in texts)

        try:
            eventually(f"{texts} are shown", are_shown)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._seen[-5000:]}") from None

    def wait_for_again(self, text: str) -> None:
        """Waits until the text is shown once more."""
        self._seen = ""
        self.wait_for(text)

    def hang_up(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


def own_terminal() -> None:
    """Runs in the child: makes its standard input the controlling terminal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def assert_nothing_left(folder: pathlib.Path) -> None:
    assert not processes_of(folder)
    assert not cgroups.exists(f"/{NAMESPACE}-{identity(folder)}")


def assert_refused(folder: pathlib.Path, *flags: str, reason: str) -> None:
    done = subprocess.run(
        demo(folder, *flags), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_an_invalid_runtime_address_is_named(folder: pathlib.Path) -> None:
    assert_refused(folder, "--runtime=foo", reason="RUNTIME=foo: not unix:///absolute/path")


def test_it_runs_twice_and_leaves_nothing(folder: pathlib.Path) -> None:
    assert_shown(run_demo(folder))
    assert_nothing_left(folder)
    command = demo(folder, "--seconds=1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_left(folder)


def test_two_checkouts_at_once(folder: pathlib.Path) -> None:
    """Each demo shows its own pods, and the end of one does not affect the other."""
    folders = [folder / name for name in ("one", "other")]
    processes = []
    try:
        for each in folders:
            each.mkdir()
            with (each / "output").open("w") as out:
                processes.append(subprocess.Popen(demo(each), stdout=out, stderr=out))
        for each, process in zip(folders, processes, strict=True):
            output = each / "output"
            eventually(
                "the LSE pod is shown",
                lambda output=output, process=process: (  # type: ignore[misc]
                    process.poll() is not None or shown(output.read_text())
                ),
            )
            process.terminate()
            assert process.wait(DEADLINE_SECONDS) == 0, output.read_text()
            assert_shown(output.read_text())
            assert_nothing_left(each)
    finally:
        for process in processes:
            process.kill()


def test_it_ends_when_its_output_is_closed(folder: pathlib.Path) -> None:
    """`make run | head` once left its runtime, its agent and the changed cpusets."""
    errors = folder / "errors"
    with errors.open("w") as err:
        process = subprocess.Popen(demo(folder), stdout=subprocess.PIPE, stderr=err)
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout
        assert b"starting" in process.stdout.readline()
        eventually("the agent runs", (folder / "agent.pid").exists)
        process.stdout.close()
        assert process.wait(DEADLINE_SECONDS) == 0
    assert errors.read_text() == ""
    assert_nothing_left(folder)


@pytest.mark.long
def test_it_ends_when_its_terminal_hangs_up(folder: pathlib.Path) -> None:
    """The demo gets SIGHUP and cannot write any more."""
    with Terminal(demo(folder)) as terminal:
        terminal.wait_for("q end")
        terminal.hang_up()
        assert terminal.process.wait(DEADLINE_SECONDS) in (0, 1)
    assert_nothing_left(folder)


@pytest.mark.long
def test_one_key_for_each_pod_and_fault(folder: pathlib.Path) -> None:
    with Terminal(demo(folder)) as terminal:
        terminal.wait_for(
            "LS pod topolet-demo/ls is created", "BE pod topolet-demo/be is created", "q end"
        )
        terminal.press("1")
        terminal.wait_for(f"topolet-demo/lse: the pod owns CPUs {LAST_CPU}, as its annotation")
        terminal.wait_for("topolet-demo/ls: container main moves to CPUs")
        terminal.press("d")
        terminal.wait_for("another program writes", "another process had set it")
        terminal.press("k")
        terminal.wait_for("the agent ended (signal SIGKILL) and was restarted")
        terminal.press("1")
        terminal.wait_for(
            "LSE pod topolet-demo/lse is deleted", f"does not own CPUs {LAST_CPU} any more"
        )
        terminal.press("t")
        terminal.wait_for("1-5 pages", "topolet-demo/be")
        terminal.press("q")
        terminal.wait_for_again("t top · q end")
        terminal.press("q")
        assert terminal.process.wait(DEADLINE_SECONDS) == 0
        terminal.wait_for("cpusets restored")
    assert_nothing_left(folder)


@pytest.mark.long
def test_runs_after_a_kill_of_everything(folder: pathlib.Path) -> None:
    with (folder / "out").open("w") as out:
        first = subprocess.Popen(demo(folder), stdout=out, stderr=out)
    eventually("pods were started", lambda: "LSE pod" in (folder / "out").read_text())
    assert_refused(folder, reason=f"demo.lock is locked by process {first.pid}")
    first.send_signal(signal.SIGKILL)
    first.wait()
    pid, _ = json.loads((folder / "agent.pid").read_text())
    assert started_at(pid), "the agent outlives the demo"
    assert_shown(run_demo(folder))
    assert_nothing_left(folder)


@pytest.mark.long
def test_next_to_and_on_a_running_containerd(folder: pathlib.Path, node: TestNode) -> None:
    """Existing pods keep running and get their original CPUs again."""
    _, other = run_pod(node.direct, node.spec("other", "LS"))
    before = node.cpus(other)
    assert_shown(run_demo(folder))
    assert node.cpus(other) == before

    assert_shown(run_demo(folder, f"--runtime=unix://{node.containerd.socket}"))
    assert node.cpus(other) == before
    assert [each.name for each in node.direct.sandboxes()] == ["other"]
