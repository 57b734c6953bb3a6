"""The guard's session with a fake runtime, and its memory."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.guard import process
from agent.guard.process import (
    Guard,
    SessionEndError,
    SnapshotReader,
    TooOldError,
    check_version,
)
from agent.guard.records import Records
from agent.guard.wire import ProtobufError
from agent.host.files import boot_id
from agent.host.loop import Loop
from agent.model import snapshot
from agent.node import nri_guard
from agent.proto import nri_pb2 as pb
from agent.proto import ttrpc_pb2 as ttrpc
from tests.guard.containers import BASE, pod
from tests.nri.fake import FakeRuntime
from tests.waiting import DEADLINE_SECONDS, eventually

MOST_MB = 12.0


class Session:
    """A guard in a thread, and the runtime's end of its connection."""

    def __init__(self, folder: Path) -> None:
        self.state = str(folder)
        self.loop = Loop()
        self.runtime = FakeRuntime(folder, self.loop)
        self.records = Records(self.state, json=False)
        self.snapshot = folder / snapshot.FILE
        self.guard = Guard(SnapshotReader(str(self.snapshot), "boot"), self.records)
        self.ended: list[Exception] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self.runtime.path)
        try:
            self.guard.serve(connected)
        except (SessionEndError, ProtobufError, OSError) as error:
            self.ended.append(error)
        finally:
            connected.close()

    def ask(self, **fields: object) -> pb.ValidateContainerAdjustmentResponse:
        request = pb.ValidateContainerAdjustmentRequest(**fields)  # type: ignore[arg-type]
        return self.runtime.call(
            "ValidateContainerAdjustment", request, pb.ValidateContainerAdjustmentResponse
        )

    def end(self) -> Exception:
        """Why the session ended."""
        self._thread.join(DEADLINE_SECONDS)
        (error,) = self.ended
        return error

    def close(self) -> None:
        self.runtime.close()
        self._thread.join(DEADLINE_SECONDS)
        self.records.close()
        self.loop.close()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr("_signal.alarm", lambda seconds: 0)  # of the main thread
    it = Session(tmp_path)
    yield it
    it.close()


def test_it_subscribes_to_validation_and_answers(session: Session) -> None:
    session.snapshot.write_bytes(snapshot.encode(BASE))
    registration = session.runtime.accept()
    assert (registration.plugin_idx, registration.plugin_name) == ("99", "topolet-guard")
    answer = session.runtime.configure()
    assert answer.events == 1 << (pb.VALIDATE_CONTAINER_ADJUSTMENT - 1)
    assert session.runtime.synchronize(more=True).more
    assert not session.records.ready
    assert not session.runtime.synchronize().more
    eventually("it is ready", lambda: session.records.ready)
    adjust = pb.ContainerAdjustment(linux={"resources": {"cpu": {"cpus": "4-7"}}})
    assert not session.ask(pod=pod("own"), adjust=adjust).reject
    refused = session.ask(pod=pod("own"), container=pb.Container(name="c"))
    assert refused.reject
    why = "pod ns/own owns CPUs 4-7, but its container c would start on any CPU"
    assert refused.reason == f"topolet-guard: {why}"
    status = nri_guard.status(session.state)
    assert status is not None
    assert (status.ready, status.validated, status.refused, status.sessions) == (True, 2, 1, 1)


def test_what_cannot_be_read_is_refused(session: Session) -> None:
    session.runtime.set_up()
    stream = session.runtime.begin("ValidateContainerAdjustment", pb.PodSandbox(id="x"))
    reply = session.runtime.response(stream)
    # Field 1 is a text there and a pod here: an empty message can't have these bytes.
    answer = pb.ValidateContainerAdjustmentResponse.FromString(reply.payload)
    assert answer.reject
    assert "can't be read" in answer.reason
    stream = session.runtime.begin("Unknown", pb.Empty())
    assert session.runtime.response(stream).status.code == 12
    session.runtime.call("Shutdown", pb.Empty(), pb.Empty)


def test_a_snapshot_of_another_form_refuses_and_ends_nothing(session: Session) -> None:
    text = snapshot.encode(BASE).replace(b'"cpuset":"0-3"}', b'"cpuset":7}')
    session.snapshot.write_bytes(text)
    session.runtime.set_up()
    answer = session.ask(pod=pod("ls"), container=pb.Container(name="c"))
    assert answer.reject
    session.snapshot.write_bytes(snapshot.encode(BASE))


