"""Topolet on this machine: a real runtime, proxy and agent, and pods that are created and deleted.

The tour shows the machine with the owners of its CPUs, live, and why each pod moves. On a terminal,
each key starts an action; otherwise, or with --seconds, the actions run one after the other. Ctrl-C
ends all processes and restores every cpuset.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys

from agent.cgroup.hierarchy import CgroupError
from agent.discover import cpus
from agent.host.locks import Lock, LockedError
from agent.rpc.grpc import RpcError
from demo.machine import MachineTour
from demo.stage import Stage, StageError
from demo.terminal import END_SIGNALS, exit_code_of
from demo.tour import show
from tests.fixtures.containerd import ContainerdError


def main() -> int:
    """Exit code 1 if something did not start."""
    parser = argparse.ArgumentParser(prog="make run", description=__doc__)
    parser.add_argument("--dir", default="var", help="folder for all files of the demo")
    text = "socket of a running containerd, unix:///... (default: a private containerd)"
    parser.add_argument("--runtime", default="", help=text)
    parser.add_argument("--seconds", type=float, help="end after this number of seconds")
    text = "give programs more time to start, as in an emulated machine"
    parser.add_argument("--slow", action="store_true", help=text)
    arguments = parser.parse_args()
    if os.geteuid():
        print("make run: needs root: containers and cgroups are real", file=sys.stderr)
        return 1
    for each in END_SIGNALS:
        signal.signal(each, signal.default_int_handler)
    folder = pathlib.Path(arguments.dir).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(str(folder / "demo.lock"))
        stage = Stage(folder, arguments.runtime or None, slow=arguments.slow)
    except (LockedError, StageError, OSError) as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1
    code = 0
    try:
        stage.start(lambda text: print_text(f"{text} ..."))
        topology = cpus.read("/")
        show(MachineTour(stage, topology), topology, arguments.seconds)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        code = exit_code_of(error)
    except (StageError, ContainerdError, RpcError, CgroupError) as error:
        print(f"make run: {error}", file=sys.stderr)
        code = 1
    finally:
        for each in END_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        runtime = "" if arguments.runtime else " and runtime"
        print_text(f"ending the agent, restoring every cpuset, ending pods{runtime}")
        print_text(stage.stop())
        lock.release()
    return code


def print_text(text: str) -> None:
    """Prints the text; a closed standard output is not an error."""
    try:
        print(text, flush=True)
    except OSError as error:
        exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
