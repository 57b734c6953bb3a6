import os

import pytest

from tests.relay import fuzz_relay

STREAMS = int(os.environ.get("TOPOLET_FUZZ_STREAMS", "5000"))
"""Half a minute of one CPU; the fuzzer itself can run for any time."""
SHARE = 1_000
APART = 1_000_000
"""The distance between the seeds of two shares."""


@pytest.mark.parametrize("share", range(-(-STREAMS // SHARE)))
def test_the_relay_keeps_to_the_protocol_of_two_state_machines(share: int) -> None:
    for seed, _, fault in fuzz_relay.run(SHARE, share * APART):
        if fault is not None:
            raise AssertionError(f"seed {seed}") from fault
