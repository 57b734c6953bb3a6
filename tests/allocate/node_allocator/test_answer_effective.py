from __future__ import annotations

import json

import pytest

from agent.allocate.node_allocator.answer import spec_text
from agent.model.cpu.policies import BindPolicy

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
DEFAULT = {"preferredCPUBindPolicy": "Default"}
BOTH_DEFAULT = {**DEFAULT, "requiredCPUBindPolicy": "Default"}
EXCLUSIVE = {"preferredCPUExclusivePolicy": "PCPULevel", "unknown": [1]}


@pytest.mark.parametrize(
    ("spec", "policy", "forced", "expected"),
    [
        ({}, FULL, False, {"preferredCPUBindPolicy": "FullPCPUs"}),
        (EXCLUSIVE, FULL, False, {**EXCLUSIVE, "preferredCPUBindPolicy": "FullPCPUs"}),
        ({}, SPREAD, True, {"requiredCPUBindPolicy": "SpreadByPCPUs"}),
        (DEFAULT, FULL, False, {"preferredCPUBindPolicy": "FullPCPUs"}),
        (
            DEFAULT,
            SPREAD,
            True,
            {
                "preferredCPUBindPolicy": "SpreadByPCPUs",
                "requiredCPUBindPolicy": "SpreadByPCPUs",
            },
        ),
        (
            BOTH_DEFAULT,
            FULL,
            False,
            {"preferredCPUBindPolicy": "FullPCPUs", "requiredCPUBindPolicy": "FullPCPUs"},
        ),
        ({"requiredCPUBindPolicy": "FullPCPUs"}, FULL, False, None),
        ({"preferredCPUBindPolicy": "SpreadByPCPUs"}, SPREAD, False, None),
    ],
)
def test_a_missing_or_default_policy_is_filled_in(
    spec: dict[str, str], policy: BindPolicy, forced: bool, expected: dict[str, str] | None
) -> None:
    text = spec_text(json.dumps(spec), policy, forced=forced)
    assert (None if text is None else json.loads(text)) == expected


def test_no_spec() -> None:
    for text in ("", "null"):
        assert spec_text(text, FULL, forced=False) == '{"preferredCPUBindPolicy":"FullPCPUs"}'


@pytest.mark.parametrize("additional", ["9" * 5_000, "1e400", "[" * 5_000 + "]" * 5_000])
def test_a_spec_with_invalid_additional_fields_is_not_changed(additional: str) -> None:
    assert spec_text(f'{{"x": {additional}}}', FULL, forced=True) is None
