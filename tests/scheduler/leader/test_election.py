from __future__ import annotations

import datetime
import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.scheduler.leader import election
from agent.scheduler.leader.election import Clocks, Leader, LeaseTimes
from tests.kube.fake_api_server import Server
from tests.scheduler.leases import Leases

TIMES = LeaseTimes(15, 10, 2)
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


class Machine:
    """A candidate with its own clocks: `offset` and `rate` are relative to the time of the test."""

    def __init__(
        self, server: Server, name: str, wall_offset: float = 0, offset: float = 0, rate: float = 1
    ) -> None:
        self.now = 0.0
        self.acquisitions = 0
        self.unhealthy: str | None = None
        self.arguments = (server, name, wall_offset, offset, rate)
        self._offset, self._rate, self._wall_offset = offset, rate, wall_offset
        clocks = Clocks(self._monotonic, self._wall, lambda stopped, seconds: stopped.is_set())
        self._transport = Transport(FileAccess(server.url), limits=election.limits(TIMES))
        self.leader = Leader(
            self._transport,
            "n",
            "l",
            name,
            times=TIMES,
            clocks=clocks,
            acquired=self._count_acquisition,
            unhealthy=lambda: self.unhealthy,
        )

    def step(self, now: float) -> bool:
        self.now = now
        self.leader.step()
        return self.leader.leading

    def leads(self, now: float) -> bool:
        self.now = now
        return self.leader.leading

    def restarted(self) -> Machine:
        """Kills the process. Returns the next one, which has the same identity."""
        self.close()
        return Machine(*self.arguments)

    def close(self) -> None:
        self._transport.close()

    def _count_acquisition(self) -> None:
        self.acquisitions += 1

    def _monotonic(self) -> float:
        return self._offset + self.now * self._rate

    def _wall(self) -> datetime.datetime:
        return NOON + datetime.timedelta(seconds=self.now + self._wall_offset)


@pytest.fixture
def leases(server: Server) -> Leases:
    return Leases(server)


def test_the_first_candidate_creates_the_lease_and_leads(server: Server, leases: Leases) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    assert first.step(0)
    assert not second.step(0)
    assert leases.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-05-01T12:00:00.000000Z",
        "renewTime": "2026-05-01T12:00:00.000000Z",
        "leaseTransitions": 0,
    }
    assert second.leader.holder == "a"
    assert (first.acquisitions, second.acquisitions) == (1, 0)


def test_the_term_is_new_before_a_candidate_leads(server: Server, leases: Leases) -> None:
    """A thread that answers requests would take the pods of the former term for all pods."""

    class Observed(Leader):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_until" and value is not None:
                terms.append(self.term)

    terms: list[int] = []
    transport = Transport(FileAccess(server.url), limits=election.limits(TIMES))
    Observed(transport, "n", "l", "a", times=TIMES).step()
    transport.close()
    assert terms == [1]


def test_a_renewal_keeps_the_acquire_time_and_the_fields_of_other_clients(
    server: Server, leases: Leases
) -> None:
    first = Machine(server, "a")
    first.step(0)
    assert leases.stored is not None
    leases.put({**leases.stored, "metadata": {"name": "l", "labels": {"of": "others"}}})
    assert first.step(2)
    assert leases.spec["acquireTime"] == "2026-05-01T12:00:00.000000Z"
    assert leases.spec["renewTime"] == "2026-05-01T12:00:02.000000Z"
    assert leases.stored["metadata"]["labels"] == {"of": "others"}
    assert first.acquisitions == 1


# Offsets of the second machine's clocks. It may acquire a Lease that it first read at 1, and that
# was last renewed at 0.
@pytest.mark.parametrize("wall_offset", [0, 3600, -3600, 86_400 * 400])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_dead_leaders_lease_is_acquired_after_its_duration_by_the_candidates_own_clock(
    server: Server, leases: Leases, wall_offset: float, offset: float
) -> None:
    first, second = Machine(server, "a"), Machine(server, "b", wall_offset, offset)
    assert first.step(0)
    assert not second.step(1)
    assert not second.step(15.9)
    assert first.leads(9.9)
    assert not first.leads(10)
    assert second.step(16)
    assert leases.spec["holderIdentity"] == "b"
    assert leases.spec["leaseTransitions"] == 1
    assert not second.leader.continues
    assert not first.step(16.5)


