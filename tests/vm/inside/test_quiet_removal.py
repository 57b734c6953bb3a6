"""`topolet uninstall-node` on a machine whose agent quiets CPUs with all features."""

from __future__ import annotations

from agent.model.pod.annotations import QUIET
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import run_pod
from tests.integration.harness import fresh_node
from tests.vm.quieted_machine import (
    DEFAULT,
    SLICE_CPUS,
    daemon_in_slice,
    isolated_groups,
    machine_values,
)
from tests.waiting import eventually


def test_uninstall_node_gives_everything_back_while_cpus_are_quiet(containerd: Containerd) -> None:
    with daemon_in_slice(), fresh_node(containerd) as node:
        before = machine_values()
        node.start_agent("--quiet=act")
        _, container = run_pod(
            node.direct, node.spec("own", "LSE", "4-5", annotations={QUIET: "all"})
        )
        eventually("it is isolated", isolated_groups)
        eventually("the host has left", lambda: machine_values()[SLICE_CPUS] == "0-3,6-15")
        assert machine_values()[DEFAULT] == "ffcf"
        node.stop_agent()
        assert isolated_groups(), "an agent that ends gives nothing back"
        words = ("uninstall-node", "--without-cluster", "--without-proxy", "--node-name=node-a")
        folders = (
            f"--state-dir={node.state}",
            f"--kubelet-dir={node.folder / 'kubelet'}",
            f"--cdi-dir={node.folder / 'cdi'}",
        )
        endpoint = f"--runtime-endpoint=unix://{node.containerd.socket}"
        for _ in range(2):
            done = node.run_cli(*words, *folders, endpoint)
            assert done.returncode == 0, done.stderr
            assert done.stdout.endswith("node node-a: nothing of Topolet is left\n")
            # The kernel lets no group with processes inherit again.
            assert machine_values() == {**before, SLICE_CPUS: "0-15"}
            assert not isolated_groups()
            assert node.cpus(container) == "0-15"
            assert not node.state.exists()
