from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.kubelet import cpu_manager_state
from agent.kubelet.configuration import KubeletConfiguration
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.model.cpu.cpuset import CpuSet
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.settings.agent import AgentSettings
from agent.node.kubelet_configuration import (
    CpuManagerStatus,
    KubeletConfigurationView,
)
from agent.node.node_configuration import CombinationError, check_combination, rules
from agent.node.sources import SourceName, Sources
from tests.builders import machine, pod
from tests.node.procfs import POD, process
from tests.waiting import DEADLINE_SECONDS

STATIC = KubeletConfiguration("kubelet 7", "static", {}, reserved_milli=1000)


def read(settings: AgentSettings, sources: Sources | None = None) -> KubeletConfigurationView:
    """A view after one read."""
    view = KubeletConfigurationView(settings, sources)
    view.read()
    return view


def test_impossible_combination_names_the_remedy() -> None:
    kubelet = KubeletConfiguration("kubelet 7", memory_manager_policy="Static")
    with pytest.raises(CombinationError, match="switch one of them off") as raised:
        check_combination(AgentSettings(bind_memory=True), kubelet)
    assert "kubelet 7" in str(raised.value)


def test_configuration_is_merged_from_node_kubelet_and_settings(tmp_path: Path) -> None:
    command_line = ["kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1"]
    process(tmp_path, 9, *command_line)
    settings = AgentSettings(root=str(tmp_path), bind_memory=True)
    applied = rules(read(settings).applied(NodeConfiguration(), machine()))
    assert (str(applied.kubelet_reserved), applied.be_on_reserved, applied.bind_memory) == (
        "1",
        True,
        True,
    )
    assert not applied.owners_on_reserved


def test_kubelet_that_changes_to_an_impossible_combination_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1")
    settings = AgentSettings(root=str(tmp_path), bind_memory=True)
    view = read(settings)
    before = view.applied(NodeConfiguration(), machine())
    process(tmp_path, 9, "kubelet", "--memory-manager-policy=Static")
    for _ in range(2):
        view.read()
        assert view.applied(NodeConfiguration(), machine()) == before
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "kubelet-combination: bind-memory is on" in record.getMessage()


def test_a_state_file_of_another_policy_is_a_problem_while_it_exists(tmp_path: Path) -> None:
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1")
    folder = tmp_path / "kubelet"
    folder.mkdir()
    sources = Sources()
    view = read(AgentSettings(root=str(tmp_path), kubelet_dir=str(folder)), sources)
    assert SourceName.KUBELET_COMBINATION not in sources.problems
    path = folder / cpu_manager_state.FILE_NAME
    path.write_bytes(cpu_manager_state.encode(CpuManagerState("none", version=2)))
    view.read()
    (problem,) = sources.problems[SourceName.KUBELET_COMBINATION]
    assert "its cpuManagerPolicy is static, and its state file has the policy none" in problem
    path.write_bytes(cpu_manager_state.encode(CpuManagerState("static", version=2)))
    view.read()
    assert SourceName.KUBELET_COMBINATION not in sources.problems


def test_the_agent_does_not_start_with_an_impossible_combination(tmp_path: Path) -> None:
    process(tmp_path, 9, "kubelet", "--memory-manager-policy=Static")
    with pytest.raises(CombinationError):
        KubeletConfigurationView(AgentSettings(root=str(tmp_path), bind_memory=True)).start()


def second_kubelet(root: Path) -> None:
    process(root, 5, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=0-1")


def kubelet_in_a_pod(root: Path) -> None:
    command_line = ["--cpu-manager-policy=static", "--reserved-cpus=0-1", "--config=/nonexistent"]
    process(root, 5, "kubelet", *command_line, groups=POD)


def kubelet_without_cgroup(root: Path) -> None:
    (process(root, 5, "kubelet") / "cgroup").write_text("")


def kubelet_with_missing_file(root: Path) -> None:
    process(root, 9, "kubelet", "--config=/etc/kubernetes/kubelet/config.json")


def ended_kubelet(root: Path) -> None:
    shutil.rmtree(root / "proc" / "9")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            second_kubelet,
            "kubelet-process: several run, and not exactly one of them uses the agent's kubelet",
        ),
        (kubelet_without_cgroup, "kubelet-process: process 5: /proc names no cgroup"),
        (
            kubelet_with_missing_file,
            "kubelet-config: kubelet 9: /etc/kubernetes/kubelet/config.json: ",
        ),
        (kubelet_in_a_pod, ""),
        (ended_kubelet, ""),
    ],
)
def test_uncertain_configuration_changes_nothing_and_is_logged_once(
    tmp_path: Path, change: Callable[[Path], None], error: str, caplog: pytest.LogCaptureFixture
) -> None:
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1")
    counted: dict[str, int] = {}
    view = read(AgentSettings(root=str(tmp_path)), Sources(counted.__setitem__))
    before = view.applied(NodeConfiguration(), machine())
    assert str(before.kubelet_reserved) == "1"
    change(tmp_path)
    for _ in range(3):
        view.read()
        assert view.applied(NodeConfiguration(), machine()) == before
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert [each[: len(error)] for each in errors] == ([error] if error else [])
    if error:
        assert counted[error.partition(":")[0]] == 1
        process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1")
        shutil.rmtree(tmp_path / "proc/5", ignore_errors=True)
        view.read()
        assert counted[error.partition(":")[0]] == 0


