"""The next boot of a machine on which an agent quieted CPUs, whose state folder is still there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from agent.model.pod.annotations import QUIET
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import remove_pod, run_pod
from tests.integration.harness import fresh_node
from tests.vm.quieted_machine import (
    SLICE_CPUS,
    daemon_in_slice,
    isolated_groups,
    machine_values,
)
from tests.waiting import eventually


def test_without_an_agent_nothing_of_it_is_left(kept: Path) -> None:
    last: dict[str, str] = json.loads((kept / "before.json").read_text())
    boot = json.loads((kept / "state/snapshot.json").read_text())["boot_id"]
    assert boot != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with daemon_in_slice():
        assert machine_values() == last
    assert not isolated_groups()


def test_an_agent_writes_no_value_of_the_last_boot(containerd: Containerd, kept: Path) -> None:
    """Others have set what the agent had written in that boot, and it would take that for its
    own."""
    with daemon_in_slice(), fresh_node(containerd) as node:
        shutil.copytree(kept / "state", node.state)
        (node.state / "quiet.json").unlink()
        entries = map(json.loads, (node.state / "journal").read_text().splitlines())
        set_by_others = [*filter(None, map(set_again, entries))]
        assert SLICE_CPUS in set_by_others
        assert any(path.startswith("/proc/irq/") for path in set_by_others)
        present = machine_values()
        node.start_agent("--quiet=act")
        eventually("the features have run", (node.state / "quiet.json").exists)
        assert machine_values() == present
        spec = node.spec("own", "LSE", "0-1", annotations={QUIET: "all"})
        sandbox, _ = run_pod(node.direct, spec)
        eventually("it is isolated", isolated_groups)
        eventually("the host has left", lambda: machine_values()[SLICE_CPUS] == "2-3,6-15")
        remove_pod(node.direct, sandbox)
        eventually("all is as others have set it", lambda: machine_values() == present)
        node.kill_agent()
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert machine_values() == present


def set_again(entry: dict[str, Any]) -> str:
    """Writes what the agent had written last in a file of the machine. Returns its path, "" for
    another one and for one that the kernel does not let be written."""
    group, written = str(entry["group"]), entry.get("written") or [""]
    path = {
        "irq.affinity": f"/proc/irq{group}/smp_affinity_list",
        "slice.cpus": f"/sys/fs/cgroup{group}/cpuset.cpus",
    }.get(str(entry.get("file")), "")
    if not path or not Path(path).exists():
        return ""
    try:
        Path(path).write_text(written[-1])
    except OSError:
        return ""
    return path
