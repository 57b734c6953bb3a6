"""The relay between two h2 state machines, which raise on any slip in framing, HPACK or windows.

Each connection has a seed of its own, and `run(1, seed)` repeats one.
"""

from __future__ import annotations

import contextlib
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import h2.windows
import hpack

from agent.model.verdict import Refuse, Wait
from agent.relay.gate import FORWARD, Call, Forward, GateVerdict, RelayStats, Replace
from agent.relay.relay import Relay
from agent.relay.streams import HeldStream, MemoryBudget, RelayLimits
from agent.rpc import grpc
from agent.rpc.held_calls import HeldCalls

LIMITS = RelayLimits(body_bytes=120_000, reply_bytes=20_000)
TIGHT = LIMITS._replace(held_bytes=260_000, waiting_bytes=200_000, wait_seconds=1e9)
"""Many requests wait for budget, and some are refused: another connection takes and releases
some."""
PATHS = ["/grow", "/shrink", "/keep", "/refuse", "/raise", "/other", "/more"]
HOOKED = frozenset(path.encode() for path in PATHS[:5])
REPLY = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def rewritten(path: str, message: bytes) -> bytes:
    if path == "/grow":
        return message + b"+" * (len(message) % 977 + 3)
    return message[: len(message) // 2] if path == "/shrink" else message


def _consumed_unless_empty(manager: h2.windows.WindowManager, size: int) -> None:
    """h2 takes an empty DATA frame for an error while SETTINGS keep a window below zero."""
    if size:
        _window_consumed(manager, size)


_window_consumed = h2.windows.WindowManager.window_consumed
h2.windows.WindowManager.window_consumed = _consumed_unless_empty  # type: ignore[method-assign]


class Hooks:
    """Answers by path, after a random number of Waits; records the relay's calls."""

    methods = HOOKED

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.replies: list[tuple[Call, bytes | None]] = []
        self.ended: list[Call] = []
        self.open: set[Call] = set()
        self.held: set[Call] = set()

    def request(self, call: Call, message: bytes) -> GateVerdict:
        if call.state is None:
            call.state = self.rng.choice([0, 0, 1, 3, 20])
        assert isinstance(call.state, int)
        if call.state:
            call.state -= 1
            self.held.add(call)
            return Wait()
        self.held.discard(call)
        path = call.path.decode()
        if path == "/raise":
            raise RuntimeError("hook")
        if path == "/refuse":
            return Refuse(7, "no")
        self.open.add(call)
        return FORWARD if path == "/keep" else Replace(rewritten(path, message))

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        self.open.add(call)
        return FORWARD

    def reply(self, call: Call, message: bytes | None) -> None:
        self.open.remove(call)
        self.replies.append((call, message))

    def abandoned(self, call: Call) -> None:
        self.held.remove(call)
        self.ended.append(call)


@dataclass
class Stream:
    """The client's message, and what both ends received."""

    path: str
    body: bytes
    kind: str  # message | packed | none | several | trailers
    message: bytes
    left: bytearray
    got: bytearray = field(default_factory=bytearray)
    arrived: bool = False
    cut: bool = False
    open_at_server: bool = False
    answer: bytes | None = None
    status: dict[str, str] = field(default_factory=dict)
    reply: bytearray = field(default_factory=bytearray)

    def wanted(self) -> bytes:
        """The body that the server should get."""
        changed = self.path in ("/grow", "/shrink") and self.kind in ("message", "packed")
        if not changed or max(len(self.body), len(self.message) + 5) > LIMITS.body_bytes + 5:
            return self.body
        return grpc.encode_message(rewritten(self.path, self.message))


class Fuzz:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        config = h2.config.H2Configuration
        self.client = h2.connection.H2Connection(config(True, header_encoding="utf-8"))
        self.server = h2.connection.H2Connection(config(False, header_encoding="utf-8"))
        self.hooks = Hooks(rng)
        self.tight = rng.random() < 0.3
        self.budget = MemoryBudget(TIGHT if self.tight else LIMITS, HeldCalls())
        self.held: HeldCalls[HeldStream] = HeldCalls()
        self.hog = 0
        self.stats = RelayStats()
        self.to_client, self.to_server = bytearray(), bytearray()
        self.relay = Relay(
            self.hooks,
            self.to_client.extend,
            self.to_server.extend,
            self.stats,
            lambda path, error: None,
            self.budget,
            self.held,
        )
        self.from_client, self.from_server = bytearray(), bytearray()
        self.streams: dict[int, Stream] = {}
        self.unconsumed: list[tuple[int, int]] = []
        self.answers: dict[int, bytearray] = {}
        self.settings_in_flight = 1
        self.settings_sent = 1
        self.wanted_streams = rng.randint(1, 14)
        self.waits_for_quiet = False
        self.sizes_its_table = rng.random() < 0.3
        encode = self.client.encoder.encode
        self.client.encoder.encode = lambda fields, huffman=True: encode(
            fields, huffman=rng.random() < 0.5
        )
        self.client.initiate_connection()
        self.server.initiate_connection()

    def run(self) -> int:
        quiet = 0
        for _ in range(60_000):
            moved = self.act()
            self.from_client += self.client.data_to_send()
            self.from_server += self.server.data_to_send()
            moved |= self.carry()
            quiet = 0 if moved else quiet + 1
            if quiet > 60 and self.finished():
                self.check()
                return self.wanted_streams
        raise AssertionError(f"stalled: {self.unfinished()}")

    def act(self) -> bool:
        rng = self.rng
        sending = [n for n, s in self.streams.items() if s.left or not s.arrived]
        unit = rng.random() * 200
        if unit < 24:
            self.waits_for_quiet = self.waits_for_quiet and any(self.unfinished())
            if self.waits_for_quiet or len(self.streams) == self.wanted_streams:
                return False
            self.waits_for_quiet = rng.random() < 0.2
            return self.open_stream()
        if unit < 100:
            return bool(sending) and self.send_some(rng.choice(sending))
        if unit < 124:
            return bool(self.unconsumed) and self.consume()
        if unit < 150:
            return bool(self.answers) and self.answer_some(rng.choice(list(self.answers)))
        if unit < 151:
            return bool(self.streams) and self.break_off(rng.choice(list(self.streams)))
        if unit < 153:
            return not self.settings_in_flight and self.settings_sent < 6 and self.new_settings()
        if unit < 154 and not self.finished():
            rng.choice([self.client, self.server]).ping(b"pingpong")
            return True
        if unit < 156:
            return self.be_generous()
        if unit < 166 and (self.hooks.held or self.budget.waiting):
            self.held.ask_again()
            self.budget.waiting.ask_again()
            return True
        if unit < 168 and self.tight:
            self.change_hog()
        return False

    def change_hog(self) -> None:
        """Another connection takes budget, or releases it."""
        self.budget.reserved_bytes -= self.hog
        self.hog = 0
        if self.rng.random() < 0.5:
            self.hog = self.rng.randrange(TIGHT.held_bytes)
            self.budget.reserved_bytes += self.hog

    def be_generous(self) -> bool:
        """Credit for bytes that have not arrived, as from a server that measures the bandwidth."""
        still_open = [number for number, stream in self.streams.items() if stream.open_at_server]
        if not still_open or self.finished():
            return False
        credit = self.rng.randint(1, 60_000)
        self.server.increment_flow_control_window(credit)
        with contextlib.suppress(h2.exceptions.StreamClosedError, KeyError):
            self.server.increment_flow_control_window(credit, self.rng.choice(still_open))
        return True

    def new_settings(self) -> bool:
        self.settings_in_flight += 1
        self.settings_sent += 1
        codes = h2.settings.SettingCodes
        initial = self.rng.choice([20_000, 30_000, 65_535, 100_000, 200_000])
        values = {codes.INITIAL_WINDOW_SIZE: initial}
        # Once, and not in addition to the client's own: two changes between two blocks break
        # hpack's encoder.
        if self.settings_sent == 2 and not self.sizes_its_table:
            values[codes.HEADER_TABLE_SIZE] = self.rng.choice([0, 100, 4_096, 9_000])
        self.server.update_settings(values)
        return True

    def open_stream(self) -> bool:
        rng = self.rng
        sizes = [0, 1, 30, 2_000, 16_384, 70_000, 119_990, 120_001, rng.randrange(150_000)]
        size = rng.choice(sizes)
        path = rng.choice(PATHS)
        kind = rng.choice(["message"] * 8 + ["packed", "none", "several", "trailers"])
        message = rng.randbytes(size)
        body = grpc.encode_message(message)
        if kind == "packed":
            packed = gzip.compress(message, 1)
            body = b"\1" + len(packed).to_bytes(4, "big") + packed
        elif kind == "none":
            body = b""
        elif kind == "several":
            body += grpc.encode_message(b"second")
        number = self.client.get_next_available_stream_id()
        if self.sizes_its_table and not self.settings_in_flight and rng.random() < 0.3:
            self.client.encoder.header_table_size = rng.choice([0, 70, 300, 4_096])
        size = rng.choice([1, 200] * 10 + [3_900, 20_000])
        how = rng.choice([hpack.HeaderTuple, hpack.HeaderTuple, hpack.NeverIndexedHeaderTuple])
        self.client.send_headers(
            number,
            [
                (":method", "POST"),
                (":scheme", "http"),
                how(":path", path),
                (":authority", "x"),
                ("grpc-timeout", f"{rng.randrange(10**8)}u"),
                (f"x-{rng.randrange(40)}", "v" * size),
            ],
            priority_weight=rng.choice([None, None, 7]) if size < 16_000 else None,
        )
        self.streams[number] = Stream(path, body, kind, message, bytearray(body))
        return True

    def send_some(self, number: int) -> bool:
        stream, rng = self.streams[number], self.rng
        try:
            window = self.client.local_flow_control_window(number)
        except h2.exceptions.StreamClosedError:
            stream.left.clear()
            stream.arrived = True
            return True
        room = max(0, min(window, 16_384, len(stream.left)))
        if stream.left and not room:
            return False
        size = rng.randint(1, room) if room else 0
        padding = rng.choice([None, None, None, 0, 20]) if size + 25 < room else None
        part = bytes(stream.left[:size])
        last = size == len(stream.left) and rng.random() < 0.8
        with_trailers = last and stream.kind == "trailers"
        if part or last:
            ends = last and not with_trailers
            self.client.send_data(number, part, end_stream=ends, pad_length=padding)
        del stream.left[:size]
        if with_trailers:
            self.client.send_headers(number, [("x-end", "v" * rng.choice([1, 300]))], True)
        stream.arrived = last
        return True

    def consume(self) -> bool:
        size, number = self.unconsumed.pop(self.rng.randrange(len(self.unconsumed)))
        if size:
            self.server.increment_flow_control_window(size)
            with contextlib.suppress(h2.exceptions.StreamClosedError, KeyError):
                self.server.increment_flow_control_window(size, number)
        return True

    def answer_some(self, number: int) -> bool:
        left = self.answers[number]
        try:
            room = min(self.server.local_flow_control_window(number), 16_384, len(left))
            if left and room:
                padding = 9 if room > 50 else None
                part = bytes(left[: room - 20 if padding else room])
                self.server.send_data(number, part, pad_length=padding)
                del left[: len(part)]
            elif not left:
                del self.answers[number]
                self.server.send_headers(number, OK, end_stream=True)
        except h2.exceptions.StreamClosedError:
            self.answers.pop(number, None)
        return True

    def break_off(self, number: int) -> bool:
        """One side ends a stream early."""
        stream = self.streams[number]
        how = self.rng.choice(["client resets", "server resets", "server ends"])
        if how == "client resets":
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                self.client.reset_stream(number, error_code=8)
                stream.cut = True
            stream.left.clear()
            stream.arrived = True
        elif stream.open_at_server and stream.path != "/refuse" and stream.answer is None:
            stream.cut = True
            stream.open_at_server = False
            if how == "server resets":
                self.server.reset_stream(number, error_code=8)
            else:
                self.server.send_headers(number, [*REPLY, ("grpc-status", "4")], end_stream=True)
        return True

    def carry(self) -> bool:
        moved = False
        rng = self.rng
        for source, sink in (
            (self.from_client, self.relay.from_client),
            (self.from_server, self.relay.from_upstream),
        ):
            if source and rng.random() < 0.7:
                sink(memoryview(self.piece(source)))
                moved = True
        if self.to_server and rng.random() < 0.7:
            self.server_sees(self.server.receive_data(self.piece(self.to_server)))
            moved = True
        if self.to_client and rng.random() < 0.7:
            self.client_sees(self.client.receive_data(self.piece(self.to_client)))
            moved = True
        return moved

    def piece(self, source: bytearray) -> bytes:
        size = self.rng.choice([1, 9, 100, 5_000, 1 << 30, 1 << 30])
        data = bytes(source[:size])
        del source[:size]
        return data

    def server_sees(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                stream = self.streams[event.stream_id]
                stream.got += event.data
                self.unconsumed.append((event.flow_controlled_length, event.stream_id))
            elif isinstance(event, h2.events.StreamEnded):
                stream = self.streams[event.stream_id]
                if stream.cut:
                    continue
                size = self.rng.choice([0, 10, 3_000, 19_000, 40_000])
                stream.answer = self.rng.randbytes(size)
                self.answers[event.stream_id] = bytearray(grpc.encode_message(stream.answer))
                self.server.send_headers(event.stream_id, REPLY)
            elif isinstance(event, h2.events.SettingsAcknowledged):
                self.settings_in_flight -= 1
            elif isinstance(event, h2.events.RequestReceived):
                self.streams[event.stream_id].open_at_server = True
            elif isinstance(event, h2.events.StreamReset):
                self.streams[event.stream_id].cut = True
                self.streams[event.stream_id].open_at_server = False
                self.answers.pop(event.stream_id, None)
            assert not isinstance(event, h2.events.ConnectionTerminated)

    def client_sees(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self.streams[event.stream_id].status.update(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.streams[event.stream_id].reply += event.data
                size = event.flow_controlled_length
                self.client.acknowledge_received_data(size, event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.streams[event.stream_id].left.clear()
                self.streams[event.stream_id].arrived = True
            assert not isinstance(event, h2.events.ConnectionTerminated)

    def unfinished(self) -> list[object]:
        waiting = [n for n, s in self.streams.items() if s.left or not s.arrived]
        held = [self.hooks.held, self.budget.waiting]
        pipes = [self.from_client, self.from_server, self.to_client, self.to_server]
        return [waiting, self.answers.keys(), self.unconsumed, *held, *map(len, pipes)]

    def finished(self) -> bool:
        return len(self.streams) == self.wanted_streams and not any(self.unfinished())

    def check(self) -> None:
        for number, stream in self.streams.items():
            if stream.status.get("grpc-status") == "7":
                assert stream.path == "/refuse"
                assert not stream.got
            elif stream.status.get("grpc-status") == "8":
                assert self.tight
                assert stream.path.encode() in HOOKED
                assert not stream.got
            elif not stream.cut:
                assert bytes(stream.got) == stream.wanted(), (
                    number,
                    stream.path,
                    stream.kind,
                )
                assert stream.reply == grpc.encode_message(stream.answer or b"")
                assert stream.status["grpc-status"] == "0"
        assert not self.hooks.open, "a reply was not reported"
        whole = {s.answer for s in self.streams.values() if s.answer is not None}
        assert {m for _, m in self.hooks.replies if m is not None} <= whole
        reported = sum(message is not None for _, message in self.hooks.replies)
        assert reported + self.stats.replies_unread >= sum(
            stream.kind == "message" and stream.path == "/keep" and not stream.cut
            for stream in self.streams.values()
            if len(stream.body) < LIMITS.body_bytes
            if stream.status.get("grpc-status") != "8"
        )
        assert self.budget.reserved_bytes == self.hog
        assert not self.budget.waiting
        assert not self.budget.waiting_bytes
        assert not self.relay.queued_bytes
        assert len(self.held) == self.stats.malformed == 0
        self.check_credit()
        self.check_window()
        self.check_quiet()

    def check_credit(self) -> None:
        """The client may have credit that the relay gave before the server did. The relay keeps
        as much of the server's next credit, no more."""
        ahead = self.client.outbound_flow_control_window - self.server.inbound_flow_control_window
        assert ahead >= 0
        if ahead:
            self.server.increment_flow_control_window(ahead)
            self.carry_all()
        window = self.server.inbound_flow_control_window
        assert self.client.outbound_flow_control_window == window

    def check_window(self) -> None:
        """The relay knows the server's window: of a message that it took over, it sends as much as
        the server accepts, and the rest with the server's next credit."""
        room = 10
        self.budget.reserved_bytes -= self.hog
        self.hog = 0
        bulk = self.begin("/other", b"")
        self.server.increment_flow_control_window(self.client.outbound_flow_control_window, bulk)
        self.carry_all()
        while (left := self.client.local_flow_control_window(bulk) - room) > 0:
            self.client.send_data(bulk, bytes(min(left, 16_384)))
            self.carry_all()
        body = grpc.encode_message(bytes(1_000))
        held = self.begin("/keep", body)
        stream = self.streams[held]
        while stream.left:
            part = bytes(stream.left[: self.client.local_flow_control_window(held)])
            assert part, "the relay gives no credit for a message that it takes over"
            del stream.left[: len(part)]
            self.client.send_data(held, part, end_stream=not stream.left)
            self.carry_all()
        while self.hooks.held:
            self.held.ask_again()
        self.carry_all()
        assert bytes(stream.got) == body[:room]
        self.server.increment_flow_control_window(len(body))
        self.carry_all()
        assert bytes(stream.got) == body
        for number in (bulk, held):
            self.client.reset_stream(number)
            self.carry_all()

    def begin(self, path: str, body: bytes) -> int:
        number = self.client.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        self.client.send_headers(number, fields)
        self.streams[number] = Stream(path, body, "message", body, bytearray(body))
        self.carry_all()
        return number

    def carry_all(self) -> None:
        """Until no bytes move."""
        for _ in range(1_000):
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if up:
                self.relay.from_client(memoryview(up))
            if down:
                self.relay.from_upstream(memoryview(down))
            if not (up or down or self.to_server or self.to_client):
                return
            to_server, to_client = bytes(self.to_server), bytes(self.to_client)
            self.to_server.clear()
            self.to_client.clear()
            self.server_sees(self.server.receive_data(to_server))
            self.client_sees(self.client.receive_data(to_client))
        raise AssertionError("bytes move without end")

    def check_quiet(self) -> None:
        """Without hooked calls and waiting frames, bytes pass as they are."""
        for end, sink, sent in (
            (self.client, self.relay.from_client, self.to_server),
            (self.server, self.relay.from_upstream, self.to_client),
        ):
            end.ping(b"pingpong")
            ping = end.data_to_send()
            assert not sink(memoryview(ping)), "hooked calls or frames remain"
            assert bytes(sent) == ping


def run(streams: int, seed: int) -> Iterator[tuple[int, int, Exception | None]]:
    """For each connection its seed, the streams so far, and its error."""
    done = 0
    while done < streams:
        fuzz, fault = Fuzz(seed), None
        try:
            fuzz.run()
        except Exception as error:  # noqa: BLE001  a fuzzer reports whatever comes
            fault = error
        done += fuzz.wanted_streams
        yield seed, done, fault
        seed += 1
