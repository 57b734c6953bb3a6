"""The timers that CPUs have armed, by /proc/timer_list (kernel/time/timer_list.c). The kernel shows
it to root alone, and without the threads that wait for them."""

from __future__ import annotations

import os
import re
from typing import Final

from agent.host import files

_MAX_BYTES: Final = 16 << 20
_CPU: Final = re.compile(r"cpu: (\d{1,5})")
_TIMER: Final = re.compile(r"#\d+: <[^>]*>, ([^,]+),")


def armed(table: str) -> dict[int, dict[str, int]]:
    """By CPU and function, how many high-resolution timers wait there."""
    by_cpu: dict[int, dict[str, int]] = {}
    functions: dict[str, int] | None = None
    for line in table.splitlines():
        text = line.strip()
        if (cpu := _CPU.fullmatch(text)) is not None:
            functions = by_cpu.setdefault(int(cpu[1]), {})
        elif functions is not None and (timer := _TIMER.match(text)) is not None:
            functions[timer[1]] = functions.get(timer[1], 0) + 1
    return by_cpu


def read(root: str) -> str:
    """The text of the file below a root; "" where the kernel does not have or show it."""
    try:
        return files.read(os.path.join(root, "proc/timer_list"), _MAX_BYTES).decode(
            "ascii", "replace"
        )
    except OSError:
        return ""
