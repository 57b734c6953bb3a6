from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.scheduler.leader.lease_dir import RETRY_SECONDS, FormerBindings, SentBindings
from agent.scheduler.state.cluster import EXPIRY_SECONDS
from agent.scheduler.state.pod_info import PodName
from agent.scheduler.state.pods_api import BindingApi, BindOutcome
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler.podserver import PodServer

POD = PodName("default", "p", "u")
NOTES = {"topolet.test/given": "cpu 1-2"}


class Bench:
    """Processes, one after the other, with one folder and one API server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.pods = PodServer(server)
        self.pods.put("p", "u")
        self.folder = folder
        self.now = 1000.0
        self.given_up: list[str] = []
        self.waits: list[float] = []
        self.stop = False
        self.transport = Transport(FileAccess(server.url))

    def process(self, *, valid: bool = True) -> tuple[SentBindings, BindingApi]:
        sent = SentBindings(
            str(self.folder), valid=valid, give_up=self.given_up.append, clock=lambda: self.now
        )
        return sent, BindingApi(self.transport, record=sent)

    def follows(self, *, continues: bool = True) -> bool:
        """The next process does what the gate does with its former Bindings."""
        sent, bindings = self.process()
        former = FormerBindings(sent, bindings)
        return former.finish(continues, self.wait) and not former.open

    def wait(self, seconds: float) -> bool:
        if seconds:
            self.waits.append(seconds)
        self.now += seconds
        return self.stop

    def files(self) -> list[str]:
        return os.listdir(self.folder)

    def killed(self) -> None:
        """The process is killed after it sent a Binding, which the server does not have yet."""
        _, bindings = self.process()

        def dies(*_: object) -> bool:
            raise _KilledError

        self.pods.intercept = None
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(Transport, "create", dies)
            with pytest.raises(_KilledError):
                bindings.bind(POD, "n", NOTES)


class _KilledError(BaseException):
    pass


@pytest.fixture
def bench(server: Server, tmp_path: Path) -> Iterator[Bench]:
    it = Bench(server, tmp_path / "bindings")
    yield it
    it.transport.close()


def answers(code: int) -> object:
    return lambda connection, _: reply(connection, code, status(code, "Trouble"))


def test_a_binding_has_a_file_from_before_it_is_sent_until_it_is_answered(bench: Bench) -> None:
    seen: list[int] = []

    def looks(connection: socket.socket, request: Request) -> None:
        seen.append(len(bench.files()))

    bench.pods.intercept = looks  # type: ignore[assignment]
    _, bindings = bench.process()
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(True)
    assert (seen, bench.files()) == ([1], [])


@pytest.mark.parametrize(
    ("code", "files"), [(403, 0), (404, 0), (409, 0), (422, 0), (500, 1), (503, 1)]
)
def test_the_file_stays_while_the_outcome_is_unknown(bench: Bench, code: int, files: int) -> None:
    bench.pods.intercept = answers(code)  # type: ignore[assignment]
    _, bindings = bench.process()
    assert not bindings.bind(POD, "n", NOTES).bound
    assert len(bench.files()) == files


def test_a_refusal_does_not_end_an_earlier_binding_of_the_pod(bench: Bench) -> None:
    _, bindings = bench.process()
    bench.pods.intercept = answers(500)  # type: ignore[assignment]
    bindings.bind(POD, "n", NOTES)
    bench.pods.intercept = answers(403)  # type: ignore[assignment]
    bindings.bind(POD, "n", NOTES)
    assert len(bench.files()) == 1
    bench.pods.intercept = None
    bindings.bind(POD, "n", NOTES)
    assert not bench.files()


def test_the_binding_of_a_killed_process_takes_effect(bench: Bench) -> None:
    """Also if the first one never arrived: kube-scheduler got no answer, and finds a bound pod."""
    bench.killed()
    assert len(bench.files()) == 1
    assert bench.follows()
    (binding,) = bench.pods.bindings
    assert binding["metadata"]["annotations"] == NOTES
    assert binding["target"]["name"] == "n"
    assert not bench.files()


def test_a_binding_that_has_taken_effect_is_a_conflict(bench: Bench) -> None:
    bench.killed()
    pod = bench.pods.put("p", "u", node="n")
    pod["metadata"]["annotations"] = NOTES
    assert bench.follows()
    assert (bench.pods.bindings, bench.files(), bench.waits) == ([], [], [])


@pytest.mark.parametrize(
    "change",
    [
        lambda pods: pods.pods.clear(),
        lambda pods: pods.put("p", "another"),
        lambda pods: pods.put("p", "u", node="elsewhere"),
        lambda pods: (
            pods.put("p", "u", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            setattr(pods, "instead", answers(409)),
        ),
    ],
)
def test_a_pod_that_can_not_be_bound_any_more_needs_no_wait(bench: Bench, change: object) -> None:
    bench.killed()
    change(bench.pods)  # type: ignore[operator]
    assert bench.follows()
    assert (bench.files(), bench.waits) == ([], [])


def test_if_another_process_has_led_no_binding_is_sent_again(bench: Bench) -> None:
    bench.killed()
    assert bench.follows(continues=False)
    assert (bench.pods.bindings, bench.files()) == ([], [])


def test_a_process_with_a_new_identity_has_no_former_bindings(bench: Bench) -> None:
    bench.killed()
    sent, _ = bench.process(valid=False)
    assert (sent.former, bench.files()) == ({}, [])


def test_a_refused_binding_is_waited_for_until_the_server_has_ended_the_first_one(
    bench: Bench,
) -> None:
    bench.killed()
    bench.pods.intercept = answers(403)  # type: ignore[assignment]
    assert bench.follows()
    assert sum(bench.waits) == pytest.approx(EXPIRY_SECONDS, abs=RETRY_SECONDS)
    assert not bench.files()


def test_without_an_answer_the_wait_goes_on(bench: Bench) -> None:
    """The second Binding may take effect as late as the first one."""
    bench.killed()
    bench.pods.intercept = answers(503)  # type: ignore[assignment]
    sent, bindings = bench.process()
    former = FormerBindings(sent, bindings)
    end = bench.now + 3 * EXPIRY_SECONDS
    assert not former.finish(True, lambda seconds: bench.wait(seconds) or bench.now > end)
    assert former.open
    bench.pods.intercept = None
    assert former.finish(True, bench.wait)
    assert len(bench.pods.bindings) == 1


def test_a_term_that_ends_stops_it(bench: Bench) -> None:
    bench.killed()
    bench.stop = True
    assert not bench.follows()
    assert (bench.pods.bindings, len(bench.files())) == ([], 1)


def test_a_binding_that_is_older_than_any_request_is_not_sent_again(bench: Bench) -> None:
    """Its reservation may have ended, and its CPUs may be another pod's."""
    bench.killed()
    bench.now += EXPIRY_SECONDS
    assert bench.follows()
    assert (bench.pods.bindings, bench.files()) == ([], [])


