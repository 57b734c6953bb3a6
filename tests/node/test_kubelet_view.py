from pathlib import Path

import pytest

from agent.allocate.reserved_cpus import KubeletCpus
from agent.kubelet.statefile import StateFileError
from agent.model.cpu.cpuset import CpuSet
from agent.node.kubelet_view import CpuManagerStateView

ASSIGNED = KubeletCpus(True, {"u": CpuSet([1, 2])}, {"u": {"a": CpuSet([1, 2])}})
INCOMPLETE = KubeletCpus(True, {"u": CpuSet([1, 2])})
TEXT = '{"policyName":"static","defaultCpuSet":"0,3","entries":{"u":{"a":"1-2"}}}'


def test_torn_file_leaves_the_last_answer_in_force_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cpu_manager_state"
    view = CpuManagerStateView(str(tmp_path))
    assert view.cpus() == KubeletCpus()
    file.write_text(TEXT)
    assert view.cpus() == ASSIGNED
    file.write_text(TEXT[:40])
    assert [view.cpus(), view.cpus()] == [ASSIGNED, ASSIGNED]
    assert len(caplog.records) == 1
    file.write_bytes(b"\xff")
    assert view.cpus() == ASSIGNED
    assert len(caplog.records) == 2
    file.unlink()
    assert view.cpus() == KubeletCpus()


def test_torn_file_without_an_earlier_answer_is_an_error(tmp_path: Path) -> None:
    """If it counted as empty, the CPUs of the kubelet's pods would be free."""
    (tmp_path / "cpu_manager_state").write_text(TEXT[:40])
    view = CpuManagerStateView(str(tmp_path))
    for _ in range(2):
        with pytest.raises(StateFileError, match="cpu_manager_state"):
            view.cpus()
    (tmp_path / "cpu_manager_state").write_text(TEXT)
    assert view.cpus() == ASSIGNED


def test_unreadable_container_and_wrong_checksum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cpu_manager_state"
    view = CpuManagerStateView(str(tmp_path))
    file.write_text(TEXT.replace('"1-2"', '"1-2","b":"x"'))
    assert [view.cpus(), view.cpus()] == [INCOMPLETE, INCOMPLETE]
    file.write_text(TEXT.replace('"u"', '"w"')[:-1] + ',"checksum":1}')
    assert [view.cpus(), view.cpus()] == [INCOMPLETE, INCOMPLETE]
    unreadable, wrong = caplog.messages
    assert unreadable.startswith(f"cpu-manager-state: {file}: ignored: entries.u.b: ")
    assert wrong.startswith(f"cpu-manager-state: keeping the kubelet's last CPUs: {file}: checksum")


def test_another_source_is_used_while_the_file_was_never_readable(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(TEXT[:40])
    view = CpuManagerStateView(str(tmp_path))
    assert view.cpus(INCOMPLETE) == INCOMPLETE
    with pytest.raises(StateFileError):
        view.cpus()
    (tmp_path / "cpu_manager_state").write_text(TEXT)
    assert view.cpus(INCOMPLETE) == ASSIGNED
