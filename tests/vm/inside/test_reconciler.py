"""The agent alone on four NUMA nodes, below cgroups of both drivers' names."""

from collections.abc import Iterator

import pytest

from demo.containerd import Containerd
from demo.pods import remove_pod, run_pod
from tests.integration.harness import TestNode, eventually, fresh_node
from tests.vm.inside.pods import RUNS_ON, owners, sharers


@pytest.fixture
def node(containerd: Containerd) -> Iterator[TestNode]:
    """The agent is started by the test."""
    with fresh_node(containerd) as it:
        yield it


@pytest.mark.parametrize("slices", [False, True], ids=["folders", "slices"])
def test_same_end_state_without_a_proxy(node: TestNode, slices: bool) -> None:
    ids: dict[str, str] = {}
    sandboxes: dict[str, str] = {}
    for spec in (*sharers(node, slices=slices), *owners(node, slices=slices)):
        sandboxes[spec.name], ids[spec.name] = run_pod(node.direct, spec)

    def cpus() -> dict[str, str]:
        return {name: node.cpus(container) for name, container in ids.items()}

    assert set(cpus().values()) == {"0-15"}
    node.start_agent()
    eventually("everything in its place", lambda: cpus() == RUNS_ON)
    paused = {name: node.sandbox_cpus(sandbox) for name, sandbox in sandboxes.items()}
    assert paused == RUNS_ON
    group = node.direct.container_placement(ids["lse"]).cgroups_path
    assert (".slice/" in group) is slices
    assert node.kernel_value(ids["lse"], "", "cpuset.cpus") == "4-7"

    del ids["lse"], ids["lsr"]
    remove_pod(node.direct, sandboxes["lse"])
    remove_pod(node.direct, sandboxes["lsr"])
    given_back = {name: "8-11" if name == "on-node-2" else "0-15" for name in ids}
    eventually("every CPU is given back", lambda: cpus() == given_back)
