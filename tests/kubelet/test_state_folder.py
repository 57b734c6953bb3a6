from __future__ import annotations

from pathlib import Path

from agent.kubelet import cpu_manager_state, device_checkpoint, memory_manager_state, state_folder
from agent.kubelet.cpu_manager_state import CpuManagerState


def test_a_damaged_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / cpu_manager_state.FILE_NAME).write_text("{")
    (tmp_path / memory_manager_state.FILE_NAME).write_text('{"policyName":"None","checksum":1}')
    cpus, memory, devices = state_folder.read(str(tmp_path))
    assert (cpus.name, cpus.state) == (cpu_manager_state.FILE_NAME, None)
    assert cpus.error == cpus.problem != ""
    assert memory.state is not None
    assert (memory.error, memory.problem) == ("", "its checksum is wrong")
    assert (devices.name, devices.state) == (device_checkpoint.FILE_NAME, None)
    assert devices.problem == ""


def test_the_values_of_a_file_have_cpus_as_lists(tmp_path: Path) -> None:
    (tmp_path / cpu_manager_state.FILE_NAME).write_text(
        '{"policyName":"none","defaultCpuSet":"0-3"}'
    )
    cpus, *_ = state_folder.read(str(tmp_path))
    assert isinstance(cpus.state, CpuManagerState)
    assert state_folder.body(cpus)["state"]["default"] == "0-3"
