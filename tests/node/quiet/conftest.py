"""The machines of the features of quiet CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.quiet.workqueues import Workqueues
from tests.builders import machine
from tests.fixtures import interrupts
from tests.node.quiet.quiet_node import QuietNode, affinities
from tests.node.quiet.quieted import WORKQUEUES, QuietMachine


@pytest.fixture
def node(tmp_path: Path) -> QuietMachine:
    """Unbound kernel work runs on its eight CPUs."""
    node = QuietMachine(tmp_path)
    node.features = (Workqueues(str(node.root), node.entry),)
    node.start()
    node.put(WORKQUEUES, "ff")
    return node


@pytest.fixture
def here(tmp_path: Path) -> Iterator[QuietNode]:
    """This machine, whose interrupts are as before afterwards."""
    if os.geteuid() or (os.cpu_count() or 1) < 2:
        pytest.skip("needs root and two CPUs")
    if not os.path.exists("/proc/irq/default_smp_affinity"):
        pytest.skip("this kernel has no affinities of interrupts")
    with interrupts.alone():
        before = affinities(Path("/"))
        later = Path("/proc/irq/default_smp_affinity").read_text()
        yield QuietNode(tmp_path, Path("/"), machine(1, os.cpu_count() or 1), "interrupts")
        Path("/proc/irq/default_smp_affinity").write_text(later)
        for number, text in before.items():
            path = Path(f"/proc/irq/{number}/smp_affinity_list")
            if path.exists() and path.read_text().strip() != text:
                path.write_text(text)
