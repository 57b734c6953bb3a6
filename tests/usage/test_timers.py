"""Timers by CPU, from a text as a kernel writes it and from this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.usage.timers import armed, read

TABLE = """Timer List Version: v0.10
HRTIMER_MAX_CLOCK_BASES: 8
now at 12508724191780 nsecs

cpu: 0
 clock 0:
  .base:       00000000fc737176
  .resolution: 1 nsecs
active timers:
 #0: <000000000c383835>, hrtimer_wakeup, S:01
 # expires at 12508725265416-12508725315416 nsecs [in 1073636 to 1123636 nsecs]
 #1: <000000003b59b2b2>, tick_nohz_handler, S:01
 # expires at 12508728000000-12508728000000 nsecs [in 3808220 to 3808220 nsecs]
 clock 1:
active timers:
 #0: <0000000045215d43>, hrtimer_wakeup, S:01
  .expires_next   : 12508728000000 nsecs

cpu: 12
 clock 0:
active timers:
 #0: <ffff8817fc0e4e0>, tick_sched_timer, S:01, hrtimer_start, swapper/0/0
Tick Device: mode:     1
Per CPU device: 12
"""


def test_timers_are_counted_by_cpu_and_function() -> None:
    assert armed(TABLE) == {
        0: {"hrtimer_wakeup": 2, "tick_nohz_handler": 1},
        12: {"tick_sched_timer": 1},
    }
    assert armed("") == {}
    assert armed(" #0: <0>, hrtimer_wakeup, S:01\ncpu: x\n") == {}, "of no CPU"


def test_what_this_machine_shows(tmp_path: Path) -> None:
    assert read(str(tmp_path)) == ""
    text = read("/")
    if os.geteuid() or not text:
        pytest.skip("this machine does not show its timers")
    assert set(armed(text)) >= {0}
