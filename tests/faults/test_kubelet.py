"""The kubelet's checkpoint, torn."""

import json
from pathlib import Path

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.faults.conftest import Around
from tests.waiting import eventually


@pytest.mark.parametrize("restarts", [False, True])
def test_torn_checkpoint_does_not_affect_the_kubelets_pods(
    around: Around, tmp_path: Path, restarts: bool
) -> None:
    """Without an earlier answer nothing is changed until there is one."""
    node, file = around.node, tmp_path / "kubelet" / "cpu_manager_state"
    pod = node.add(guaranteed=True)
    container = node.create(pod, starts=True)
    group = container.group
    assert group is not None
    node.cgroups.set(group, CpuSet([4, 5]))
    entries = {pod.uid: {node.runtime.containers[container.id].name: "4-5"}}
    text = json.dumps({"policyName": "static", "defaultCpuSet": "0-15", "entries": entries})
    file.write_text(text)
    ls = around.running("LS")
    around.start("--period-seconds=0.1")
    assert (around.cpus(group), around.cpus(ls)) == ("4-5", "0-3,6-15")

    if restarts:
        around.launcher.kill()
    file.write_text(text[: len(text) // 2])
    if restarts:
        around.launcher.start((*node.agent_words, "--period-seconds=0.1"), node.cgroups)
    late = around.running("LS")
    eventually("the error is logged", lambda: str(file) in around.launcher.log())
    if not restarts:
        eventually("the new pod runs with them", lambda: around.cpus(late) == "0-3,6-15")
    assert (around.cpus(group), around.cpus(ls)) == ("4-5", "0-3,6-15")
    file.write_text(text)
    eventually("all cpusets are correct", lambda: around.cpus(late) == "0-3,6-15")
    assert (around.cpus(group), around.cpus(ls)) == ("4-5", "0-3,6-15")
