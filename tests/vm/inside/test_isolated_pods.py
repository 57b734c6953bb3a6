"""Pods of a real runtime are remote partitions by an agent, and end as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.model.pod.annotations import QUIET
from tests.fixtures.cgroups import MOUNTS
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import remove_pod, run_pod
from tests.integration.harness import fresh_node, kernel_group
from tests.waiting import eventually


def partitions() -> dict[str, str]:
    """The CPUs in force of each valid isolated partition, by its group."""
    return {
        str(file.parent): (file.parent / "cpuset.cpus.effective").read_text().strip()
        for file in Path(MOUNTS).rglob("cpuset.cpus.partition")
        if file.read_text() == "isolated\n"
    }


@pytest.mark.parametrize("features", ["partitions", "partitions,host-slices"])
def test_a_pod_is_isolated_until_it_or_its_agent_ends(
    containerd: Containerd, features: str
) -> None:
    """With host-slices the pause container runs elsewhere, so the container is the partition."""
    with fresh_node(containerd) as node:
        node.start_agent("--quiet=act")
        run_pod(node.direct, node.spec("shared", "LS"))
        spec = node.spec("own", "LSE", "4-5", annotations={QUIET: features})
        sandbox, container = run_pod(node.direct, spec)
        eventually("it is isolated", lambda: [*partitions().values()] == ["4-5"])
        (group,) = partitions()
        of_container = kernel_group(node.direct.container_status(container).pid, "cpuset")
        assert group == str(of_container if "host" in features else of_container.parent)
        # The next one with the same CPUs is created while this one has them.
        other = node.spec("next", "LSE", "4-5", annotations={QUIET: features})
        _, container = run_pod(node.direct, other)
        assert [*partitions()] == [group]
        remove_pod(node.direct, sandbox)
        eventually("the next one is isolated", lambda: [*partitions().values()] == ["4-5"])
        assert node.cpus(container) == "4-5"
        node.kill_agent()
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert not partitions()
        exclusive = Path(MOUNTS).rglob("cpuset.cpus.exclusive")
        assert {file.read_text() for file in exclusive} == {"\n"}
        assert node.cpus(container) == "0-15"
