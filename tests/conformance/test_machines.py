from __future__ import annotations

import pytest

from conformance import machines


@pytest.mark.parametrize(
    ("shape", "numbering", "caches", "reason"),
    [
        ((1, 1, 1, 1), "odd", None, "numbering 'odd'"),
        ((10**9, 1, 1, 1), "adjacent", None, "more than 65536"),
        ((0, 1, 4, 2), "adjacent", None, "has no CPUs"),
        ((2, 0, 4, 2), "adjacent", None, "has no CPUs"),
        ((2, 1, 0, 2), "adjacent", None, "has no CPUs"),
        ((2, 1, 4, 0), "adjacent", None, "has no CPUs"),
        ((-2, -1, 4, 2), "adjacent", None, "has no CPUs"),
        ((4, 0.25, 2, 1), "adjacent", None, "a socket without"),
        ((2, 1, 4, 2), "adjacent", 0, "0 L3 caches for 8 cores"),
        ((2, 1, 4, 2), "adjacent", 9, "9 L3 caches for 8 cores"),
    ],
)
def test_invalid_machines(
    shape: tuple[float, ...], numbering: str, caches: int | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        machines.cpus(shape, numbering, caches)