def test_a_refused_registration_ends_the_session(session: Session) -> None:
    stream, answer = session.runtime.accept_without_answer()
    answer.status.CopyFrom(ttrpc.Status(code=2, message="no index"))
    session.runtime.respond(stream, answer)
    assert "not registered: no index" in str(session.end())


def test_a_runtime_that_closes_after_the_subscription_is_too_old(session: Session) -> None:
    session.runtime.accept()
    session.runtime.configure(NRI_version="")
    session.runtime.drop()
    error = session.end()
    assert isinstance(error, TooOldError)
    assert "needs NRI 0.10" in str(error)


def test_a_runtime_that_ends_is_a_problem_of_the_session(session: Session) -> None:
    session.runtime.set_up()
    eventually("it is ready", lambda: session.records.ready)
    session.runtime.drop()
    assert isinstance(session.end(), SessionEndError)


@pytest.mark.parametrize(
    ("runtime", "version", "nri", "old"),
    [
        ("containerd", "v2.4.2", "v0.12.3", False),
        ("containerd", "v2.2.1", "", False),
        ("containerd", "v2.1.4", "", True),
        ("containerd", "1.7.28", "", True),
        ("containerd", "devel", "", False),
        ("cri-o", "1.30.0", "", False),
        ("other", "1", "v0.9.0", True),
        ("other", "1", "v0.10.0", False),
    ],
)
def test_runtimes_without_validation_are_found(
    runtime: str, version: str, nri: str, old: bool
) -> None:
    if old:
        with pytest.raises(TooOldError, match=f"{runtime} {version} has"):
            check_version(runtime, version, nri)
    else:
        check_version(runtime, version, nri)


class TestSnapshots:
    def test_a_changed_file_is_read_again(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        reader = SnapshotReader(str(path), "boot")
        assert reader.current() is None
        path.write_bytes(snapshot.encode(BASE))
        first = reader.current()
        assert first is not None
        assert reader.current() is first
        path.write_text('{"version":1,"torn')
        assert reader.current() is first
        assert "can't be read" in reader.problem
        path.unlink()
        assert reader.current() is None

    def test_one_of_another_boot_counts_as_none(self, tmp_path: Path) -> None:
        (tmp_path / "s").write_bytes(snapshot.encode(BASE))
        assert SnapshotReader(str(tmp_path / "s"), "later").current() is None

    def test_one_that_is_too_large_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "MOST_BYTES", 10)
        (tmp_path / "s").write_bytes(snapshot.encode(BASE))
        reader = SnapshotReader(str(tmp_path / "s"), "boot")
        assert reader.current() is None
        assert "10 are the maximum" in reader.problem


def test_the_process_is_small_and_ends_on_sigterm(tmp_path: Path) -> None:
    """The maximum of its memory after 200 containers on a node of 100 pods."""
    loop = Loop()
    runtime = FakeRuntime(tmp_path, loop)
    pods = {f"u{number}": BASE.pods["ls"] for number in range(100)}
    decided = snapshot.encode(
        snapshot.Snapshot(1, 1, boot_id(), False, BASE.pools, BASE.owners, pods, {})
    )
    (tmp_path / snapshot.FILE).write_bytes(decided)
    environ = {each: value for each, value in os.environ.items() if not each.startswith("PYTHON")}
    flags = [f"--state-dir={tmp_path}", f"--nri-socket={runtime.path}"]
    command = [sys.executable, "-m", "agent", "nri-guard", *flags]
    with subprocess.Popen(command, env=environ) as guard:
        try:
            containers = [
                pb.Container(id=f"c{number}", env=[b"A=" + b"x" * 4_000]) for number in range(100)
            ]
            runtime.set_up(*containers)
            request = pb.ValidateContainerAdjustmentRequest(
                pod=pod("u7"), container=pb.Container(env=[b"A=" + b"x" * 20_000])
            )
            request.adjust.linux.resources.cpu.cpus = "0-3"
            for number in range(200):
                (tmp_path / snapshot.FILE).write_bytes(decided + b" " * number)
                answer = runtime.call(
                    "ValidateContainerAdjustment",
                    request,
                    pb.ValidateContainerAdjustmentResponse,
                )
                assert not answer.reject
            status = Path(f"/proc/{guard.pid}/status").read_text()
            (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
            assert int(kilobytes) / 1024 <= MOST_MB
            guard.terminate()
            assert guard.wait(DEADLINE_SECONDS) == 0
            assert nri_guard.status(str(tmp_path)) is None
        finally:
            guard.kill()
            runtime.close()
            loop.close()
