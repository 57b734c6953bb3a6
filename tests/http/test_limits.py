"""Limits of connections: which one is closed, refused or served next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from agent.http.limits import (
    ConnectionLimits,
    ConnectionPhase,
    ConnectionTable,
    FullError,
    NewConnections,
    WaitingRequests,
)

LIMITS = ConnectionLimits(
    connections=6, reserved=2, each_peer=3, body_bytes=100, bodies_bytes=150, idle_seconds=60.0
)
PEERS = st.sampled_from(["a", "b", "c"])


class Clients(RuleBasedStateMachine):
    """Clients connect, send and disconnect in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table: ConnectionTable[int] = ConnectionTable(LIMITS)
        self.now = 0.0
        self.number = 0
        self.peers: dict[int, str] = {}
        self.local: dict[int, bool] = {}
        self.phases: dict[int, ConnectionPhase] = {}
        self.bytes: Counter[int] = Counter()

    keys = Bundle("keys")

    def forget(self, key: int) -> None:
        for each in (self.peers, self.local, self.phases):
            del each[key]
        del self.bytes[key]

    @rule(target=keys, peer=PEERS, local=st.booleans())
    def connect(self, peer: str, local: bool) -> object:
        self.now += 1
        self.number += 1
        before = dict(self.phases)
        locals_before = sum(self.local.values())
        try:
            victim = self.table.admit(self.number, peer, local, self.now)
        except FullError:
            assert not local or locals_before >= LIMITS.reserved, "a probe was refused"
            remote = [key for key in self.peers if not self.local[key]]
            of_peer = [key for key in remote if self.peers[key] == peer]
            assert any(
                each and all(before[key] is ConnectionPhase.HANDLING for key in each)
                for each in (of_peer, remote, list(before))
            ), "refused although a connection was idle"
            return multiple()
        if victim is not None:
            assert before[victim] is not ConnectionPhase.HANDLING, (
                "a request in progress was closed"
            )
            self.forget(victim)
        self.peers[self.number], self.local[self.number] = peer, local
        self.phases[self.number] = ConnectionPhase.HANDSHAKE
        return self.number

    @rule(key=keys, phase=st.sampled_from(ConnectionPhase))
    def enter(self, key: int, phase: ConnectionPhase) -> None:
        if key in self.phases:
            self.now += 1
            self.table.enter(key, phase, self.now)
            self.phases[key] = phase

    @rule(key=keys, size=st.integers(0, 120))
    def hold(self, key: int, size: int) -> None:
        if key in self.phases:
            victim = self.table.hold(key, size)
            self.bytes[key] = size
            if victim is not None:
                assert victim == key or self.phases[victim] is ConnectionPhase.BODY
                self.forget(victim)

    @rule(key=consumes(keys))
    def leave(self, key: int) -> None:
        self.table.remove(key)
        if key in self.phases:
            self.forget(key)

    @rule()
    def out_of_descriptors(self) -> None:
        victim = self.table.shed()
        idle = [key for key, phase in self.phases.items() if phase is not ConnectionPhase.HANDLING]
        assert (victim is None) is (not idle)
        if victim is not None:
            assert victim in idle
            self.forget(victim)

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        assert set(self.table) == set(self.phases)
        assert len(self.table) <= LIMITS.connections
        remote = [key for key, local in self.local.items() if not local]
        assert len(remote) <= LIMITS.connections - LIMITS.reserved
        of_peer = Counter(self.peers[key] for key in remote)
        assert all(number <= LIMITS.each_peer for number in of_peer.values())

    @invariant()
    def late_connections_are_in_a_phase_for_too_long(self) -> None:
        late = {key for key, _ in self.table.late(self.now + 59)}
        short = {
            key
            for key, phase in self.phases.items()
            if phase not in (ConnectionPhase.HANDLING, ConnectionPhase.IDLE)
        }
        assert short <= late
        ends = self.table.next_end()
        assert (ends is None) is all(
            each is ConnectionPhase.HANDLING for each in self.phases.values()
        )
        if ends is not None:
            assert self.table.late(ends)
            assert not self.table.late(ends - 0.001)
        assert all(self.phases[key] is not ConnectionPhase.HANDLING for key in late)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def filled(limits: ConnectionLimits = LIMITS) -> ConnectionTable[str]:
    """Four remote connections of two peers; the first of each peer is older."""
    table: ConnectionTable[str] = ConnectionTable(limits)
    for now, key in enumerate(("a1", "b1", "a2", "b2")):
        assert table.admit(key, key[0], False, float(now)) is None
    return table


def test_the_oldest_idle_connection_is_closed_for_a_new_one() -> None:
    table = filled()
    assert table.admit("c1", "c", False, 9.0) == "a1"
    assert table.admit("c2", "c", False, 9.0) == "b1"


