import os

import pytest

from tests.runtime.fuzz_relay import Fuzz

SEEDS = int(os.environ.get("TOPOLET_FUZZ_SEEDS", "300"))


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_no_slip_between_two_state_machines(first: int) -> None:
    for seed in range(first, min(first + 20, SEEDS)):
        try:
            Fuzz(seed).run()
        except Exception as fault:
            raise AssertionError(f"seed {seed}") from fault