def test_each_renewal_restarts_the_wait_of_the_others(server: Server, leases: Leases) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    for now in range(0, 60, 2):
        assert first.step(now)
        assert not second.step(now + 1)
    assert second.step(58 + 1 + 15)


def test_the_lease_duration_of_the_holder_is_used(server: Server, leases: Leases) -> None:
    leases.put(
        {
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "slow", "leaseDurationSeconds": 60, "renewTime": "x"},
        }
    )
    machine = Machine(server, "a")
    assert not machine.step(0)
    assert not machine.step(59)
    assert machine.step(60)


def test_a_stopped_leader_releases_the_lease(server: Server, leases: Leases) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    first.step(0)
    assert not second.step(1)
    first.leader.stop()
    assert not first.leads(1)
    assert leases.spec["holderIdentity"] == ""
    assert second.step(1)


def test_a_stopping_follower_does_not_write_the_lease(server: Server, leases: Leases) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    first.step(0)
    second.step(0)
    writes = leases.writes
    second.leader.stop()
    assert leases.writes == writes


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_leadership_ends_when_the_lease_cannot_be_renewed(
    server: Server, leases: Leases, code: int
) -> None:
    machine = Machine(server, "a")
    machine.step(0)
    leases.error_code = code
    assert machine.step(9)
    assert machine.leader.problem.text
    assert not machine.step(10)
    leases.error_code = None
    assert machine.step(12)
    assert machine.leader.problem.text is None
    assert (machine.acquisitions, machine.leader.term) == (2, 2)


def test_an_unhealthy_leader_does_not_keep_the_lease(server: Server, leases: Leases) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    assert first.step(0)
    assert not second.step(1)
    first.unhealthy = "a request to filter has not been answered for 5 s"
    assert first.step(9)
    assert first.leader.problem.text == first.unhealthy
    assert not first.step(11)
    assert second.step(17)
    assert not first.step(18)
    first.unhealthy = None
    assert not first.step(19)
    assert first.leader.problem.text is None


def test_a_renewal_whose_answer_is_lost_is_detected(server: Server, leases: Leases) -> None:
    machine = Machine(server, "a")
    machine.step(0)
    leases.drop_responses = True
    machine.step(2)
    leases.drop_responses = False
    assert machine.step(4)
    assert machine.leads(13.9)
    assert machine.acquisitions == 1


def test_a_killed_leader_leads_again_at_once_with_the_same_identity(
    server: Server, leases: Leases
) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    first.step(0)
    assert not second.step(1)
    first = first.restarted()
    assert first.step(2)
    assert first.leader.continues
    assert (leases.spec["holderIdentity"], leases.spec["leaseTransitions"]) == ("a", 0)
    assert not second.step(16), "the Lease has changed at 2"
    assert second.step(18 - 1 + 15)


def acquire_and_release(leases: Leases, second: Machine) -> None:
    second.step(0)
    assert second.step(15)
    second.leader.stop()


def delete(leases: Leases, second: Machine) -> None:
    leases.stored = None


