"""Topolet on this machine: a real runtime, proxy and agent, and pods that start and end.

Shows the machine with the owners of its CPUs, live. Ctrl-C ends all processes and restores every
cpuset.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import textwrap
import time
from collections import deque

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cli.topology import Screen
from agent.discover import cpus
from agent.host.locks import Lock, LockedError
from agent.model import snapshot as snapshots
from agent.model.cpu.topology import Topology
from agent.model.snapshot import Snapshot
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError
from agent.view import node
from demo.stage import NAMESPACE, Stage, StageError
from tests.fixtures.containerd import ContainerdError
from tests.fixtures.pods import remove_pod, run_pod

FRAME_SECONDS = 0.2
TURN_SECONDS = 6.0
EVENTS = 8


class Show:
    """The screen: an LS and a BE pod, an LSE pod that starts and ends, and the last events."""

    def __init__(self, stage: Stage, topology: Topology) -> None:
        self._stage = stage
        self._topology = topology
        self._events: deque[str] = deque(maxlen=EVENTS)
        self._hierarchy = Hierarchy()
        self._observer = RuntimeView(stage.direct, CgroupLocator(self._hierarchy))
        self._runtime = stage.direct.version()
        own = str(max(topology.online))
        self._lse = stage.pod("lse", "guaranteed", own)
        self._lse_sandbox = ""
        self._next_turn = 0.0

    def add_event(self, text: str) -> None:
        """Adds a line to the events."""
        self._events.append(f"{time.strftime('%H:%M:%S')}  {text}")

    def begin(self) -> None:
        """Starts the LS and the BE pod."""
        for name, kube_class in (("ls", "burstable"), ("be", "besteffort")):
            run_pod(self._stage.cri, self._stage.pod(name, kube_class))
            self.add_event(
                f"{name.upper()} pod {NAMESPACE}/{name} started, without CPUs of its own"
            )
        self._next_turn = time.monotonic() + 2

    def turn(self) -> None:
        """Starts or ends the LSE pod when it is time, and restarts processes that died."""
        for event in self._stage.restart_ended():
            self.add_event(event)
        if time.monotonic() < self._next_turn:
            return
        self._next_turn = time.monotonic() + TURN_SECONDS
        try:
            if self._lse_sandbox:
                remove_pod(self._stage.cri, self._lse_sandbox)
                self._lse_sandbox = ""
                self.add_event(f"LSE pod {NAMESPACE}/lse ended; its CPU returns to the pools")
            else:
                self._lse_sandbox, _ = run_pod(self._stage.cri, self._lse)
                self.add_event(f"LSE pod {NAMESPACE}/lse started; it owns CPU {self._lse.cpuset}")
        except RpcError as error:
            self.add_event(f"LSE pod: {error}")

    def picture(self, width: int, height: int, *, colour: bool) -> str:
        """The whole screen as text, with the last events that fit."""
        words = (
            f"Topolet on {self._runtime} · pods created through {self._stage.listen}",
            f"http://{self._stage.http}/metrics /healthz /readyz",
            f"logs: {self._stage.folder}/*.log · Ctrl-C ends",
        )
        head = [
            line for each in words for line in textwrap.wrap(each, width, break_on_hyphens=False)
        ]
        snapshot = self._snapshot()
        body = ""
        if snapshot:
            left = height - len(head) - 6
            body = node.draw(self._topology, snapshot, width, colour=colour, height=left)
        kernel = textwrap.wrap(self._kernel(), width, break_on_hyphens=False)
        upper = "\n".join([*head, "", body, *kernel, ""])
        room = max(height - upper.count("\n") - 2, 1)
        return "\n".join([upper, *list(self._events)[-room:]]) + "\n"

    def _snapshot(self) -> Snapshot | None:
        try:
            return snapshots.decode(self._stage.snapshot.read_bytes())
        except (OSError, snapshots.SnapshotError):
            return None

    def _kernel(self) -> str:
        """The cpusets as cgroupfs has them, not as the agent reports them."""
        found = []
        with contextlib.suppress(RpcError):
            for pod in self._observer.observe().pods:
                for each in pod.containers:
                    with contextlib.suppress(CgroupError):
                        if each.group is not None:
                            cpuset = self._hierarchy.effective_cpus(each.group)
                            found.append(f"{pod.title} {cpuset}")
        return "In the kernel's cpuset files: " + (" · ".join(found) or "no containers")


def play(stage: Stage, seconds: float | None) -> None:
    """Runs until `seconds` are over or Ctrl-C."""
    show = Show(stage, cpus.read("/"))
    end = time.monotonic() + seconds if seconds is not None else None
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    with Screen(sys.stdout) as screen:
        show.begin()
        while end is None or time.monotonic() < end:
            show.turn()
            size = shutil.get_terminal_size((100, 50))
            screen.show(show.picture(size.columns, size.lines, colour=colour), size.lines)
            time.sleep(FRAME_SECONDS)


def main() -> int:
    """Exit code 1 if something did not start."""
    parser = argparse.ArgumentParser(prog="make run", description=__doc__)
    parser.add_argument("--dir", default="var", help="folder for all that the demo writes")
    parser.add_argument("--runtime", default="", help="unix:///... of a running containerd")
    parser.add_argument("--seconds", type=float, help="end after this number of seconds")
    arguments = parser.parse_args()
    if os.geteuid():
        print("make run: needs root: containers and cgroups are real", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = pathlib.Path(arguments.dir).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(str(folder / "demo.lock"))
        stage = Stage(folder, arguments.runtime or None)
    except (LockedError, StageError, OSError) as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1
    code = 0
    try:
        stage.start(lambda text: print(f"{text} ...", flush=True))
        play(stage, arguments.seconds)
    except KeyboardInterrupt:
        pass
    except (StageError, ContainerdError, RpcError, CgroupError) as error:
        print(f"make run: {error}", file=sys.stderr)
        code = 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        runtime = "" if arguments.runtime else " and runtime"
        print(f"ending the agent, restoring every cpuset, ending pods{runtime}", flush=True)
        print(stage.stop())
        lock.release()
    return code


if __name__ == "__main__":
    sys.exit(main())
