from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kube.transport import Transport
from agent.scheduler.leader.candidate import RETRY_SECONDS, FormerBindings, SentBindings
from agent.scheduler.state.cluster import EXPIRY_SECONDS
from agent.scheduler.state.pod_info import PodName
from agent.scheduler.state.pods_api import BindingApi, BindOutcome
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler.podserver import PodServer

POD = PodName("default", "p", "u")
NOTES = {"topolet.test/given": "cpu 1-2"}


class Environment:
    """Successive processes with one folder and one API server."""

    def __init__(self, server: Server, transport: Transport, folder: Path) -> None:
        self.pods = PodServer(server)
        self.pods.put("p", "u")
        self.folder = folder
        self.now = 1000.0
        self.given_up: list[str] = []
        self.waits: list[float] = []
        self.stop = False
        self.transport = transport

    def process(self, *, valid: bool = True) -> tuple[SentBindings, BindingApi]:
        sent = SentBindings(
            str(self.folder), valid=valid, give_up=self.given_up.append, clock=lambda: self.now
        )
        return sent, BindingApi(self.transport, record=sent)

    def restart(self, *, continues: bool = True) -> bool:
        """Starts the next process, which finishes the former Bindings as the gate does. Returns
        whether none is open."""
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

    def kill_while_binding(self) -> None:
        """Kills a process after it has recorded a Binding and before the server has received it."""
        _, bindings = self.process()

        def killed(*_: object) -> bool:
            raise _KilledError

        self.pods.intercept = None
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(Transport, "create", killed)
            with pytest.raises(_KilledError):
                bindings.bind(POD, "n", NOTES)


class _KilledError(BaseException):
    pass


@pytest.fixture
def env(server: Server, transport: Transport, tmp_path: Path) -> Environment:
    return Environment(server, transport, tmp_path / "bindings")


def answer_with(code: int) -> object:
    return lambda connection, _: reply(connection, code, status(code, "InternalError"))


def test_a_binding_has_a_file_until_it_is_answered(env: Environment) -> None:
    counts: list[int] = []

    def count_files(connection: socket.socket, request: Request) -> None:
        counts.append(len(env.files()))

    env.pods.intercept = count_files  # type: ignore[assignment]
    _, bindings = env.process()
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(True)
    assert (counts, env.files()) == ([1], [])


@pytest.mark.parametrize(
    ("code", "files"), [(403, 0), (404, 0), (409, 0), (422, 0), (500, 1), (503, 1)]
)
def test_the_file_stays_while_the_outcome_is_unknown(
    env: Environment, code: int, files: int
) -> None:
    env.pods.intercept = answer_with(code)  # type: ignore[assignment]
    _, bindings = env.process()
    assert not bindings.bind(POD, "n", NOTES).bound
    assert len(env.files()) == files


def test_a_refusal_does_not_end_an_earlier_binding_of_the_pod(env: Environment) -> None:
    _, bindings = env.process()
    env.pods.intercept = answer_with(500)  # type: ignore[assignment]
    bindings.bind(POD, "n", NOTES)
    env.pods.intercept = answer_with(403)  # type: ignore[assignment]
    bindings.bind(POD, "n", NOTES)
    assert len(env.files()) == 1
    env.pods.intercept = None
    bindings.bind(POD, "n", NOTES)
    assert not env.files()


def test_a_refused_binding_long_after_one_without_an_answer_is_not_sent_again(
    env: Environment,
) -> None:
    """The first one can take no effect any more, and another pod may own the CPUs of the second."""
    _, bindings = env.process()
    env.pods.intercept = answer_with(500)  # type: ignore[assignment]
    bindings.bind(POD, "n", NOTES)
    env.now += EXPIRY_SECONDS
    env.pods.intercept = answer_with(403)  # type: ignore[assignment]
    bindings.bind(POD, "other", NOTES)
    assert not env.files()


def test_the_binding_of_a_killed_process_takes_effect(env: Environment) -> None:
    """Also if the server never received it: kube-scheduler got no answer, and then sees a bound
    pod."""
    env.kill_while_binding()
    assert len(env.files()) == 1
    assert env.restart()
    (binding,) = env.pods.bindings
    assert binding["metadata"]["annotations"] == NOTES
    assert binding["target"]["name"] == "n"
    assert not env.files()


def test_a_former_binding_that_has_taken_effect_needs_no_wait(env: Environment) -> None:
    env.kill_while_binding()
    pod = env.pods.put("p", "u", node="n")
    pod["metadata"]["annotations"] = NOTES
    assert env.restart()
    assert (env.pods.bindings, env.files(), env.waits) == ([], [], [])


