"""The tour in an emulated machine with two sockets, four NUMA nodes and 16 CPUs (`make run-numa`).
The keys are the same as for `make run`. Ctrl-C ends the machine."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import BinaryIO

from agent.cli.screen import Screen, TerminalGoneError
from demo.terminal import END_SIGNALS, exit_code_of
from tests.vm import guest

_MEMORY_GB = 1
_FRAME_SECONDS = 0.1
_STANDARD_INPUT = 0


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 if the machine did not start."""
    parser = argparse.ArgumentParser(prog="make run-numa", description=__doc__)
    parser.add_argument("--seconds", type=float, help="end this number of seconds after the start")
    arguments = parser.parse_args(words)
    if reasons := guest.lacking():
        print(f"make run-numa: {'; '.join(reasons)}", file=sys.stderr)
        return 1
    for each in END_SIGNALS:
        signal.signal(each, signal.default_int_handler)
    seconds = [] if arguments.seconds is None else [f"--seconds={arguments.seconds:g}"]
    # The guest can't write compiled files.
    for folder in ("agent", "demo", "tests/fixtures"):
        compileall.compile_dir(guest.REPOSITORY / folder, quiet=1)
    with tempfile.TemporaryDirectory(prefix="topolet-") as folder, guest.guest_lock():
        try:
            return _shown(pathlib.Path(folder), seconds)
        except KeyboardInterrupt:
            return 0
        except OSError as error:
            return exit_code_of(error)


def _shown(share: pathlib.Path, arguments: Sequence[str]) -> int:
    size = shutil.get_terminal_size() if sys.stdout.isatty() else (0, 0)
    script = pathlib.Path(__file__).with_name("guest.sh")
    words = [script, share, guest.REPOSITORY, sys.executable, *size, *arguments]
    command = guest.emulator(share, list(map(str, words)), _MEMORY_GB, ["-accel tcg,thread=single"])
    (share / "screen").touch()
    with (
        (share / "console.txt").open("wb") as console,
        (share / "screen").open("rb") as drawn,
        (share / "keys").open("wb", buffering=0) as keys,
    ):
        emulator = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            cwd=guest.REPOSITORY,
            env=guest.environment(),
            start_new_session=True,
        )
        try:
            interrupted = _follow(emulator, drawn, keys)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(emulator.pid, signal.SIGKILL)
            emulator.wait()
    if interrupted or (share / "screen").stat().st_size:
        return 0
    print((share / "console.txt").read_text(errors="replace")[-3000:], file=sys.stderr)
    return 1


def _follow(emulator: subprocess.Popen[bytes], drawn: BinaryIO, keys: BinaryIO) -> bool:
    """Shows the guest's screen and gives it the keys until it has ended. Returns whether a signal
    or the end of the terminal came first."""
    text = "starting the emulated machine; it takes about a minute ..."
    if not sys.stdout.isatty():
        print(text, flush=True)
        while emulator.poll() is None:
            _copy(drawn)
            time.sleep(_FRAME_SECONDS)
        _copy(drawn)
        return False
    try:
        with Screen(_STANDARD_INPUT, sys.stdout.fileno(), sys.stdout.encoding) as screen:
            screen.show([text])
            while emulator.poll() is None and not screen.ended:
                screen.write(drawn.read())
                keys.write(screen.read(_FRAME_SECONDS))
            return bool(screen.ended)
    except TerminalGoneError:
        return True


def _copy(drawn: BinaryIO) -> None:
    sys.stdout.buffer.write(drawn.read())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
