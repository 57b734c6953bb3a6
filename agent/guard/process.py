"""The guard's process: one connection to the runtime, and one call after the other.

It has no loop of events, because it waits for nothing but the runtime."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal would load enum
import _socket
import os
import select
import sys
import time

from agent.guard import frames, wire
from agent.guard.decisions import Decisions, SnapshotFormError, refusal
from agent.guard.frames import Frames
from agent.guard.records import GuardRunsError, Records
from agent.guard.request import ValidatedContainer
from agent.guard.wire import ProtobufError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

NAME: Final = "topolet-guard"
"""The name for the runtime's list of required plugins."""
INDEX: Final = "99"
VALIDATE: Final = 1 << 13
"""The only event that the guard subscribes to."""
SNAPSHOT: Final = "snapshot.json"
MOST_BYTES: Final = 16 << 20
"""The guard reads no larger snapshot (`agent.model.snapshot`)."""
_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_REGISTRATION_SECONDS: Final = 12.0
_FIRST_DELAY_SECONDS: Final = 0.2
_LONGEST_DELAY_SECONDS: Final = 5.0
_TOO_OLD_SECONDS: Final = 60.0
_LONGEST_CALL_SECONDS: Final = 10
"""A guard that needs longer for one message ends (SIGALRM), and is started again."""
_READ_BYTES: Final = 1 << 16
_UNIMPLEMENTED: Final = 12
_FIRST_WITH_VALIDATION: Final = (0, 10)
_CONTAINERD_WITH_VALIDATION: Final = (2, 2)


class SessionEndError(Exception):
    """The session has ended; the text is the reason."""


class TooOldError(SessionEndError):
    """The runtime's NRI has no validation."""