@pytest.mark.parametrize("change", [acquire_and_release, delete], ids=["released", "removed"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_term_continues_the_former_one_only_if_no_other_candidate_led(
    server: Server, leases: Leases, change: Callable[[Leases, Machine], None], lost: bool
) -> None:
    """Also if the answer to the write is lost, and the candidate finds its own Lease afterwards."""
    first, second = Machine(server, "a"), Machine(server, "b")
    first.step(0)
    first = first.restarted()
    change(leases, second)
    leases.drop_responses = lost
    first.step(16)
    leases.drop_responses = False
    assert first.step(18)
    assert not first.leader.continues


def test_a_leader_without_answers_does_not_report_itself_as_the_holder(
    server: Server, leases: Leases
) -> None:
    machine = Machine(server, "a")
    machine.step(0)
    leases.error_code = 500
    machine.step(10)
    assert not machine.leads(10)
    assert machine.leader.holder == ""


def test_a_candidate_reports_that_it_cannot_read_the_lease(server: Server, leases: Leases) -> None:
    first, second = Machine(server, "a"), Machine(server, "b")
    first.step(0)
    second.step(0)
    leases.error_code = 403
    second.step(2)
    assert second.leader.lease_problem is None, "one answer may fail"
    second.step(15)
    assert second.leader.lease_problem is not None
    assert second.leader.lease_problem.startswith("lease n/l: ")
    leases.error_code = None
    second.step(17)
    assert second.leader.lease_problem is None


def test_an_invalid_lease_is_a_problem(server: Server, leases: Leases) -> None:
    leases.put({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": "long"}})
    machine = Machine(server, "a")
    assert not machine.step(0)
    assert machine.leader.problem.text == (
        "Lease l: spec.leaseDurationSeconds: Expected `int | null`, got `str`"
    )


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_that_allow_two_leaders_are_refused(times: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="each must be less than the one before"):
        LeaseTimes(*times)


# Steps: the candidate, the seconds before the step, and the behavior of the server. "killed": the
# process is killed before the step, and the next one has its identity.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.floats(0, 8),
        st.sampled_from(["answers", "answers", "answers", "fails", "loses", "killed"]),
    ),
    max_size=40,
)


@given(
    steps=STEPS,
    walls=st.tuples(*[st.floats(-1e5, 1e5)] * 3),
    offsets=st.tuples(*[st.floats(0, 1e6)] * 3),
    # Rates of real clocks differ by far less than a tenth. TIMES allow for 10 s against 15 s.
    rates=st.tuples(*[st.floats(0.9, 1.1)] * 3),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_two_candidates_never_lead_at_once(
    server: Server,
    steps: list[tuple[int, float, str]],
    walls: tuple[float, ...],
    offsets: tuple[float, ...],
    rates: tuple[float, ...],
) -> None:
    leases = Leases(server)
    machines = [
        Machine(server, name, *each)
        for name, *each in zip("abc", walls, offsets, rates, strict=True)
    ]
    now = 0.0
    for who, seconds, server_state in steps:
        now += seconds
        assert sum(each.leads(now) for each in machines) <= 1
        leases.error_code = 500 if server_state == "fails" else None
        leases.drop_responses = server_state == "loses"
        if server_state == "killed":
            machines[who] = machines[who].restarted()
        machines[who].step(now)
        assert sum(each.leads(now) for each in machines) <= 1
    for each in machines:
        each.close()


def test_the_thread_renews_the_lease_and_ends_with_the_leader(
    server: Server, leases: Leases
) -> None:
    waits = threading.Semaphore(0)

    def wait(stopped: threading.Event, seconds: float) -> bool:
        waits.release()
        return stopped.wait(0.01)

    transport = Transport(FileAccess(server.url), limits=election.limits(TIMES))
    it = Leader(transport, "n", "l", "a", times=TIMES, clocks=Clocks(wait=wait))
    it.start()
    for _ in range(3):
        assert waits.acquire(timeout=10)
    assert it.leading
    it.stop()
    assert not it.leading
    assert leases.spec["holderIdentity"] == ""
    assert not [each for each in threading.enumerate() if each.name == "lease l"]


def test_the_holder_of_a_lease_is_shown_without_the_random_part_of_its_identity(
    server: Server, leases: Leases, transport: Transport
) -> None:
    first, second = Machine(server, "pod-a_0b0a"), Machine(server, "pod-b_9c1d")
    first.step(0)
    second.step(0)
    assert second.leader.holder == "pod-a"
    assert election.read_holder(transport, "n", "l") == "pod-a_0b0a"