@pytest.mark.parametrize(
    "change", [second_kubelet, kubelet_without_cgroup, kubelet_with_missing_file]
)
def test_a_start_with_an_uncertain_kubelet_uses_what_is_known(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=none", "--config=/nonexistent")
    change(tmp_path)
    view = read(AgentSettings(root=str(tmp_path)))
    state = CpuManagerState("static", CpuSet.parse("0-3"))
    status = CpuManagerStatus(state, CpuSet.parse("0"))
    applied = view.applied(NodeConfiguration(), machine(), status)
    assert (applied.kubelet_policy, str(applied.kubelet_reserved)) == ("static", "0")
    assert applied.kubelet_options == {}
    assert applied.be_on_reserved
    strict = CpuManagerStatus(CpuManagerState("static", CpuSet.parse("1-3")), CpuSet.parse("0"))
    applied = view.applied(NodeConfiguration(), machine(), strict)
    assert applied.kubelet_options == {"strict-cpu-reservation": "true"}
    assert view.applied(NodeConfiguration(), machine()).kubelet_policy == "none"


def test_flags_count_even_with_an_unreadable_file(tmp_path: Path) -> None:
    flags = ["--cpu-manager-policy=static", "--reserved-cpus=1", "--config=/etc/k/c.json"]
    process(tmp_path, 9, "kubelet", *flags)
    applied = read(AgentSettings(root=str(tmp_path))).applied(
        NodeConfiguration(), machine(), CpuManagerStatus(None, CpuSet.parse("0"))
    )
    assert (applied.kubelet_policy, str(applied.kubelet_reserved)) == ("static", "1")


def test_the_memory_managers_state_file_has_its_policy(tmp_path: Path) -> None:
    process(tmp_path, 9, "kubelet", "--config=/nonexistent")
    (tmp_path / "memory_manager_state").write_text(
        '{"policyName":"Static","machineState":{},"entries":{},"checksum":0}'
    )
    settings = AgentSettings(root=str(tmp_path), kubelet_dir=str(tmp_path))
    assert read(settings).applied(NodeConfiguration(), machine()).kubelet_memory
    (tmp_path / "memory_manager_state").write_text('{"policyName":')
    counted: dict[str, int] = {}
    applied = read(settings, Sources(counted.__setitem__)).applied(NodeConfiguration(), machine())
    assert not applied.kubelet_memory
    assert counted["memory-manager-state"] == 1


def test_the_last_known_configuration_applies_until_the_kubelet_shows_another(
    tmp_path: Path,
) -> None:
    process(tmp_path, 9, "kubelet", "--config=/nonexistent")
    last = msgspec.structs.replace(STATIC, reserved_cpus=CpuSet.parse("2"))
    view = KubeletConfigurationView(AgentSettings(root=str(tmp_path)), last=last)
    view.read()

    def reserved(policy: str) -> str:
        status = CpuManagerStatus(CpuManagerState(policy, CpuSet.parse("0-3")) if policy else None)
        return str(view.applied(NodeConfiguration(), machine(), status).kubelet_reserved)

    assert [reserved(each) for each in ("", "static", "none")] == ["2", "2", ""]


def test_a_kubelet_that_does_not_answer_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, answer = threading.Event(), threading.Event()

    def hanging_read(*_: str) -> KubeletConfiguration:
        called.set()
        answer.wait(DEADLINE_SECONDS)
        return msgspec.structs.replace(STATIC, reserved_cpus=CpuSet.parse("3"))

    monkeypatch.setattr("agent.node.kubelet_configuration.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("agent.kubelet.configuration.read_configz", hanging_read)
    changed = threading.Event()
    (tmp_path / "proc").mkdir()
    settings = AgentSettings(root=str(tmp_path), kubelet_configz="https://node:10250/configz")
    view = KubeletConfigurationView(settings, changed=changed.set)
    view.start()
    assert called.wait(DEADLINE_SECONDS)
    assert not view.applied(NodeConfiguration(), machine()).kubelet_reserved
    answer.set()
    assert changed.wait(DEADLINE_SECONDS)
    assert str(view.applied(NodeConfiguration(), machine()).kubelet_reserved) == "3"
    view.close()


def test_strictly_reserved_cpus_are_in_no_pool(tmp_path: Path) -> None:
    options = "--cpu-manager-policy-options=strict-cpu-reservation=true"
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1", options)
    configured = read(AgentSettings(root=str(tmp_path))).applied(NodeConfiguration(), machine())
    decision = decide(machine(), (pod("a", "LS"),), KubeletCpus(), {}, {}, rules(configured))
    assert decision.pods["a"].each.cpuset == "0,2-3"
