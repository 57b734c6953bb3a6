"""A torn checkpoint of the kubelet's CPU manager."""

import json
from pathlib import Path

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.faults.conftest import AgentHarness
from tests.waiting import eventually


@pytest.mark.parametrize("restarts", [False, True])
def test_torn_checkpoint_does_not_affect_the_kubelets_pods(
    harness: AgentHarness, tmp_path: Path, restarts: bool
) -> None:
    """An agent that has not read the checkpoint before changes nothing."""
    node, file = harness.node, tmp_path / "kubelet" / "cpu_manager_state"
    pod = node.add_pod(guaranteed=True)
    container = node.create_container(pod, start=True)
    group = container.group
    assert group is not None
    node.cgroups.set(group, CpuSet([4, 5]))
    entries = {pod.uid: {node.runtime.containers[container.id].name: "4-5"}}
    text = json.dumps({"policyName": "static", "defaultCpuSet": "0-15", "entries": entries})
    file.write_text(text)
    ls = harness.run_container("LS")
    harness.start("--period-seconds=0.1")
    assert (harness.cpus(group), harness.cpus(ls)) == ("4-5", "0-3,6-15")

    if restarts:
        harness.launcher.kill()
    file.write_text(text[: len(text) // 2])
    if restarts:
        harness.launcher.start((*node.agent_words, "--period-seconds=0.1"), node.cgroups)
    late = harness.run_container("LS")
    eventually("the error is logged", lambda: str(file) in harness.launcher.log())
    if not restarts:
        eventually("the new pod has its CPUs", lambda: harness.cpus(late) == "0-3,6-15")
    assert (harness.cpus(group), harness.cpus(ls)) == ("4-5", "0-3,6-15")
    file.write_text(text)
    eventually("all cpusets are correct", lambda: harness.cpus(late) == "0-3,6-15")
    assert (harness.cpus(group), harness.cpus(ls)) == ("4-5", "0-3,6-15")
