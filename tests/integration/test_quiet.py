"""Quiet CPUs of a pod in a real runtime, whose agent has a mask of workqueues of its own: what the
agent does, says and gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import QUIET
from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode
from tests.waiting import eventually

MASK = "devices/virtual/workqueue/cpumask"


def host(folder: Path) -> Path:
    """The files of this machine below a folder, but those beside MASK."""
    folder.mkdir()
    (folder / "proc").symlink_to("/proc")
    real, own = Path("/sys"), folder / "sys"
    *parents, name = Path(MASK).parts
    for part in parents:
        own.mkdir()
        for path in real.iterdir():
            if path.name != part:
                (own / path.name).symlink_to(path)
        real, own = real / part, own / part
    own.mkdir()
    (own / name).write_text("00000003\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return host(tmp_path / "host")


def test_a_pod_that_asks_has_quiet_cpus_which_every_end_of_the_agent_gives_back(
    node: TestNode, root: Path
) -> None:
    mask = root / "sys" / MASK
    acts = (f"--root={root}", "--quiet=act")
    node.start_agent(*acts)
    spec = node.spec("own", "LSE", "1", annotations={QUIET: "workqueues"})
    _, container = run_pod(node.direct, spec)
    eventually("it has its CPU", lambda: node.cpus(container) == "1")

    def unbound() -> str:
        # A file that is no kernel's is empty for a moment.
        return str(CpuSet.parse_mask(mask.read_text() or "0"))

    eventually("unbound work leaves the CPU", lambda: unbound() == "0")
    eventually(
        "the owner is counted",
        lambda: node.metric('topolet_quiet_owners{feature="workqueues"}') == 1,
    )
    mask.write_text("00000003\n")
    eventually("what another program writes is corrected", lambda: unbound() == "0")

    def told() -> list[list[str]]:
        done = node.run_cli("explain", "node", "quiet", f"--state-dir={node.state}")
        return [line.split() for line in done.stdout.splitlines()]

    line = ["workqueues", "act", "has", "1", "file"]
    eventually("people are told within five seconds", lambda: line in told())
    assert ["default/own", "CPUs", "1", "workqueues"] in told()

    node.kill_agent()
    assert unbound() == "0"
    node.start_agent(f"--root={root}")
    eventually("it is given back", lambda: unbound() == "0-1")
    node.stop_agent()

    node.start_agent(*acts)
    eventually("unbound work leaves the CPU again", lambda: unbound() == "0")
    node.kill_agent()
    endpoint = f"--runtime-endpoint=unix://{node.containerd.socket}"
    done = node.run_cli("restore", f"--state-dir={node.state}", f"--root={root}", endpoint)
    assert done.returncode == 0, done.stderr
    assert unbound() == "0-1"
