"""The end of a demo: its signals, and an output that is closed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Final

END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_code_of(error: OSError) -> int:
    """The exit code after an error of the output. A closed pipe (`head`) or terminal is not an
    error; further output is dropped."""
    if error.errno in (errno.EPIPE, errno.EIO):
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
            os.dup2(null.fileno(), sys.stderr.fileno())
        return 0
    print(f"make run: {error}", file=sys.stderr)
    return 1
