"""Socket activation as by systemd: opens a socket, and restarts the program that serves it.

usage: activation.py SOCKET PIDFILE PROGRAM...
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from types import FrameType

_RESTART_SECONDS = 0.1
"""RestartSec of systemd/topolet-proxy.service."""


def main() -> None:
    path, pidfile, *program = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(4096)
        child = 0

        def end(_number: int, _frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if child:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
            os.unlink(path)
            sys.exit(0)

        signal.signal(signal.SIGTERM, end)
        while True:
            child = os.fork()
            if not child:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.dup2(listening.fileno(), 3)
                os.set_inheritable(3, True)
                os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
                os.execvp(program[0], program)
            with open(f"{pidfile}.new", "w") as file:
                file.write(str(child))
            os.rename(f"{pidfile}.new", pidfile)
            _, status = os.waitpid(child, 0)
            child = 0
            print("ended", os.waitstatus_to_exitcode(status), flush=True)
            time.sleep(_RESTART_SECONDS)


if __name__ == "__main__":
    main()
