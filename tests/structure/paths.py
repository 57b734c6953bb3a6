"""The modules of `agent` whose functions run during a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[2] / "agent"
_VALUES = "agent.model."


def entered(call: Callable[[], object]) -> frozenset[str]:
    """The modules of agent, without those of values (agent.model), of which at least one function
    runs in this thread during the call."""
    names = {module for modules in calls(call) for module in modules}
    return frozenset(name for name in names if name and not name.startswith(_VALUES))


def calls(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The modules of caller and called function for each call in this thread; "" for a module that
    is not of agent."""
    return [(module_of(caller), module_of(called)) for caller, called in code_pairs(call)]


def code_pairs(call: Callable[[], object]) -> list[tuple[CodeType | None, CodeType]]:
    """The code of caller and called function for each call in this thread."""
    pairs: list[tuple[CodeType | None, CodeType]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            pairs.append((frame.f_back and frame.f_back.f_code, frame.f_code))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return pairs


def module_of(code: CodeType | None) -> str:
    """The module of agent with this code, or ""."""
    file = Path(code.co_filename) if code else _PACKAGE.parent
    if not file.is_relative_to(_PACKAGE):
        return ""
    return ".".join(file.relative_to(_PACKAGE.parent).with_suffix("").parts)
