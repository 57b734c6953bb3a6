"""`make run` without make: the output for a new user, also after failures."""

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
from tests.integration.harness import TestNode
from tests.waiting import DEADLINE_SECONDS, eventually

LAST = str(max(os.sched_getaffinity(0)))


@pytest.fixture
def folder(containerd: Containerd) -> Iterator[pathlib.Path]:
    """A demo of the test; skips if a runtime is not available."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def demo(folder: pathlib.Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "demo", f"--dir={folder}", *flags]


def played(folder: pathlib.Path, *flags: str) -> str:
    """The output of a demo that is ended after its first picture."""
    output = folder / "played"
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
        re.search(rf"LSE topolet-demo/lse  {LAST}\n", output)
        and f"topolet-demo/lse {LAST} " in kernel
        and f"topolet-demo/ls {LAST} " not in kernel
    )


def check_shown(output: str) -> None:
    assert shown(output), output
    assert "cpusets restored" in output


def living(folder: pathlib.Path) -> list[str]:
    """Processes that name the folder in their command line."""
    found = []
    for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(each.parent.name) != os.getpid():
            found.append(words)
    return found


def nothing_left(folder: pathlib.Path) -> None:
    assert not living(folder)
    assert not cgroups.exists(f"/{NAMESPACE}-{identity(folder)}")


def refused(folder: pathlib.Path, *flags: str, reason: str) -> None:
    done = subprocess.run(
        demo(folder, *flags), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_an_invalid_runtime_address_is_named(folder: pathlib.Path) -> None:
    refused(folder, "--runtime=foo", reason="RUNTIME=foo: not unix:///absolute/path")


def test_runs_twice_and_leaves_nothing(folder: pathlib.Path) -> None:
    check_shown(played(folder))
    nothing_left(folder)
    command = demo(folder, "--seconds=1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    nothing_left(folder)


def test_two_checkouts_at_once(folder: pathlib.Path) -> None:
    """Each shows its own pods, and the end of one does not affect the other."""
    folders = [folder / name for name in ("one", "other")]
    processes = []
    try:
        for each in folders:
            each.mkdir()
            with (each / "played").open("w") as out:
                processes.append(subprocess.Popen(demo(each), stdout=out, stderr=out))
        for each, process in zip(folders, processes, strict=True):
            played_file = each / "played"
            eventually(
                "its LSE pod is shown",
                lambda played_file=played_file, process=process: (  # type: ignore[misc]
                    process.poll() is not None or shown(played_file.read_text())
                ),
            )
            process.terminate()
            assert process.wait(DEADLINE_SECONDS) == 0, played_file.read_text()
            check_shown(played_file.read_text())
            nothing_left(each)
    finally:
        for process in processes:
            process.kill()


@pytest.mark.long
def test_runs_after_a_kill_of_everything(folder: pathlib.Path) -> None:
    with (folder / "out").open("w") as out:
        first = subprocess.Popen(demo(folder), stdout=out, stderr=out)
    eventually("pods were started", lambda: "LSE pod" in (folder / "out").read_text())
    refused(folder, reason=f"demo.lock is locked by process {first.pid}")
    first.send_signal(signal.SIGKILL)
    first.wait()
    pid, _ = json.loads((folder / "agent.pid").read_text())
    assert started_at(pid), "the agent outlives the demo"
    check_shown(played(folder))
    nothing_left(folder)


@pytest.mark.long
def test_next_to_and_on_a_running_containerd(folder: pathlib.Path, node: TestNode) -> None:
    """Existing pods keep running and get their original CPUs again."""
    _, other = run_pod(node.direct, node.spec("other", "LS"))
    before = node.cpus(other)
    check_shown(played(folder))
    assert node.cpus(other) == before

    check_shown(played(folder, f"--runtime=unix://{node.containerd.socket}"))
    assert node.cpus(other) == before
    assert [each.name for each in node.direct.sandboxes()] == ["other"]