def test_an_answered_client_is_closed_later_than_one_without_a_request() -> None:
    table = filled()
    table.enter("a1", ConnectionPhase.REPLY, 4.0)
    table.enter("a1", ConnectionPhase.IDLE, 4.0)
    assert table.admit("c1", "c", False, 9.0) == "b1"


def test_single_bytes_do_not_extend_the_time_of_a_client() -> None:
    """The time counts from the begin of a phase, and a slowly sent head begins none."""
    table = filled()
    assert [key for key, _ in table.late(5.5)] == ["a1"]
    assert [key for key, _ in table.late(7.5)] == ["a1", "b1", "a2"]


def test_a_peer_closes_its_own_connections_first() -> None:
    table = filled()
    assert table.admit("a3", "a", False, 9.0) == "a1"
    table.enter("a2", ConnectionPhase.HANDLING, 9.0)
    table.enter("a3", ConnectionPhase.HANDLING, 9.0)
    assert table.admit("a4", "a", False, 9.0) == "b1"


def test_the_table_is_crowded_if_each_connection_has_a_request() -> None:
    table = filled()
    for each in ("a1", "b1", "a2"):
        table.enter(each, ConnectionPhase.HANDLING, 5.0)
    assert not table.crowded()
    table.enter("b2", ConnectionPhase.HANDLING, 5.0)
    assert table.crowded()
    table.remove("b2")
    assert not table.crowded()


def test_too_many_bodies_close_the_oldest_connection() -> None:
    table = filled()
    for each in ("a1", "b1"):
        table.enter(each, ConnectionPhase.BODY, 5.0 + int(each == "b1"))
    assert table.hold("a1", 100) is None
    assert table.hold("b1", 100) == "a1"


def test_a_request_in_progress_keeps_its_body_while_others_send() -> None:
    table = filled()
    table.hold("a1", 100)
    table.enter("a1", ConnectionPhase.HANDLING, 5.0)
    table.enter("b1", ConnectionPhase.BODY, 6.0)
    assert table.hold("b1", 100) == "b1"


@given(
    st.lists(st.tuples(PEERS, st.booleans()), max_size=40),
    st.integers(2, 4),
    st.data(),
)
def test_the_order_of_waiting_requests(
    requests: list[tuple[str, bool]], threads: int, data: st.DataObject
) -> None:
    """Each request gets a thread once, in the order of its peer; one thread is for the node."""
    waiting: WaitingRequests[int] = WaitingRequests(threads, 1)
    for number, (peer, local) in enumerate(requests):
        waiting.put(peer, local, number)
    running: list[bool] = []
    order: list[int] = []
    while len(order) < len(requests) or running:
        entry = waiting.take() if len(running) < threads else None
        if entry is not None:
            order.append(entry[0])
            running.append(entry[1])
            assert requests[entry[0]][1] is entry[1]
        else:
            assert running, "a thread is idle while a request waits"
            waiting.end(running.pop(data.draw(st.integers(0, len(running) - 1))))
        assert running.count(False) <= threads - 1
    assert sorted(order) == list(range(len(requests)))
    for each in set(requests):
        of_peer = [number for number in order if requests[number] == each]
        assert of_peer == sorted(of_peer)


def test_many_requests_of_one_peer_do_not_delay_the_first_of_another() -> None:
    waiting: WaitingRequests[str] = WaitingRequests(3, 1)
    for number in range(5):
        waiting.put("a", False, f"a{number}")
    waiting.put("b", False, "b0")
    entries = [waiting.take(), waiting.take()]
    assert entries == [("a0", False), ("b0", False)]
    assert waiting.take() is None, "the last thread is reserved"
    waiting.put("kubelet", True, "probe")
    assert waiting.take() == ("probe", True)


RATE = ConnectionLimits(connections=6, reserved=2, each_peer=3, new_each_second=2.0)


@given(st.lists(st.tuples(PEERS, st.floats(0, 1)), max_size=200))
def test_a_peer_opens_no_more_connections_than_its_rate_allows(
    attempts: list[tuple[str, float]],
) -> None:
    new, now = NewConnections(RATE), 0.0
    admitted: Counter[str] = Counter()
    for peer, seconds in attempts:
        now += seconds
        admitted[peer] += new.admit(peer, now)
        assert admitted[peer] <= RATE.each_peer + now * RATE.new_each_second + 1e-6


def test_a_peer_that_waits_may_open_connections_again() -> None:
    new = NewConnections(RATE)
    assert [new.admit("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert new.admit("b", 0.0)
    assert [new.admit("a", 1.0) for _ in range(3)] == [True, True, False]


def test_connections_with_an_accepted_certificate_do_not_count() -> None:
    new = NewConnections(RATE)
    for _ in range(100):
        assert new.admit("a", 0.0)
        new.certified("a", 0.0)


def test_without_a_rate_a_peer_opens_any_number_of_connections() -> None:
    new = NewConnections(LIMITS)
    assert all(new.admit("a", 0.0) for _ in range(1_000))
