"""The resource-spec of a pod with CPUs of its own, once its bind policy is known."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.model.policies import BindPolicy

REQUIRED = "requiredCPUBindPolicy"
PREFERRED = "preferredCPUBindPolicy"


def spec_text(text: str, policy: BindPolicy, *, forced: bool) -> str | None:
    """The content of the annotation, with the policy in force in place of one that is missing or
    the default, as Koordinator writes it back; None where it says so already. `forced`: by the
    node. `text`: a resource-spec that can be read, "" for none."""
    before: dict[str, Any] = (msgspec.json.decode(text) if text else None) or {}
    spec = dict(before)
    missing = not spec.get(REQUIRED)
    if spec.get(REQUIRED) == BindPolicy.DEFAULT or (forced and missing):
        spec[REQUIRED] = policy.value
    if spec.get(PREFERRED) == BindPolicy.DEFAULT or (
        not spec.get(PREFERRED) and missing and not forced
    ):
        spec[PREFERRED] = policy.value
    return msgspec.json.encode(spec).decode() if spec != before else None
