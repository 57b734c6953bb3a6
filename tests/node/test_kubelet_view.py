from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from agent.allocate.reserved_cpus import KubeletCpus
from agent.kubelet.device_checkpoint import FILE_NAME
from agent.kubelet.statefile import StateFileError
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.node.kubelet_view import CpuManagerStateView, DeviceCheckpointView, ResourceClaimView
from tests.kubelet.state_files import ENTRY, REAL

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


REPORTED = ReportedDevices(
    ENTRY["PodUID"], "check", "nvidia.com/gpu", ("tegra",), HoldingSource.CHECKPOINT
)


def put(folder: Path, text: str) -> None:
    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_without_a_checkpoint_there_are_no_reported_devices(tmp_path: Path) -> None:
    view = DeviceCheckpointView(str(tmp_path))
    assert (view.reported_devices(), view.nodes()) == ((), {})


def test_devices_are_read_once_the_checkpoint_is_written(tmp_path: Path) -> None:
    view = DeviceCheckpointView(str(tmp_path))
    assert view.reported_devices() == ()
    put(tmp_path, json.dumps(REAL))
    assert view.reported_devices()[0] == REPORTED
    assert view.reported_devices() is view.reported_devices()


def test_numa_nodes_of_devices(tmp_path: Path) -> None:
    put(tmp_path, "{")
    view = DeviceCheckpointView(str(tmp_path))
    assert view.nodes() is None, "not known"
    ids = {"0": ["a"], "1": ["a", "b"], "-1": ["c"], "-7": ["d"], "1024": ["e"]}
    fields = {"ResourceName": "nic", "DeviceIDs": ids}
    entries = [ENTRY | fields, ENTRY | fields | {"DeviceIDs": {"1": ["d"]}}]
    put(tmp_path, json.dumps({"Data": {"PodDeviceEntries": entries}}))
    of_devices = tuple(map(CpuSet.parse, ("0-1", "1", "", "1", "")))
    assert view.nodes() == {(ENTRY["PodUID"], "check"): of_devices}
    put(tmp_path, "{")
    assert view.nodes() == {(ENTRY["PodUID"], "check"): of_devices}, "its last content"


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({**REAL, "Checksum": 1})])
def test_a_torn_file_is_logged_once_and_leaves_the_last_valid_answer(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, json.dumps(REAL))
    view = DeviceCheckpointView(str(tmp_path))
    before = view.reported_devices()
    caplog.clear()
    put(tmp_path, content)
    for _ in range(3):
        assert view.reported_devices() == before
    assert len(caplog.records) == 1
    assert FILE_NAME in caplog.text
    put(tmp_path, json.dumps(REAL))
    assert view.reported_devices() == before


def claimed(pod: str, cpus: str) -> list[ReportedDevices]:
    cdi = (f"dra.k8s.io/cpu=claim-{pod}",)
    return [
        ReportedDevices(
            pod, "main", "dra.cpu", ("cpudev0",), HoldingSource.CLAIM, f"ns/{pod}", cdi=cdi
        ),
        ReportedDevices(pod, "main", "dra.cpu", (cpus,), HoldingSource.ENVIRONMENT, pod),
    ]


def test_resource_claims_are_added_to_the_kubelets_cpus() -> None:
    kubelet = KubeletCpus(True, {"k": CpuSet([0])})
    view = ResourceClaimView()
    assert view.with_claims(kubelet, ()) == kubelet
    found = view.with_claims(kubelet, claimed("a", "2-3"))
    assert found == KubeletCpus(True, {"k": CpuSet([0])}, {}, {"a": {"main": CpuSet([2, 3])}})


def test_cpus_of_two_pods_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    view = ResourceClaimView()
    for _ in range(3):
        view.with_claims(
            KubeletCpus(), [*claimed("a", "2-3"), *claimed("b", "3"), *claimed("c", "x")]
        )
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "claims: pod c, main: CPUs x in a variable: 'x' does not name the CPUs"),
        ("WARNING", "claims: pod b has CPUs 3, which pod a has"),
    ]
