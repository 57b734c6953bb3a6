"""The relay without sockets; the tests write the frames."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

import hpack
import pytest

from agent.model.verdict import Code, Refuse, Wait
from agent.relay.gate import FORWARD, Call, Forward, GateVerdict, RelayStats, Replace
from agent.relay.relay import Relay, RelayError
from agent.relay.streams import HeldStream, MemoryBudget, RelayLimits
from agent.rpc import frames, grpc, headers
from agent.rpc.headers import PathReader
from agent.rpc.held_calls import HeldCalls

HOOKED = b"/s/Hooked"
OTHER = b"/s/Other"
MESSAGE = grpc.encode_message(b"message")


class Hooks:
    """Returns the configured verdicts in order, and repeats the last one."""

    methods = frozenset({HOOKED})

    def __init__(self, *verdicts: GateVerdict) -> None:
        self.verdicts = list(verdicts or [FORWARD])
        self.requests: list[bytes] = []
        self.replies: list[bytes | None] = []
        self.abandoned_calls = 0
        self.unhooked_reasons: list[str] = []
        self.unhooked_verdict: Forward | Refuse = FORWARD

    def request(self, call: Call, message: bytes) -> GateVerdict:
        self.requests.append(message)
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        self.unhooked_reasons.append(reason)
        return self.unhooked_verdict

    def reply(self, call: Call, message: bytes | None) -> None:
        self.replies.append(message)

    def abandoned(self, call: Call) -> None:
        self.abandoned_calls += 1


class Wire:
    """A relay that has received the client's preface. `up` and `down` return the bytes that it sent
    to the upstream and to the client since the last call."""

    def __init__(
        self,
        hooks: Hooks,
        limits: RelayLimits | None = None,
        stats: RelayStats | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.hooks = hooks
        self.stats = stats or RelayStats()
        self.budget = budget or MemoryBudget(limits or RelayLimits(), HeldCalls())
        self.held: HeldCalls[HeldStream] = HeldCalls()
        self._up, self._down = bytearray(), bytearray()
        self.errors: list[Exception] = []
        self.relay = Relay(
            hooks,
            self._down.extend,
            self._up.extend,
            self.stats,
            lambda path, error: self.errors.append(error),
            self.budget,
            self.held,
        )
        self.client(frames.PREFACE)
        self.up()

    def client(self, *parts: bytes) -> None:
        self.relay.from_client(memoryview(b"".join(parts)))

    def upstream(self, *parts: bytes) -> None:
        self.relay.from_upstream(memoryview(b"".join(parts)))

    def ask_again(self) -> None:
        self.held.ask_again()
        self.budget.waiting.ask_again()

    def up(self) -> bytes:
        return _drain(self._up)

    def down(self) -> bytes:
        return _drain(self._down)


def _drain(buffer: bytearray) -> bytes:
    data = bytes(buffer)
    buffer.clear()
    return data


def opening(stream: int, path: bytes, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(frames.HEADERS, flags, stream, headers.encode([(b":path", path)]))


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream, payload)


def last(stream: int, payload: bytes) -> bytes:
    return data(stream, payload, frames.END_STREAM)


def hooked(stream: int, payload: bytes = MESSAGE) -> bytes:
    """A whole request."""
    return opening(stream, HOOKED) + last(stream, payload)


def packed(content: bytes) -> bytes:
    """A compressed gRPC message."""
    compressed = gzip.compress(content)
    return b"\1" + len(compressed).to_bytes(4, "big") + compressed


def trailers(stream: int) -> bytes:
    flags = frames.END_HEADERS | frames.END_STREAM
    return frames.frame(frames.HEADERS, flags, stream, headers.encode([(b"grpc-status", b"0")]))


def test_an_unchanged_message_leaves_no_credit_owed() -> None:
    wire = Wire(Hooks())
    wire.client(hooked(1))
    assert wire.up() == hooked(1)
    assert wire.down() == b""
    assert wire.hooks.requests == [b"message"]
    credit = frames.window_update(0, len(MESSAGE))
    wire.upstream(credit)
    assert wire.down() == credit


def test_a_longer_message_uses_the_upstreams_credit() -> None:
    wire = Wire(Hooks(Replace(b"message" + bytes(10))))
    wire.client(hooked(1))
    assert wire.up().endswith(last(1, grpc.encode_message(b"message" + bytes(10))))
    wire.upstream(frames.window_update(0, 4), frames.window_update(0, 20))
    assert wire.down() == frames.window_update(0, 14)


def test_a_shorter_message_gives_the_client_credit() -> None:
    wire = Wire(Hooks(Replace(b"m")))
    wire.client(hooked(1))
    assert wire.up().endswith(last(1, grpc.encode_message(b"m")))
    assert wire.down() == frames.window_update(0, 6)


def test_connection_credit_for_held_bytes_is_returned_at_once() -> None:
    wire = Wire(Hooks())
    wire.client(opening(1, HOOKED), data(1, MESSAGE[:8]))
    assert wire.down() == frames.window_update(1, 8) + frames.window_update(0, 8)
    wire = Wire(Hooks(Wait()))
    wire.client(hooked(1))
    assert wire.down() == frames.window_update(0, len(MESSAGE))


def test_a_new_initial_window_applies_when_the_clients_ack_is_forwarded() -> None:
    wire = Wire(Hooks(Replace(bytes(70_000))), RelayLimits(body_bytes=1 << 20))
    wire.upstream(frames.settings({frames.INITIAL_WINDOW_SIZE: 20_000}))
    wire.upstream(frames.window_update(0, 1 << 20))
    wire.client(hooked(1))
    sent = len(wire.up()) - len(opening(1, HOOKED)) - 4 * frames.HEAD_BYTES
    assert sent == frames.DEFAULT_WINDOW
    wire.client(frames.SETTINGS_ACK)
    assert wire.up() == frames.SETTINGS_ACK
    wire.client(hooked(3))
    assert len(wire.up()) == len(opening(3, HOOKED)) + 2 * frames.HEAD_BYTES + 20_000
    wire.upstream(frames.window_update(1, frames.DEFAULT_WINDOW - 20_000))
    assert wire.up() == b"", "the window of the older stream is zero"
    wire.upstream(frames.window_update(1, 100))
    assert len(wire.up()) == frames.HEAD_BYTES + 100


def test_the_end_of_a_request_needs_no_window() -> None:
    """SETTINGS may leave a stream's window below zero."""
    wire = Wire(Hooks(), RelayLimits(body_bytes=100))
    wire.client(opening(1, HOOKED), data(1, grpc.encode_message(bytes(10_000))))
    wire.upstream(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    wire.client(frames.SETTINGS_ACK)
    wire.up()
    wire.client(last(1, b""))
    assert wire.up() == last(1, b"")


def test_a_held_call_does_not_delay_other_calls() -> None:
    wire = Wire(Hooks(Wait()))
    wire.client(hooked(1))
    assert wire.up() == opening(1, HOOKED)
    wire.client(opening(3, OTHER), last(3, bytes(60_000)))
    assert wire.up() == opening(3, OTHER) + last(3, bytes(60_000))
    wire.upstream(data(3, b"reply"), trailers(3))
    assert wire.down().endswith(data(3, b"reply") + trailers(3))
    wire.hooks.verdicts = [Wait(), FORWARD]
    wire.ask_again()
    assert (wire.up(), len(wire.held)) == (b"", 1)
    wire.ask_again()
    assert (wire.up(), len(wire.held)) == (last(1, MESSAGE), 0)


def test_a_stream_without_window_delays_no_other_hooked_one() -> None:
    wire = Wire(Hooks(Replace(bytes(70_000)), Replace(b"small")))
    wire.upstream(frames.window_update(0, 1 << 20))
    wire.client(hooked(1), hooked(3))
    assert wire.up().endswith(last(3, grpc.encode_message(b"small")))
    wire.upstream(frames.window_update(1, 70_000))
    assert wire.up()[frames.HEAD_BYTES :] == bytes(70_005 - frames.DEFAULT_WINDOW)


def test_data_without_an_upstream_window_waits_in_order() -> None:
    wire = Wire(Hooks(Replace(bytes(60_000))))
    wire.client(hooked(1))
    wire.up()
    wire.client(opening(3, OTHER), data(3, bytes(5_000)), data(3, bytes(5_000)))
    first = data(3, bytes(5_000)) + data(3, bytes(530))
    assert wire.up() == opening(3, OTHER) + first, (
        "the second frame is split at the end of the window"
    )
    assert wire.relay.queued_bytes == frames.HEAD_BYTES + 4_470
    wire.client(opening(5, OTHER), last(5, b"later"), frames.SETTINGS_ACK)
    assert wire.up() == opening(5, OTHER), "headers do not wait"
    wire.client(opening(7, OTHER, frames.END_HEADERS))
    assert wire.up() == b"", "headers after an ACK wait"
    wire.upstream(frames.window_update(0, 10_000))
    tail = last(5, b"later") + frames.SETTINGS_ACK + opening(7, OTHER)
    assert wire.up() == data(3, bytes(4_470)) + tail
    assert wire.relay.queued_bytes == 0


def test_trailers_of_the_client_stay_behind_its_data() -> None:
    wire = Wire(Hooks(Wait()))
    body = grpc.encode_message(bytes(100_000))
    wire.client(opening(1, HOOKED))
    for at in range(0, len(body), 16_384):
        wire.client(data(1, body[at : at + 16_384]))
    wire.up()
    wire.client(trailers(1), opening(3, OTHER))
    assert trailers(1) not in wire.up()
    wire.upstream(frames.window_update(1, 100_000), frames.window_update(0, 100_000))
    assert wire.up().endswith(trailers(1) + opening(3, OTHER))
    assert (wire.hooks.requests, wire.stats.unread_malformed) == ([], 1)


def test_a_refusal_is_answered_by_the_relay() -> None:
    wire = Wire(Hooks(Refuse(9, "CPU 3 is taken: 100%")))
    wire.client(hooked(1))
    assert wire.up() == opening(1, HOOKED) + frames.rst_stream(1, frames.CANCEL)
    answer = wire.down()
    length, kind, flags, stream = frames.read_head(answer, 0)
    assert (kind, flags, stream) == (frames.HEADERS, 5, 1)
    block = dict(headers.Decoder().decode(answer[9 : 9 + length]))
    assert block[b"grpc-status"] == b"9"
    assert grpc.percent_decode(block[b"grpc-message"]) == "CPU 3 is taken: 100%"
    assert answer[9 + length :] == frames.window_update(0, len(MESSAGE))
    assert wire.stats.refused == 1


def no_verdict(call: Call, message: bytes) -> GateVerdict:
    return None  # type: ignore[return-value]


def raising(call: Call, message: bytes) -> GateVerdict:
    raise RuntimeError("hook")


def wrong_content(call: Call, message: bytes) -> GateVerdict:
    return Replace("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("request_hook", [no_verdict, raising, wrong_content])
def test_a_broken_hook_lets_the_call_pass(
    request_hook: Callable[[Call, bytes], GateVerdict],
) -> None:
    wire = Wire(Hooks())
    wire.hooks.request = request_hook  # type: ignore[method-assign]
    wire.client(hooked(1))
    assert wire.up() == hooked(1)
    wire.upstream(trailers(1))
    assert wire.stats.hook_errors == len(wire.errors) == 1
    assert (wire.hooks.unhooked_reasons, wire.hooks.replies) == (["internal_error"], [None])


def test_a_call_is_refused_if_its_hook_and_its_failure_policy_raise() -> None:
    wire = Wire(Hooks())
    wire.hooks.request = raising  # type: ignore[method-assign]

    def unhooked(call: Call, reason: str, detail: str) -> Forward | Refuse:
        raise RuntimeError("policy")

    wire.hooks.unhooked = unhooked  # type: ignore[method-assign]
    wire.client(hooked(1))
    sent = wire.up()
    assert sent.startswith(opening(1, HOOKED))
    assert MESSAGE not in sent
    assert frames.rst_stream(1, frames.CANCEL) in sent
    text = "the hook can't decide, and its failure policy raised RuntimeError('policy')"
    assert grpc.trailers_only(Code.INTERNAL, text) in wire.down()
    assert (wire.stats.refused, wire.stats.hook_errors, len(wire.errors)) == (1, 2, 2)
    assert wire.hooks.replies == []


def test_a_reply_hook_that_raises_changes_nothing() -> None:
    wire = Wire(Hooks())
    wire.hooks.reply = raising  # type: ignore[assignment]
    wire.client(hooked(1))
    wire.upstream(data(1, MESSAGE), trailers(1))
    assert wire.down() == data(1, MESSAGE) + trailers(1)
    assert wire.stats.hook_errors == 1


PACKED_MESSAGE = packed(b"message")


def test_a_compressed_message_is_decompressed_only_for_the_hook() -> None:
    wire = Wire(Hooks(FORWARD, Replace(b"other")))
    wire.client(hooked(1, PACKED_MESSAGE))
    assert wire.up() == hooked(1, PACKED_MESSAGE)
    wire.client(hooked(3, PACKED_MESSAGE))
    assert wire.up() == hooked(3, grpc.encode_message(b"other"))
    assert wire.hooks.requests == [b"message", b"message"]


@pytest.mark.parametrize(
    ("body", "counter", "reason"),
    [
        (b"", "unread_malformed", "malformed"),
        (MESSAGE[:3], "unread_malformed", "malformed"),
        (MESSAGE[:-1], "unread_malformed", "malformed"),
        (MESSAGE + MESSAGE, "unread_malformed", "malformed"),
        (b"\2" + MESSAGE[1:], "unread_malformed", "malformed"),
        (b"\1" + MESSAGE[1:], "unread_compressed", "compressed"),
        (packed(bytes(2_000_000)), "unread_compressed", "compressed"),
    ],
)
def test_a_request_that_is_not_one_message_passes_and_is_counted(
    body: bytes, counter: str, reason: str
) -> None:
    wire = Wire(Hooks(Refuse(1, "")), RelayLimits(body_bytes=1 << 20))
    wire.client(hooked(1, body))
    assert wire.up() == hooked(1, body)
    assert (wire.hooks.requests, getattr(wire.stats, counter)) == ([], 1)
    wire.upstream(data(1, MESSAGE), trailers(1))
    assert (wire.hooks.unhooked_reasons, wire.hooks.replies) == ([reason], [b"message"])
    wire.client(opening(3, HOOKED, frames.END_HEADERS | frames.END_STREAM))
    assert wire.up() == opening(3, HOOKED, frames.END_HEADERS | frames.END_STREAM)


NOT_READABLE = Refuse(13, "must not be read")


@pytest.mark.parametrize(
    ("client", "limits"),
    [
        (last(1, MESSAGE + MESSAGE), RelayLimits()),
        (data(1, bytes(200)), RelayLimits(body_bytes=100)),
        (data(1, MESSAGE), RelayLimits(streams=0)),
        (data(1, MESSAGE) + trailers(1), RelayLimits()),
    ],
    ids=["malformed", "too_large", "too many", "trailers"],
)
def test_a_call_that_may_not_pass_unhooked_is_answered_by_the_relay(
    client: bytes, limits: RelayLimits
) -> None:
    wire = Wire(Hooks(), limits)
    wire.hooks.unhooked_verdict = NOT_READABLE
    wire.client(opening(1, HOOKED), client)
    sent = wire.up()
    assert sent.startswith(opening(1, HOOKED))
    assert frames.rst_stream(1, frames.CANCEL) in sent
    answer = wire.down()
    _, kind, flags, stream = frames.read_head(answer, answer.index(b"\1\5\0\0\0\1") - 3)
    assert (kind, flags, stream) == (frames.HEADERS, 5, 1)
    assert wire.stats.refused == 1
    assert wire.hooks.replies == []
    wire.client(opening(3, OTHER), last(3, MESSAGE))
    assert wire.up().endswith(opening(3, OTHER) + last(3, MESSAGE))


def test_a_message_beyond_the_limit_is_tracked_to_its_end() -> None:
    wire = Wire(Hooks(), RelayLimits(body_bytes=100, streams=1))
    wire.client(opening(1, HOOKED), data(1, grpc.prefix(195) + bytes(145)))
    wire.upstream(frames.window_update(0, 10_000), frames.window_update(1, 10_000))
    wire.client(last(1, bytes(50)))
    assert wire.hooks.replies == []
    wire.upstream(data(1, MESSAGE), trailers(1))
    assert (wire.hooks.unhooked_reasons, wire.hooks.replies) == (["too_large"], [b"message"])
    assert frames.rst_stream(1, frames.CANCEL) not in wire.up()
    wire.client(hooked(3))
    assert wire.stats.unread_too_large == 1, "the first call no longer counts"


def test_a_message_beyond_the_limit_streams_through_in_bounded_memory() -> None:
    wire = Wire(Hooks(Refuse(1, "")), RelayLimits(body_bytes=50_000))
    wire.upstream(frames.window_update(0, 1 << 30))
    wire.client(opening(1, HOOKED))
    wire.up(), wire.down()
    body = grpc.encode_message(random.Random(1).randbytes(5_000_000))
    sent, client_window, upstream_window = bytearray(), 65_535, 65_535
    at = 0
    while at < len(body):
        size = min(16_384, len(body) - at, client_window)
        assert size, "the client has no window"
        wire.client(data(1, body[at : at + size], at + size == len(body)))
        at += size
        client_window -= size
        for kind, stream, payload in split(wire.up()):
            assert (kind, stream) == (frames.DATA, 1)
            upstream_window -= len(payload)
            assert upstream_window >= 0
            sent += payload
            wire.upstream(frames.window_update(1, len(payload)))
            upstream_window += len(payload)
        for kind, stream, payload in split(wire.down()):
            if (kind, stream) == (frames.WINDOW_UPDATE, 1):
                client_window += int.from_bytes(payload, "big")
    assert sent == body
    assert wire.stats.unread_too_large == 1


def split(raw: bytes) -> list[tuple[int, int, bytes]]:
    found, at = [], 0
    while at < len(raw):
        length, kind, _, stream = frames.read_head(raw, at)
        found.append((kind, stream, raw[at + 9 : at + 9 + length]))
        at += 9 + length
    return found


@pytest.mark.parametrize("size", [1 << 20, 3 << 19, 16 << 20])
def test_a_message_of_up_to_16_mib_is_hooked(size: int) -> None:
    wire = Wire(Hooks(Replace(b"short")))
    message = random.Random(size).randbytes(size)
    body = grpc.encode_message(message)
    wire.client(opening(1, HOOKED))
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    for piece in pieces:
        wire.client(data(1, piece, piece is pieces[-1]))
    assert wire.hooks.requests == [message]
    assert wire.up() == hooked(1, grpc.encode_message(b"short"))


def test_a_message_beyond_the_limit_is_refused_by_its_first_bytes() -> None:
    wire = Wire(Hooks())
    wire.hooks.unhooked_verdict = NOT_READABLE
    wire.client(opening(1, HOOKED), data(1, grpc.prefix((16 << 20) + 1) + b"first"))
    assert wire.hooks.unhooked_reasons == ["too_large"]
    assert (wire.stats.refused, wire.budget.reserved_bytes) == (1, 0)
    assert wire.up() == opening(1, HOOKED) + frames.rst_stream(1, frames.CANCEL)


def credit(wire: Wire, stream: int) -> int:
    """The credit that the client received for the stream since the last call."""
    return sum(
        int.from_bytes(payload, "big")
        for kind, number, payload in split(wire.down())
        if (kind, number) == (frames.WINDOW_UPDATE, stream)
    )


def status(answer: bytes) -> str:
    """The grpc-status in the reply to the client."""
    block = next(payload for kind, _, payload in split(answer) if kind == frames.HEADERS)
    return dict(hpack.Decoder().decode(block))["grpc-status"]


SMALL_BUDGET = RelayLimits(
    body_bytes=30_000, held_bytes=70_000, share_bytes=20_000, waiting_bytes=50_000
)
LONG = grpc.encode_message(bytes(29_000))


def without_room(
    hooks: Hooks | None = None, limits: RelayLimits = SMALL_BUDGET
) -> tuple[Wire, Wire, MemoryBudget]:
    """A connection whose held calls use the whole budget, another one, and the budget."""
    budget = MemoryBudget(limits, HeldCalls())
    first, second = Wire(Hooks(Wait()), budget=budget), Wire(hooks or Hooks(), budget=budget)
    first.client(hooked(1, LONG), hooked(3, LONG))
    return first, second, budget


def test_a_request_without_budget_gets_no_credit_until_there_is_some() -> None:
    first, second, budget = without_room(Hooks(Wait()))
    second.client(opening(1, HOOKED), data(1, LONG[:10_000]))
    assert credit(second, 1) == 0
    second.ask_again()
    assert (credit(second, 1), len(budget.waiting)) == (0, 1)
    first.client(frames.rst_stream(1, frames.CANCEL))
    second.ask_again()
    assert (credit(second, 1), len(budget.waiting)) == (10_000, 0)
    second.client(last(1, LONG[10_000:]))
    assert len(second.held) == 1
    first.relay.close()
    second.relay.close()
    assert (budget.reserved_bytes, budget.waiting_bytes, list(budget.waiting)) == (0, 0, [])


def test_a_complete_request_waits_for_budget_too() -> None:
    hooks, content = Hooks(), bytes(25_000)
    first, second, _ = without_room(hooks)
    second.client(hooked(1, packed(content)))
    assert hooks.requests == []
    first.relay.close()
    second.ask_again()
    assert hooks.requests == [content]
    assert second.up() == hooked(1, packed(content))


def test_a_compressed_request_waits_for_budget_before_it_is_decompressed() -> None:
    hooks = Hooks()
    first, second, budget = without_room(hooks)
    second.client(hooked(1, packed(bytes(SMALL_BUDGET.body_bytes + 1))))
    assert (hooks.unhooked_reasons, len(budget.waiting)) == ([], 1)
    first.relay.close()
    second.ask_again()
    assert hooks.unhooked_reasons == ["compressed"]
    assert (budget.reserved_bytes, list(budget.waiting)) == (0, [])


def test_small_requests_overtake_those_that_wait_for_budget() -> None:
    budget = MemoryBudget(SMALL_BUDGET, HeldCalls())
    first, second = Wire(Hooks(Wait()), budget=budget), Wire(Hooks(), budget=budget)
    for stream in (1, 3, 5):
        first.client(opening(stream, HOOKED), data(stream, LONG[:10_000]))
    second.client(hooked(1))
    assert second.up() == hooked(1)
    assert len(budget.waiting) == 1
    # All on one connection, as in a kubelet. The share of a connection allows four calls.
    small = grpc.encode_message(bytes(4_900))
    for stream in (7, 9, 11, 13):
        first.client(hooked(stream, small))
    assert (len(first.held), len(budget.waiting)) == (4, 1)
    first.client(hooked(15, small))
    assert (len(first.held), len(budget.waiting)) == (4, 2)
    first.client(frames.rst_stream(7, frames.CANCEL), hooked(17, small))
    assert (len(first.held), len(budget.waiting)) == (4, 2)
    first.relay.close()
    assert (budget.reserved_bytes, list(budget.waiting)) == (0, [])


def test_requests_get_budget_in_the_order_of_their_arrival() -> None:
    budget = MemoryBudget(SMALL_BUDGET, HeldCalls())
    wires = [Wire(Hooks(Wait()), budget=budget) for _ in range(5)]
    for wire in wires[:4]:
        wire.client(opening(1, HOOKED), data(1, LONG[:10_000]))
    assert len(budget.waiting) == 2
    wires[4].client(opening(1, HOOKED), data(1, grpc.prefix(20_500)))
    wires[0].client(frames.rst_stream(1, frames.CANCEL))
    wires[0].ask_again()
    assert [credit(wire, 1) > 0 for wire in wires[2:]] == [True, False, False]
    wires[1].client(frames.rst_stream(1, frames.CANCEL))
    wires[0].ask_again()
    assert [credit(wire, 1) > 0 for wire in wires[2:]] == [False, True, False]
    wires[2].relay.close()
    wires[4].ask_again()
    assert (credit(wires[4], 1), list(budget.waiting)) == (grpc.PREFIX_BYTES, [])


@pytest.mark.parametrize("ends", [True, False], ids=["trailers", "a second message"])
def test_a_request_that_passes_unhooked_no_longer_waits_for_budget(ends: bool) -> None:
    """The request leaves the budget's queue although the upstream has no window for it."""
    _, second, budget = without_room()
    second.client(opening(1, OTHER), *[data(1, bytes(15_000)) for _ in range(4)])
    short = grpc.prefix(20_500) + bytes(10_000)
    second.client(opening(3, HOOKED), data(3, short))
    assert len(budget.waiting) == 1
    second.client(trailers(3) if ends else data(3, bytes(10_501)))
    assert short not in second.up()
    assert second.stats.unread_malformed == 1, "it passes unhooked"
    assert (list(budget.waiting), budget.waiting_bytes) == ([], 0)


@pytest.mark.parametrize("more", [data(1, b""), data(1, b"x"), trailers(1)])
def test_a_complete_request_that_waits_for_budget_gets_no_more_data(more: bytes) -> None:
    _, second, budget = without_room()
    second.client(hooked(1, LONG))
    assert len(budget.waiting) == 1
    with pytest.raises(RelayError, match="stream 1 after its end"):
        second.client(more)
    second.relay.close()
    assert not budget.waiting


@pytest.mark.parametrize("limit", ["waiting_bytes", "wait_seconds"])
def test_a_request_that_may_not_wait_for_budget_is_refused(limit: str) -> None:
    """Waiting calls have sent too many bytes, or wait too long. The connection continues."""
    limits = SMALL_BUDGET._replace(**{limit: 0 if limit == "wait_seconds" else 10_000})
    _, second, budget = without_room(limits=limits)
    second.client(opening(1, HOOKED), data(1, LONG[:10_001]))
    second.ask_again()
    answer = second.down()
    assert status(answer) == str(grpc.Code.RESOURCE_EXHAUSTED.value)
    assert (second.stats.no_room, second.stats.refused) == (1, 1)
    assert (len(budget.waiting), budget.waiting_bytes) == (0, 0)
    assert second.up() == opening(1, HOOKED) + frames.rst_stream(1, frames.CANCEL)
    second.client(data(1, LONG[10_001:10_101]), hooked(3))
    assert second.up() == hooked(3)
    assert not budget.waiting


def test_a_frame_larger_than_the_upstream_allows_is_not_held() -> None:
    wire = Wire(Hooks())
    wire.client(opening(1, HOOKED), data(1, grpc.prefix(40_000)))
    wire.upstream(frames.settings({frames.MAX_FRAME_SIZE: 20_000}))
    wire.client(frames.head(20_000, frames.DATA, 0, 1), bytes(10_000))
    wire.client(bytes(10_000))
    with pytest.raises(RelayError, match="20001 bytes"):
        wire.client(frames.head(20_001, frames.DATA, 0, 1))


def test_the_number_of_hooked_calls_in_progress_is_bounded() -> None:
    wire = Wire(Hooks(Wait()), RelayLimits(streams=50))
    for stream in range(1, 201, 2):
        wire.client(opening(stream, HOOKED))
    assert wire.stats.unread_too_large == 50


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", [0, 3, 40_000])
def test_a_reply_is_read_while_it_passes(size: int, padded: bool) -> None:
    wire = Wire(Hooks())
    wire.client(hooked(1))
    reply = grpc.encode_message(bytes(size)) + grpc.encode_message(b"second")
    raw = b""
    for at in range(0, len(reply), 7_000):
        part = reply[at : at + 7_000]
        raw += data(1, b"\3" + part + bytes(3), frames.PADDED) if padded else data(1, part)
    raw += trailers(1)
    for at in range(0, len(raw), 611):
        wire.upstream(raw[at : at + 611])
    assert wire.down() == raw
    assert wire.hooks.replies == [bytes(size)]


@pytest.mark.parametrize(
    ("raw", "unread"),
    [
        (data(1, grpc.encode_message(bytes(70_000))[:16_384]) + trailers(1), 1),
        (data(1, b"\2" + bytes(9)) + trailers(1), 1),
        (data(1, b"\1\0\0\0\1x") + trailers(1), 1),
        (data(1, MESSAGE[:-1]) + trailers(1), 0),
        (trailers(1), 0),
        (data(1, MESSAGE) + frames.rst_stream(1, frames.CANCEL), 0),
    ],
)
def test_a_reply_without_a_complete_message_is_not_read(raw: bytes, unread: int) -> None:
    wire = Wire(Hooks())
    wire.client(hooked(1))
    wire.upstream(raw)
    assert wire.down() == raw
    assert (wire.hooks.replies, wire.stats.replies_unread) == ([None], unread)


def test_a_compressed_reply_is_decompressed() -> None:
    wire = Wire(Hooks())
    wire.client(hooked(1))
    wire.upstream(data(1, PACKED_MESSAGE), trailers(1))
    assert wire.hooks.replies == [b"message"]


def test_a_cancelled_call_is_reported_once() -> None:
    wire = Wire(Hooks(Wait()))
    wire.client(hooked(1))
    reset = frames.rst_stream(1, frames.CANCEL)
    wire.client(reset)
    assert wire.up() == opening(1, HOOKED) + reset
    assert (wire.hooks.abandoned_calls, len(wire.held)) == (1, 0)
    wire.hooks.verdicts = [FORWARD]
    wire.client(hooked(3))
    wire.client(frames.rst_stream(3, frames.CANCEL))
    assert wire.hooks.replies == [None]
    wire.relay.close()
    assert (wire.hooks.abandoned_calls, wire.hooks.replies) == (1, [None])


def test_an_upstream_that_ends_a_held_call_ends_it_finally() -> None:
    """The upstream has the headers of the call, and enforces its deadline."""
    wire = Wire(Hooks(Wait()))
    wire.client(hooked(1))
    wire.up(), wire.down()
    wire.upstream(trailers(1))
    assert wire.down() == trailers(1)
    assert wire.up() == frames.rst_stream(1, frames.CANCEL)
    wire.ask_again()
    assert (len(wire.hooks.requests), wire.hooks.abandoned_calls, len(wire.held)) == (1, 1, 0)


def test_the_relays_frames_wait_for_the_end_of_a_frame_in_progress() -> None:
    wire = Wire(Hooks(Wait()))
    wire.client(hooked(1), opening(3, OTHER))
    wire.up(), wire.down()
    frame = last(3, bytes(1_000))
    wire.client(frame[:500])
    reply = data(3, bytes(1_000))
    wire.upstream(reply[:500])
    wire.hooks.verdicts = [Refuse(7, "no")]
    wire.ask_again()
    assert (wire.up(), wire.down()) == (frame[:500], reply[:500])
    wire.client(frame[500:] + opening(5, OTHER))
    reset = frames.rst_stream(1, frames.CANCEL)
    assert wire.up() == frame[500:] + reset + opening(5, OTHER)
    wire.upstream(reply[500:] + trailers(3))
    assert wire.down()[: 500 + 9].startswith(reply[500:])
    block = headers.encode([(b"x", b"y")])
    wire = Wire(Hooks())
    wire.upstream(frames.frame(frames.HEADERS, 0, 1, block))
    wire.client(opening(1, HOOKED), data(1, MESSAGE[:5]))
    assert wire.down() == frames.frame(frames.HEADERS, 0, 1, block), "a header block is in progress"


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    frames.PREFACE + frames.frame(frames.CONTINUATION, 4, 1, b"x"),
    frames.PREFACE + opening(1, OTHER, 0) + data(1, b"x"),
    frames.PREFACE + frames.head(1 << 20, frames.HEADERS, 4, 1),
    frames.PREFACE + frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
    frames.PREFACE + frames.frame(frames.HEADERS, 12, 1, b"\x09x"),
    frames.PREFACE + opening(1, OTHER, 0) + frames.frame(frames.CONTINUATION, 0, 1, b"") * 8_000,
]


@pytest.mark.parametrize("raw", GARBAGE)
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_bytes_that_cannot_be_parsed_pass_verbatim(raw: bytes, step: int) -> None:
    stats, up, down = RelayStats(), bytearray(), bytearray()
    relay = Relay(
        Hooks(),
        down.extend,
        up.extend,
        stats,
        lambda *_: None,
        MemoryBudget(RelayLimits(), HeldCalls()),
        HeldCalls(),
    )
    raw += b"and more"
    for at in range(0, len(raw), step):
        relay.from_client(memoryview(raw[at : at + step]))
    relay.from_upstream(memoryview(b"whatever"))
    assert (up, down, stats.malformed) == (raw, b"whatever", 1)


def test_a_block_beyond_the_limit_is_not_read_in_part() -> None:
    """A partial block would leave a wrong header table for later paths."""
    wire = Wire(Hooks(), RelayLimits(block_bytes=1_000))
    part = headers.encode([(b":path", OTHER)])
    wire.client(frames.head(1_001, frames.HEADERS, frames.END_HEADERS, 1), part)
    assert wire.stats.malformed == 1


def test_with_a_held_message_invalid_bytes_end_the_connection() -> None:
    wire = Wire(Hooks(Wait()))
    wire.client(hooked(1))
    with pytest.raises(RelayError):
        wire.client(frames.frame(frames.CONTINUATION, 4, 3, b"x"))
    assert wire.stats.malformed == 1


@pytest.mark.parametrize("seed", range(60))
def test_the_quiet_path_is_byte_equal_and_sees_every_path(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames come from hpack's encoder and arrive in random pieces."""
    rng = random.Random(seed)
    encoder, hooks = hpack.Encoder(), Hooks()
    wanted: list[bytes] = []
    seen: list[bytes | None] = []
    read = PathReader.read

    def record_path(reader: PathReader, block: bytes) -> bytes | None:
        seen.append(read(reader, block))
        return seen[-1]

    monkeypatch.setattr(PathReader, "read", record_path)
    wire = Wire(hooks)
    if rng.random() < 0.3:
        encoder.header_table_size = rng.choice([0, 100, 300, 1_000, 4_096])
    raw = bytearray(frames.settings({}))
    for number in range(60):
        path = rng.choice([OTHER, b"/b/X%d" % rng.randint(0, 30)])
        wanted.append(path)
        pairs = [
            (b":method", b"POST"),
            (b":path", path),
            (b"grpc-timeout", b"%dm" % rng.randint(1, 10**8)),
            (
                b"x-%d" % rng.randint(0, 5),
                bytes(rng.choices(range(33, 126), k=rng.randint(0, 200))),
            ),
        ]
        if rng.random() < 0.2:
            pairs.append(hpack.NeverIndexedHeaderTuple(b"authorization", b"token"))
        block = encoder.encode(pairs, huffman=rng.random() < 0.7)
        stream = 2 * number + 1
        cut = rng.randrange(len(block)) if rng.random() < 0.3 else len(block)
        padding = frames.PADDED if rng.random() < 0.2 else 0
        first = b"\4" + block[:cut] + bytes(4) if padding else block[:cut]
        ends = frames.END_HEADERS if cut == len(block) else 0
        raw += frames.frame(frames.HEADERS, ends | padding, stream, first)
        if not ends:
            raw += frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, block[cut:])
        for _ in range(rng.randint(0, 3)):
            raw += data(stream, bytes(rng.randint(0, 300)))
        raw += frames.window_update(0, 1) + frames.frame(99, 3, stream, b"unknown")
    at = 0
    while at < len(raw):
        size = rng.choice([1, 3, 9, 50, 1_000, 20_000])
        wire.client(bytes(raw[at : at + size]))
        at += size
    assert wire.up() == raw
    assert seen == wanted


GOAWAY = frames.goaway(0x7FFF_FFFF, frames.NO_ERROR)


def test_goaway_is_sent_between_frames_and_calls_continue() -> None:
    wire = Wire(Hooks())
    wire.upstream(frames.settings({}))
    wire.client(opening(1, b"/t.T/Any"))
    answer = data(1, b"x" * 40)
    wire.upstream(answer[:20])
    wire.down()
    assert wire.relay.send_goaway()
    assert wire.down() == b""
    wire.upstream(answer[20:], trailers(1))
    assert wire.down() == answer[20:] + GOAWAY + trailers(1)


def test_no_goaway_before_the_settings_of_the_upstream() -> None:
    wire = Wire(Hooks())
    settings = frames.settings({frames.INITIAL_WINDOW_SIZE: 70_000})
    assert not wire.relay.send_goaway()
    wire.upstream(settings[:5])
    assert not wire.relay.send_goaway()
    wire.upstream(settings[5:])
    assert wire.relay.send_goaway()
    assert wire.down() == settings + GOAWAY


def test_no_goaway_when_frames_are_not_tracked() -> None:
    wire = Wire(Hooks())
    wire.upstream(frames.settings({}))
    wire.client(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff" * 30))
    assert wire.stats.malformed == 1
    assert not wire.relay.send_goaway()


def test_the_start_of_a_held_frame_comes_before_its_rest() -> None:
    wire = Wire(Hooks())
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    wire.client(opening(1, HOOKED))
    wire.upstream(ping[:1])
    wire.client(frames.rst_stream(1, frames.CANCEL))
    assert wire.down() == b""
    wire.upstream(ping[1:])
    assert wire.down() == ping


@pytest.mark.parametrize("size", range(1, 13))
def test_the_relays_frames_never_split_a_partly_sent_frame(size: int) -> None:
    wire = Wire(Hooks())
    credit = frames.window_update(0, 1_000)
    wire.upstream(credit[:size])
    assert wire.down() == credit[:size]
    wire.client(opening(1, HOOKED), data(1, MESSAGE[:8]))
    assert wire.down() == b""
    wire.upstream(credit[size:])
    ours = frames.window_update(1, 8) + frames.window_update(0, 8)
    assert wire.down() == credit[size:] + ours
