"""Kills of the agent before any of its writes, whatever owners ask for: all comes back."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cgroup import limits
from agent.cgroup.machine_files import MachineFiles
from agent.host import files
from agent.model.pod.annotations import CRIO_C_STATES, CRIO_GOVERNOR, QUIET
from agent.model.pod.pods import Pod
from agent.node.quiet.c_states import CStates
from agent.node.quiet.frequency import Frequency
from agent.node.quiet.workqueues import Workqueues
from tests.node.quiet.quiet_node import KilledError, WatchedMachine
from tests.node.quiet.quieted import WORKQUEUES, QuietMachine, quiet_pod

CPU: Final = "sys/devices/system/cpu"
FILES: Final = {
    WORKQUEUES: "000000ff",
    **{f"{CPU}/cpu{cpu}/power/pm_qos_resume_latency_us": "0" for cpu in range(8)},
    **{f"{CPU}/cpufreq/policy{first}/scaling_governor": "schedutil" for first in (0, 2, 4, 6)},
}


class KilledMachine(QuietMachine):
    """One frequency for two CPUs."""

    def __init__(self, folder: Path) -> None:
        self.killed = WatchedMachine(str(folder / "host"))
        root = str(folder / "host")
        super().__init__(folder, Workqueues(root, self.entry), CStates(root), Frequency(root))
        for path, text in FILES.items():
            self.put(path, text)
        self.put(f"{CPU}/cpuidle/current_driver", "intel_idle")
        for first in (0, 2, 4, 6):
            policy = f"{CPU}/cpufreq/policy{first}"
            self.put(f"{policy}/affected_cpus", f"{first} {first + 1}")
            self.put(f"{policy}/scaling_available_governors", "performance schedutil powersave")

    def files(self) -> MachineFiles:
        return self.killed


OWNERS: Final = st.fixed_dictionaries(
    {},
    optional={
        cpus: st.fixed_dictionaries(
            {},
            optional={
                QUIET: st.sampled_from(["all", "none", "workqueues", "c-states,frequency"]),
                CRIO_C_STATES: st.sampled_from(["disable", "enable", "max_latency:10"]),
                CRIO_GOVERNOR: st.sampled_from(["powersave", "performance", "userspace"]),
            },
        )
        for cpus in ("1", "2-3", "5-6")
    },
)


def owners(asking: dict[str, dict[str, str]]) -> list[Pod]:
    return [quiet_pod(f"own-{cpus}", cpus, annotations) for cpus, annotations in asking.items()]


@settings(deadline=None, max_examples=60)
@given(st.lists(OWNERS, min_size=1, max_size=4), st.integers(0, 30), st.booleans())
def test_an_agent_that_is_killed_before_any_write_leaves_nothing_behind(
    passes: list[dict[str, dict[str, str]]], writes: int, restored: bool
) -> None:
    """`restored`: by `topolet restore`, not by an agent whose owners have gone."""
    replace = files.replace
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        node = KilledMachine(Path(name))

        def replaced(*words: Any, **named: Any) -> None:
            if named["durable"]:
                node.killed.count()
            replace(*words, **named)

        node.killed.left = writes
        try:
            with mock.patch.object(files, "replace", replaced):
                for asking in passes:
                    node.follow(*owners(asking))
                    node.second()
                    assert not node.quiet.state.failed
        except KilledError:
            pass
        node.killed.left = None
        node.start()
        if restored:
            limits.restore(node.controllers, node.journal)
        else:
            node.follow()
        assert {path: node.text(path) for path in FILES} == FILES
        assert not node.journal.values
