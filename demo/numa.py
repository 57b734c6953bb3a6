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
from collections.abc import Sequence
from typing import BinaryIO

from demo.terminal import END_SIGNALS, Keyboard, exit_code_of
from tests.vm import guest

_MEMORY_GB = 1
_FRAME_SECONDS = 0.1


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
    print("starting the emulated machine; it takes about a minute ...", flush=True)
    size = shutil.get_terminal_size() if sys.stdout.isatty() else (0, 0)
    script = pathlib.Path(__file__).with_name("guest.sh")
    words = [script, share, guest.REPOSITORY, sys.executable, *size, *arguments]
    command = guest.emulator(share, list(map(str, words)), _MEMORY_GB, ["-accel tcg,thread=single"])
    (share / "screen").touch()
    with (
        (share / "console.txt").open("wb") as console,
        (share / "screen").open("rb") as screen,
        (share / "keys").open("wb", buffering=0) as keys,
        Keyboard(sys.stdin, sys.stdout) as keyboard,
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
            _follow(emulator, screen, keys, keyboard)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(emulator.pid, signal.SIGKILL)
            emulator.wait()
            sys.stdout.write("\x1b[?25h\x1b[?1049l" if sys.stdout.isatty() else "")
    if (share / "screen").stat().st_size:
        return 0
    print((share / "console.txt").read_text(errors="replace")[-3000:], file=sys.stderr)
    return 1


def _follow(
    emulator: subprocess.Popen[bytes], screen: BinaryIO, keys: BinaryIO, keyboard: Keyboard
) -> None:
    """Shows the guest's screen and gives it the keys until it has ended."""
    while True:
        ended = emulator.poll() is not None
        if piece := screen.read():
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        if ended or keyboard.output_is_closed():
            return
        keys.write(keyboard.key(_FRAME_SECONDS).encode())


if __name__ == "__main__":
    sys.exit(main())
