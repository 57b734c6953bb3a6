import os
import random

import pytest

from agent.relay.gate import RelayStats
from agent.relay.relay import Relay, RelayError
from agent.relay.streams import MemoryBudget
from agent.rpc import frames
from agent.rpc.held_calls import HeldCalls
from tests.relay import fuzz_frames
from tests.relay.hostile import data, opening

CONNECTIONS = int(os.environ.get("TOPOLET_FUZZ_CONNECTIONS", "6000"))
SHARE = 1_000


@pytest.mark.parametrize("first", range(0, CONNECTIONS, SHARE))
def test_no_sequence_of_frames_breaks_the_relay(first: int) -> None:
    for seed, fault in fuzz_frames.run(SHARE, first):
        if fault is not None:
            raise AssertionError(f"seed {seed}") from fault


def test_more_credit_than_a_window_holds_ends_its_connection_only() -> None:
    hooks = fuzz_frames.Hooks(random.Random(0))
    budget = MemoryBudget(fuzz_frames.LIMITS, HeldCalls())
    relay = Relay(hooks, len, len, RelayStats(), hooks.error, budget, HeldCalls())  # type: ignore[arg-type]
    call = opening(1, b"/keep") + data(1, b"\0\0\0\x09")
    relay.from_client(memoryview(frames.PREFACE + call))
    credit = frames.window_update(1, frames.MAX_WINDOW)
    with pytest.raises(RelayError, match="stream 1: a window of"):
        relay.from_upstream(memoryview(frames.settings({}) + credit * 3))
