"""A kind of vectors for tests: is a number even? The expected answers are wrong for 0 and below."""

from __future__ import annotations

from typing import Any

from conformance.files import CaseKind, CaseVerdict, Difference, Judge

NEGATIVE_REASON = (
    "a negative number is as even as the same number above zero, "
    "but the other implementation treats all of them as odd"
)
DIFFERENCES = (
    Difference("zero", "zero is even"),
    Difference("negative", NEGATIVE_REASON, listed=True),
)


def judge(case: dict[str, Any]) -> CaseVerdict:
    even = case["number"]["value"] % 2 == 0
    agrees = even == case["expect"]
    declared = None
    if not agrees and even:
        value = case["number"]["value"]
        declared = "zero" if value == 0 else "negative" if value < 0 else None
    return CaseVerdict(agrees=agrees, actual=even, declared=declared)


JUDGES = {"parity": Judge(judge, DIFFERENCES)}
PARITY = CaseKind("parity", "tests.conformance.parity", frozenset({"number", "expect"}))


def case(value: object, expect: bool) -> dict[str, Any]:
    return {"number": {"value": value}, "expect": expect}


CORRECT = case(1, False)
ZERO = case(0, False)
NEGATIVE = case(-2, False)
WRONG = case(4, False)
