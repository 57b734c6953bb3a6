import os

import pytest

from tests.runtime import fuzz_frames

CONNECTIONS = int(os.environ.get("TOPOLET_FUZZ_CONNECTIONS", "6000"))
SHARE = 1_000


@pytest.mark.parametrize("first", range(0, CONNECTIONS, SHARE))
def test_no_frames_whatever_hurt_the_relay(first: int) -> None:
    for seed, fault in fuzz_frames.run(SHARE, first):
        if fault is not None:
            raise AssertionError(f"seed {seed}") from fault
