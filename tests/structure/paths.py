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
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    names = {_module(Path(code.co_filename)) for code in codes}
    return frozenset(name for name in names if name and not name.startswith(_VALUES))


def _module(file: Path) -> str:
    if not file.is_relative_to(_PACKAGE):
        return ""
    return ".".join(file.relative_to(_PACKAGE.parent).with_suffix("").parts)
