"""Hooked requests of the largest size of a kubelet need bounded memory, which is released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.relay.streams import RelayLimits
from tests.fixtures.grpc_peers import connect, serve
from tests.relay.relay_child import TAIL, peak_mb, relay_process
from tests.waiting import eventually

LARGEST = RelayLimits().body_bytes - len(TAIL)
AT_ONCE = 12
PEAK_MB = 120
"""Memory of the relay's process while AT_ONCE of the largest requests arrive: itself,
RelayLimits.held_bytes, a hook's copy of one of them, and bytes that the sockets have not accepted
yet. The requests alone have 192 MiB."""
KEPT_MB = 16
"""Memory that is not released after the last reply: the C library keeps up to three blocks of 4.6
MB, and no more after forty times as many requests."""
CALL_SECONDS = 60.0


class Backend(grpc.GenericRpcHandler):
    """Replies with the request's size and its last bytes."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(request: bytes, _: grpc.ServicerContext) -> bytes:
            return b"%d " % len(request) + request[-40:]

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture(autouse=True)
def backend(tmp_path: Path) -> Iterator[None]:
    server = serve(tmp_path / "back.sock", Backend(), threads=AT_ONCE + 8)
    yield
    server.stop(None).wait()


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096 / (1 << 20)


@pytest.mark.parametrize("channels", [1, AT_ONCE], ids=["one connection", "many connections"])
def test_many_of_the_largest_requests_at_once_wait_for_each_other(
    tmp_path: Path, channels: int
) -> None:
    with relay_process(tmp_path / "front.sock", tmp_path / "back.sock") as relay:
        before = rss_mb(relay.pid)
        opened = [connect(tmp_path / "front.sock") for _ in range(channels)]
        calls = [
            opened[number % channels]
            .unary_unary("/h/Grow")
            .future(bytes([number]) * LARGEST, timeout=CALL_SECONDS)
            for number in range(AT_ONCE)
        ]
        outcomes = []
        for number, call in enumerate(calls):
            code = call.code()
            outcomes.append(code)
            if code is grpc.StatusCode.OK:
                tail = bytes([number]) * 10 + TAIL
                assert call.result() == b"%d " % (LARGEST + len(TAIL)) + tail
        # A request that does not get its budget in time fails with an error to retry.
        assert set(outcomes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert outcomes.count(grpc.StatusCode.OK) >= 2
        assert peak_mb(relay.pid) < PEAK_MB
        eventually("the memory is released", lambda: rss_mb(relay.pid) < before + KEPT_MB)
        for each in opened:
            each.close()


def test_small_calls_pass_while_large_requests_are_held(tmp_path: Path) -> None:
    """Held requests use the whole budget, and further large requests wait for it."""
    with relay_process(tmp_path / "front.sock", tmp_path / "back.sock") as relay:
        with connect(tmp_path / "front.sock") as channel:
            hold = channel.unary_unary("/h/Hold")
            before = rss_mb(relay.pid)
            calls = [hold.future(bytes(LARGEST), timeout=CALL_SECONDS) for _ in range(4)]
            eventually("two are held", lambda: rss_mb(relay.pid) > before + 28)
            small = channel.unary_unary("/h/Grow")
            for size in (5, 20_000):
                assert small(bytes(size), timeout=CALL_SECONDS).startswith(b"%d " % (size + 30))
            for call in calls:
                call.cancel()
            large = channel.unary_unary("/h/Grow")
            assert large(bytes(LARGEST), timeout=CALL_SECONDS)
        eventually("the memory is released", lambda: rss_mb(relay.pid) < before + KEPT_MB)
        assert peak_mb(relay.pid) < PEAK_MB
