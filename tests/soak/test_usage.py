"""What `inside.usage` reads of a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.inside import usage
from tests.soak.report import WARM_SECONDS, Sample, Seen, report

LEAKS = """import os, sys, threading
kept = []
for line in sys.stdin:
    kept.append(os.open("/dev/null", os.O_RDONLY))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(flush=True)
"""


@pytest.fixture
def leaking() -> Iterator[subprocess.Popen[str]]:
    """A process that opens a file and starts a thread for each line."""
    with subprocess.Popen(
        [sys.executable, "-c", LEAKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_a_process_that_leaks_files_and_threads_is_told(leaking: subprocess.Popen[str]) -> None:
    assert leaking.stdin is not None
    assert leaking.stdout is not None
    samples = []
    for number in range(18):
        print(file=leaking.stdin, flush=True)
        leaking.stdout.readline()
        used = usage(leaking.pid)
        assert used is not None
        samples.append(Sample("n1 agent", leaking.pid, WARM_SECONDS * number, used))
    document = report(Seen(samples=samples), 60, 7)
    # The first sample is of a process that is not yet warm: two thirds of the others remain.
    assert document.leaked_fds == {"n1 agent": 12}
    assert document.leaked_threads == {"n1 agent": 12}
    assert len(document.findings) == 2


def test_a_process_that_has_ended_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert usage(process.pid) is None
    process.wait()
    assert usage(process.pid) is None