@pytest.mark.parametrize(
    "change",
    [
        lambda pods: pods.pods.clear(),
        lambda pods: pods.put("p", "another"),
        lambda pods: pods.put("p", "u", node="elsewhere"),
        lambda pods: (
            pods.put("p", "u", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            setattr(pods, "intercept", answer_with(409)),
        ),
    ],
)
def test_a_pod_that_can_no_longer_be_bound_needs_no_wait(env: Environment, change: object) -> None:
    env.kill_while_binding()
    change(env.pods)  # type: ignore[operator]
    assert env.restart()
    assert (env.files(), env.waits) == ([], [])


def test_no_binding_is_sent_again_if_another_process_has_led(env: Environment) -> None:
    env.kill_while_binding()
    assert env.restart(continues=False)
    assert (env.pods.bindings, env.files()) == ([], [])


def test_a_process_with_a_new_identity_has_no_former_bindings(env: Environment) -> None:
    env.kill_while_binding()
    sent, _ = env.process(valid=False)
    assert (sent.former, env.files()) == ({}, [])


def test_after_a_refusal_the_first_binding_may_take_effect_until_it_times_out(
    env: Environment,
) -> None:
    env.kill_while_binding()
    env.pods.intercept = answer_with(403)  # type: ignore[assignment]
    assert env.restart()
    assert sum(env.waits) == pytest.approx(EXPIRY_SECONDS, abs=RETRY_SECONDS)
    assert not env.files()


def test_without_an_answer_the_wait_continues(env: Environment) -> None:
    """The second Binding may take effect as late as the first one."""
    env.kill_while_binding()
    env.pods.intercept = answer_with(503)  # type: ignore[assignment]
    sent, bindings = env.process()
    former = FormerBindings(sent, bindings)
    end = env.now + 3 * EXPIRY_SECONDS
    assert not former.finish(True, lambda seconds: env.wait(seconds) or env.now > end)
    assert former.open
    env.pods.intercept = None
    assert former.finish(True, env.wait)
    assert len(env.pods.bindings) == 1


def test_the_end_of_the_term_stops_the_wait(env: Environment) -> None:
    env.kill_while_binding()
    env.stop = True
    assert not env.restart()
    assert (env.pods.bindings, len(env.files())) == ([], 1)


def test_a_binding_older_than_the_request_timeout_is_not_sent_again(env: Environment) -> None:
    """Its reservation may have expired, and its CPUs may be allocated to another pod."""
    env.kill_while_binding()
    env.now += EXPIRY_SECONDS
    assert env.restart()
    assert (env.pods.bindings, env.files()) == ([], [])


def test_files_of_unknown_outcomes_are_removed_after_the_request_timeout(env: Environment) -> None:
    _, bindings = env.process()
    env.pods.intercept = answer_with(500)  # type: ignore[assignment]
    for number in range(20):
        bindings.bind(PodName("default", "p", f"u{number}"), "n", NOTES)
        env.now += EXPIRY_SECONDS / 4
    assert len(env.files()) <= 5


def test_an_incomplete_file_is_removed(env: Environment) -> None:
    env.folder.mkdir()
    (env.folder / ".abc.json.tmp").write_text("{")
    assert env.restart()
    assert not env.files()


@pytest.mark.parametrize("text", ["", "{}", '{"pod": 1}'])
def test_an_invalid_file_is_an_error_with_its_name(env: Environment, text: str) -> None:
    env.folder.mkdir()
    (env.folder / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: "):
        env.process()


def test_a_folder_that_cannot_be_written_gives_up_the_identity(env: Environment) -> None:
    _, bindings = env.process()
    env.folder.rmdir()
    env.folder.write_text("")
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(True)
    assert env.given_up


def test_no_binding_is_sent_if_the_identity_cannot_be_given_up(env: Environment) -> None:
    def fails(reason: str) -> None:
        raise OSError(reason)

    sent = SentBindings(str(env.folder), valid=True, give_up=fails)
    env.folder.rmdir()
    outcome = BindingApi(env.transport, record=sent).bind(POD, "n", NOTES)
    assert outcome.bound is False
    assert "pod default/p: its Binding can't be recorded" in outcome.error
    assert not env.pods.bindings


@given(uid=st.text(min_size=1, max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_file_of_any_uid_is_in_the_folder(tmp_path: Path, uid: str) -> None:
    sent = SentBindings(str(tmp_path / "b"), valid=True, give_up=lambda _: None)
    sent.began(PodName("ns", "p", uid), "n", {})
    (name,) = os.listdir(tmp_path / "b")
    assert json.loads((tmp_path / "b" / name).read_text())["pod"]["uid"] == uid
    assert os.listdir(tmp_path) == ["b"]
    sent.ended(uid, BindOutcome(True))
    assert not os.listdir(tmp_path / "b")
