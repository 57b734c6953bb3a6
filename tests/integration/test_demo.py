"""The demonstration of `make run`, and what it leaves after failures."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from demo.children import started_at
from demo.stage import NAMESPACE, identity
from tests.fixtures import cgroups
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import run_pod
from tests.fixtures.screen import EmulatedTerminal
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


@contextlib.contextmanager
def terminal(folder: pathlib.Path) -> Iterator[EmulatedTerminal]:
    """A demo in a terminal that is wide enough for all lines. One that still runs at the end of the
    block gets SIGHUP, so that it cleans up."""
    with EmulatedTerminal(demo(folder), columns=200, rows=60) as it:
        try:
            yield it
        except BaseException:
            it.hang_up()
            it.ended()
            raise


def wait_for(it: EmulatedTerminal, *texts: str) -> None:
    """Waits until the demo has written each text."""

    def are_written() -> bool:
        it.pump(0.1)
        return all(text.encode() in it.received for text in texts)

    eventually(f"{texts} are written", are_written)


@pytest.mark.long
def test_it_ends_when_its_terminal_hangs_up(folder: pathlib.Path) -> None:
    """The demo gets SIGHUP and cannot write any more."""
    with terminal(folder) as it:
        wait_for(it, "q end")
        it.hang_up()
        assert it.ended() in (0, 1)
    assert_nothing_left(folder)


@pytest.mark.long
def test_one_key_for_each_pod_and_fault(folder: pathlib.Path) -> None:
    with terminal(folder) as it:
        wait_for(it, "LS pod topolet-demo/ls is created", "BE pod topolet-demo/be is created")
        wait_for(it, "q end")
        it.press("1")
        wait_for(it, f"topolet-demo/lse: the pod owns CPUs {LAST_CPU}, as its annotation")
        wait_for(it, "topolet-demo/ls: container main moves to CPUs")
        it.press("d")
        wait_for(it, "another program writes", "another process had set it")
        it.press("k")
        wait_for(it, "the agent ended (signal SIGKILL) and was restarted")
        it.press("1")
        wait_for(
            it, "LSE pod topolet-demo/lse is deleted", f"does not own CPUs {LAST_CPU} any more"
        )
        it.press("t")
        wait_for(it, "1-5 pages", "topolet-demo/be")
        it.press("q")
        it.received = b""
        wait_for(it, "t top · q end")
        it.press("q")
        wait_for(it, "cpusets restored")
        assert it.ended() == 0
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
