from __future__ import annotations

import pytest

from agent.model.nrt import resource_topology as fingerprint

# Values of the reference implementation's own tests.
KNOWN = [
    ([], "pfp0v001ef46db3751d8e999"),
    (
        [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")],
        "pfp0v001b92008c14168b3a6",
    ),
]


@pytest.mark.parametrize(("pods", "expected"), KNOWN)
def test_values_of_the_reference_implementation_in_any_order(
    pods: list[tuple[str, str]], expected: str
) -> None:
    assert fingerprint.fingerprint_of(pods) == expected
    assert fingerprint.fingerprint_of(iter(pods[::-1])) == expected


def test_namespace_and_name_are_not_interchangeable() -> None:
    assert fingerprint.fingerprint_of([("a", "b")]) != fingerprint.fingerprint_of([("b", "a")])
