"""The file of prepared claims."""

from __future__ import annotations

import pytest

from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup, decode, encode

GROUPS = (
    PreparedGroup("a/first", "n", "numa-node-0", "0-3", "s", ExclusivePolicy.PCPU_LEVEL, True),
    PreparedGroup("b", "n", "numa-node-1", "8", bind_memory=True, amounts={"memory": 1}),
)
CLAIM = PreparedClaim("u-1", "n", "c", GROUPS)


def test_the_file_has_all_fields() -> None:
    claims = (CLAIM, PreparedClaim("u-2", "n", "d", pod_claim="e"))
    assert decode(encode(reversed(claims))) == (claims, ())


def test_a_container_has_the_cpus_of_its_request() -> None:
    assert CLAIM.cpus == CpuSet((0, 1, 2, 3, 8))
    assert CLAIM.of_request("") == GROUPS
    assert CLAIM.of_request("a") == GROUPS[:1]
    assert CLAIM.of_request("a/first") == GROUPS[:1]
    assert CLAIM.of_request("c") == ()
    assert CLAIM.requests == {"a": GROUPS[:1], "b": GROUPS[1:]}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"claims": 1}'])
def test_a_torn_file(text: bytes) -> None:
    with pytest.raises(JsonError):
        decode(text)


@pytest.mark.parametrize("fault", [b"1", b'{"uid": 1}', encode([CLAIM])[11:-3].replace(b"8", b"x")])
def test_an_entry_that_cannot_be_read_does_not_stop_the_others(fault: bytes) -> None:
    text = encode([CLAIM]).replace(b"[{", b"[" + fault + b",{", 1)
    claims, faults = decode(text)
    assert claims == (CLAIM,)
    (text_of_fault,) = faults
    assert text_of_fault.startswith("claims[0] is left out: ")
