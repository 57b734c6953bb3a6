"""A relay in its own process, so that its memory and descriptors can be measured.

`python -m tests.relay.relay_child FRONT BACK [DESCRIPTORS|keep-blocks]` prints "up" and serves
until it is killed. DESCRIPTORS: its RLIMIT_NOFILE. keep-blocks: it does not call
`return_large_blocks`, which loads ctypes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.host import daemon
from agent.host.loop import Loop
from agent.model.verdict import Refuse, Wait
from agent.relay.gate import FORWARD, Call, Forward, GateVerdict, Replace
from agent.relay.server import RelayServer

TAIL = b"+" * 30
KEEP_BLOCKS = "keep-blocks"
LONGEST_REFUSAL = "%" * 1_000
"""Every character becomes three bytes on the wire."""


class Hooks:
    """Hooks whose verdict depends on the method."""

    methods = frozenset(
        b"/h/" + name
        for name in (
            *(b"Grow", b"Keep", b"Hold", b"Refuse", b"Echo", b"Fail", b"Wait", b"Collect", b"Away"),
            *(b"Reset-%d" % code for code in range(14)),
            *(b"Begin-%d" % code for code in range(14)),
        )
    )

    def request(self, call: Call, message: bytes) -> GateVerdict:
        if call.path == b"/h/Hold":
            return Wait()
        if call.path == b"/h/Refuse":
            return Refuse(9, LONGEST_REFUSAL)
        if call.path == b"/h/Grow":
            with open(os.devnull):  # as hooks open the agent's snapshot
                return Replace(message + TAIL)
        return FORWARD

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        return FORWARD

    def reply(self, call: Call, message: bytes | None) -> None:
        pass

    def abandoned(self, call: Call) -> None:
        pass


@contextlib.contextmanager
def relay_process(front: Path, back: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a relay process. Fails if it has ended by itself."""
    command = [sys.executable, "-m", "tests.relay.relay_child", str(front), str(back), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
            assert process.poll() is None, f"the relay ended by itself: {process.returncode}"
        finally:
            process.kill()


def peak_mb(pid: int) -> float:
    """The peak resident memory of the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    options = sys.argv[3:]
    if options != [KEEP_BLOCKS]:
        daemon.return_large_blocks()
        for number in map(int, options):
            resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))
    loop = Loop()
    RelayServer(loop, Hooks(), sys.argv[1], sys.argv[2])
    print("up", flush=True)
    loop.run()


if __name__ == "__main__":
    main()