class SnapshotReader:
    """The agent's snapshot, which is read again after a change. While it can't be read, the last
    valid one counts; one of another boot, or a missing one, counts as none."""

    def __init__(self, path: str, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._stamp: tuple[int, int, int] | None = None
        self._current: Decisions | None = None
        self.problem = ""

    def current(self) -> Decisions | None:
        """None without a snapshot."""
        try:
            now = os.stat(self._path)
            stamp = now.st_mtime_ns, now.st_ino, now.st_size
            if stamp != self._stamp:
                new = Decisions(_content(self._path))
                self._current = new if new.boot_id == self._boot_id else None
                self._stamp = stamp
            self.problem = ""
        except FileNotFoundError:
            self._stamp = self._current = None
        except (OSError, SnapshotFormError) as error:
            self.problem = f"{self._path} can't be read, and the last one counts: {error}"
        return self._current


class Guard:
    """Answers the calls of one session after the other."""

    def __init__(
        self, snapshots: SnapshotReader, records: Records, exempt: Sequence[str] = ()
    ) -> None:
        self._snapshots = snapshots
        self._records = records
        self._exempt = exempt
        self._snapshot_problem = ""

    def serve(self, connected: _socket.socket) -> None:
        """Registers with the runtime, and serves it until the session ends. Raises SessionEndError,
        OSError, ProtobufError."""
        registration = wire.encoded(1, NAME) + wire.encoded(2, INDEX)
        connected.sendall(
            frames.call(1, _SERVICE, "RegisterPlugin", registration, _REGISTRATION_SECONDS)
        )
        stream, poll = Frames(), select.poll()
        poll.register(connected.fileno(), select.POLLIN)
        deadline = time.monotonic() + _REGISTRATION_SECONDS
        self._records.sessions += 1
        configured = False
        while True:
            left = None if self._records.ready else max(0, deadline - time.monotonic()) * 1000
            if not poll.poll(left):
                raise SessionEndError("the runtime does not register the guard")
            data = connected.recv(_READ_BYTES)
            if not data:
                if configured and not self._records.ready:
                    raise TooOldError(
                        "the runtime closed the connection after the guard had subscribed to "
                        "validation: it needs NRI 0.10 or later"
                    )
                raise SessionEndError("the runtime closed the connection")
            _signal.alarm(_LONGEST_CALL_SECONDS)
            for connection, number, kind, payload in stream.received(data):
                if (connection, kind) == (frames.PLUGIN, frames.REQUEST):
                    configured = True
                    connected.sendall(self._answer(number, payload))
                elif (connection, kind) == (frames.RUNTIME, frames.RESPONSE):
                    _check_registration(payload)
            _signal.alarm(0)

    def _answer(self, number: int, call: bytes) -> bytes:
        """The answer to one call of the runtime. Raises ProtobufError, TooOldError."""
        method, payload = wire.text(call, 2), wire.message_at(call, 3)
        if method == "ValidateContainerAdjustment":
            return frames.answer(number, self._verdict(payload))
        if method == "Configure":
            check_version(wire.text(payload, 2), wire.text(payload, 3), wire.text(payload, 6))
            return frames.answer(number, wire.encoded(2, VALIDATE))
        if method == "Synchronize":
            more = wire.integer(payload, 3)
            if not more:
                self._records.ready, self._records.too_old = True, False
                self._records.problem = ""
                self._records.log("info", f"registered with the runtime as {INDEX}-{NAME}")
                self._records.publish()
            return frames.answer(number, wire.encoded(2, more))
        if method in ("Shutdown", "StateChange"):
            return frames.answer(number, b"")
        return frames.error(number, _UNIMPLEMENTED, f"{method[:100]} is not implemented")

    def _verdict(self, request: bytes) -> bytes:
        """The encoded answer about a container. A request that can't be read is refused."""
        self._records.validated += 1
        container = None
        try:
            container = ValidatedContainer(request)
            why = refusal(container, self._decisions(), self._exempt)
        except ProtobufError as error:
            why = f"the request can't be read: {error}"
        except (AttributeError, KeyError, TypeError) as error:
            why = f"the snapshot has another form: {type(error).__name__}: {error}"
        if why:
            self._records.record_refusal(container, why)
        self._records.publish()
        if not why:
            return b""
        return wire.encoded(1, 1) + wire.encoded(2, f"{NAME}: {why}")

    def _decisions(self) -> Decisions | None:
        decisions = self._snapshots.current()
        problem = self._snapshots.problem
        if problem != self._snapshot_problem:
            self._snapshot_problem = problem
            self._records.log("warning" if problem else "info", problem or "the snapshot is valid")
        return decisions


def check_version(runtime: str, version: str, nri_version: str) -> None:
    """Runtimes before NRI 0.12 do not report its version; before 0.10 they refuse a plugin that
    subscribes to validation. Raises TooOldError."""
    if nri_version:
        old = _numbers(nri_version) < _FIRST_WITH_VALIDATION
    else:
        old = runtime == "containerd" and _numbers(version) < _CONTAINERD_WITH_VALIDATION
    if old:
        has = f"NRI {nri_version[:40]}" if nri_version else "an earlier one"
        raise TooOldError(f"{runtime[:40]} {version[:40]} has {has}, and validation needs NRI 0.10")


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers; large ones for a text without, such as that of a development build."""
    parts = version.removeprefix("v").split(".")[:2]
    if len(parts) == 2 and all(each.isdecimal() and len(each) < 9 for each in parts):
        return tuple(map(int, parts))
    return (1 << 31, 0)


def _check_registration(response: bytes) -> None:
    """Raises SessionEndError if the runtime refused the guard."""
    status = wire.message_at(response, 1)
    if wire.integer(status, 1):
        raise SessionEndError(f"the guard is not registered: {wire.text(status, 2)[:300]}")


def _content(path: str) -> bytes:
    """Raises OSError, SnapshotFormError."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise SnapshotFormError(f"it has {size} bytes, and {MOST_BYTES} are the maximum")
        return file.read(MOST_BYTES) or b""


def _connected(path: str) -> _socket.socket:
    """Raises OSError."""
    connected = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connected.settimeout(_REGISTRATION_SECONDS)
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected


def run(state_dir: str, socket_path: str, exempt: Sequence[str], *, json: bool) -> None:
    """Runs until a signal ends the process. Raises GuardRunsError, OSError when the state folder
    can't be written."""
    records = Records(state_dir, json=json)

    def end(number: int, _: object) -> None:
        records.close()
        os._exit(0)

    # As the first process of a container it would ignore signals without a handler.
    for number in (_signal.SIGTERM, _signal.SIGINT):
        _signal.signal(number, end)
    _signal.signal(_signal.SIGALRM, lambda number, frame: os._exit(1))
    with open("/proc/sys/kernel/random/boot_id") as file:
        snapshots = SnapshotReader(os.path.join(state_dir, SNAPSHOT), file.read().strip())
    guard = Guard(snapshots, records, exempt)
    delay = _FIRST_DELAY_SECONDS
    while True:
        pause = delay
        try:
            connected = _connected(socket_path)
            try:
                guard.serve(connected)
            finally:
                connected.close()
        except TooOldError as error:
            records.report_problem(str(error), too_old=True)
            pause = _TOO_OLD_SECONDS
        except (SessionEndError, ProtobufError, OSError) as error:
            delay = (
                _FIRST_DELAY_SECONDS if records.ready else min(delay * 2, _LONGEST_DELAY_SECONDS)
            )
            where = f"{socket_path}: " if isinstance(error, OSError) else ""
            records.report_problem(f"{where}{error}")
        _signal.alarm(0)
        time.sleep(pause)


def main(words: Sequence[str]) -> int:
    """`words`: the state folder, the runtime's socket, the format of the log, and the exempt
    patterns. Returns the exit code."""
    state_dir, socket_path, log_format, *exempt = words
    try:
        run(state_dir, socket_path, exempt, json=log_format == "json")
    except (GuardRunsError, OSError) as error:
        os.write(2, f"topolet: {error}\n".encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
