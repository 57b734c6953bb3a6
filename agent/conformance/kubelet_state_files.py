"""The kubelet's own state files, each with the checksum that the kubelet wrote into it.

`content` is the text of a file; a case with `policy` and `checksum` instead is a memory manager's
file without anything in it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from agent.conformance.files import CaseVerdict, Difference
from agent.kubelet import cpu_manager_state, device_checkpoint, memory_manager_state
from agent.kubelet.checksum import Checked

DIFFERENCES: Final[tuple[Difference, ...]] = ()


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Agrees where the checksum of what we read is the recorded one, and all of it was read."""
    raw = _content(case).encode()
    state: Any = None
    match case["file"]:
        case "cpu_manager_state":
            state = cpu_manager_state.decode(raw)
        case "memory_manager_state":
            state = memory_manager_state.decode(raw)
        case "kubelet_internal_checkpoint":
            state = device_checkpoint.decode(raw)
        case name:
            raise ValueError(f"file {name!r} is not known")
    ours = {"checksum": state.checked.value, "problems": list(state.problems)}
    return CaseVerdict(state.checked is Checked.VERIFIED and not state.problems, ours)


def _content(case: dict[str, Any]) -> str:
    if "content" in case:
        text: str = case["content"]
        return text
    empty = {"policyName": case["policy"], "machineState": {}, "checksum": case["checksum"]}
    return json.dumps(empty)
