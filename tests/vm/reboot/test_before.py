"""A machine that ends while its agent quiets CPUs with all features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from agent.model.pod.annotations import QUIET
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import run_pod
from tests.integration.harness import fresh_node
from tests.vm.quieted_machine import (
    SLICE_CPUS,
    daemon_in_slice,
    isolated_groups,
    machine_values,
)
from tests.waiting import eventually


def test_an_agent_quiets_cpus_until_the_machine_ends(containerd: Containerd, kept: Path) -> None:
    with daemon_in_slice(), fresh_node(containerd) as node:
        (kept / "before.json").write_text(json.dumps(machine_values()))
        node.start_agent("--quiet=act")
        spec = node.spec("own", "LSE", "4-5", annotations={QUIET: "all"})
        run_pod(node.direct, spec)
        eventually("it is isolated", isolated_groups)
        eventually("the host has left", lambda: machine_values()[SLICE_CPUS] == "0-3,6-15")
        node.kill_agent()
        shutil.copytree(node.state, kept / "state", ignore=shutil.ignore_patterns("*.sock"))
    assert "irq.affinity" in (kept / "state/journal").read_text()
