"""A kubelet with the static policy and one reserved CPU, behind Topolet's proxy and with its
agent."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator

import pytest

from tests.fixtures.containerd import Containerd
from tests.integration.harness import fresh_node
from tests.integration.kubelet import standalone
from tests.vm.kubelet.conftest import containerd, program_on_tmpfs
from tests.vm.static.workload import Workload

__all__ = ["containerd", "program_on_tmpfs", "workload"]

HOLD = "--hold-seconds=60"
"""The agent responds slowly on an emulated machine."""


@pytest.fixture(scope="module")
def workload(containerd: Containerd, program_on_tmpfs: None) -> Iterator[Workload]:
    """Agent and proxy start before the kubelet, whose folder the agent reads."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    with fresh_node(containerd) as node:
        kubelet_dir = f"--kubelet-dir={folder / 'root'}"
        node.start_agent(kubelet_dir)
        node.start_proxy(HOLD)
        with standalone.running(containerd, node.cri_socket, folder) as kubelet:
            yield Workload(node, kubelet, kubelet_dir)