def test_files_of_unknown_outcomes_do_not_pile_up(bench: Bench) -> None:
    _, bindings = bench.process()
    bench.pods.intercept = answers(500)  # type: ignore[assignment]
    for number in range(20):
        bindings.bind(PodName("default", "p", f"u{number}"), "n", NOTES)
        bench.now += EXPIRY_SECONDS / 4
    assert len(bench.files()) <= 5


def test_a_binding_that_was_not_recorded_whole_was_not_sent(bench: Bench) -> None:
    bench.folder.mkdir()
    (bench.folder / ".abc.json.tmp").write_text("{")
    assert bench.follows()
    assert not bench.files()


@pytest.mark.parametrize("text", ["", "{}", '{"pod": 1}'])
def test_a_file_that_cannot_be_read_is_named(bench: Bench, text: str) -> None:
    bench.folder.mkdir()
    (bench.folder / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: "):
        bench.process()


def test_a_folder_that_cannot_be_written_makes_the_identity_worthless(bench: Bench) -> None:
    _, bindings = bench.process()
    bench.folder.rmdir()
    bench.folder.write_text("")
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(True)
    assert bench.given_up


def test_if_not_even_that_is_possible_no_binding_is_sent(bench: Bench) -> None:
    def fails(reason: str) -> None:
        raise OSError(reason)

    sent = SentBindings(str(bench.folder), valid=True, give_up=fails)
    bench.folder.rmdir()
    outcome = BindingApi(bench.transport, record=sent).bind(POD, "n", NOTES)
    assert outcome.bound is False
    assert "pod default/p: its Binding can't be recorded" in outcome.error
    assert not bench.pods.bindings


@given(uid=st.text(min_size=1, max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_uid_is_its_file_is_in_the_folder(tmp_path: Path, uid: str) -> None:
    sent = SentBindings(str(tmp_path / "b"), valid=True, give_up=lambda _: None)
    sent.began(PodName("ns", "p", uid), "n", {})
    (name,) = os.listdir(tmp_path / "b")
    assert json.loads((tmp_path / "b" / name).read_text())["pod"]["uid"] == uid
    assert os.listdir(tmp_path) == ["b"]
    sent.ended(uid, BindOutcome(True))
    assert not os.listdir(tmp_path / "b")
