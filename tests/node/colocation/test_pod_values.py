"""What a command reads of a pod's real cgroups."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.cgroup import limits
from agent.cgroup.limits import IDLE, MAX, QUOTA, weight_file
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.node.colocation.pod_values import values_of
from agent.usage import STRATEGIES_FILE
from agent.view.pod_values import FileValue
from tests.node.colocation.colocated import ColocatedNode


def test_files_that_the_agent_has_written_are_explained(node: ColocatedNode) -> None:
    group = node.run("batch", "besteffort")
    node.run("other", "besteffort")
    (node.folder / STRATEGIES_FILE).write_bytes(msgspec.json.encode(node.strategies))
    weight = node.value(group, weight_file(node.controllers))
    node.colocation.step()
    batch = msgspec.structs.replace(node.pods["batch"], kube_class="besteffort")
    explained = values_of(batch, node.controllers, str(node.folder))
    by_file = {reason.value.file: reason for reason in explained.values}
    assert by_file.keys() == {IDLE, weight_file(node.controllers)}
    assert by_file[IDLE].value == FileValue("", IDLE, "1", "0")
    assert by_file[IDLE].follows == "resourceQOSStrategy.beClass.cpuQOS"
    of_weight = by_file[weight_file(node.controllers)]
    assert (of_weight.value.original, of_weight.feature) == (weight, "cpu-priority")


def test_a_line_that_is_not_valid_is_left_out(node: ColocatedNode, tmp_path: Path) -> None:
    node.run("batch", "besteffort")
    node.colocation.step()
    journal = tmp_path / "journal"
    journal.write_bytes(b"{\n" + journal.read_bytes())
    explained = values_of(node.pods["batch"], node.controllers, str(node.folder))
    assert len(explained.values) == 2
    assert journal.read_bytes().startswith(b"{\n"), "the file is the agent's"


def test_what_another_program_has_written_is_not_taken_back(node: ColocatedNode) -> None:
    group = node.run("batch", "besteffort", {"main": 3000})
    file = QUOTA if node.controllers.version("cpu") == 1 else MAX
    lifted = LinuxResources(quota=NO_QUOTA)
    limits.apply(node.controllers, node.journal, {group: lifted})
    node.set_quota(group, 4000)
    explained = values_of(node.pods["batch"], node.controllers, str(node.folder))
    (quota,) = (reason.value for reason in explained.values if reason.value.file == file)
    assert quota.original == quota.value == node.value(group, file)
