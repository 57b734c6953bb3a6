from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.allocate.aside import KubeletCpus
from agent.allocate.pools import decide
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model.resources import NodeConfiguration
from agent.model.settings import Settings
from agent.node import beside
from agent.node.beside import Beside, CombinationError
from agent.node.configured import rules
from tests.builders import machine, pod


def process(root: Path, pid: int, *words: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")


def test_a_kubelet_with_a_file_and_flags(tmp_path: Path) -> None:
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 70, "/usr/bin/kubelet", "--config=/etc/kubelet.yaml", "--v=2")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/kubelet.yaml").write_text(
        "cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}\n"
    )
    got = beside.of_processes(str(tmp_path))
    assert got is not None
    assert (got.static, got.reserved_milli) == (True, 500)
    assert got.source == "kubelet 70, /etc/kubelet.yaml"


def test_no_kubelet_runs(tmp_path: Path) -> None:
    process(tmp_path, 5, "kubelet-wrapper")
    process(tmp_path, 6, "")
    assert beside.of_processes(str(tmp_path)) is None


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config", "/etc/kubelet.yaml")
    with pytest.raises(ConfigurationError, match=r"kubelet 70, /etc/kubelet.yaml: .*No such file"):
        beside.of_processes(str(tmp_path))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/kubelet.yaml").write_text("a: [")
    with pytest.raises(ConfigurationError, match=r"kubelet 70, /etc/kubelet.yaml: while parsing"):
        beside.of_processes(str(tmp_path))
    (tmp_path / "etc/kubelet.yaml").write_text("cpuManagerPolicy: [static]")
    with pytest.raises(ConfigurationError, match=r"cpuManagerPolicy"):
        beside.of_processes(str(tmp_path))


STATIC = KubeletConfiguration("kubelet 7", "static", {}, reserved_milli=1000)


@pytest.mark.parametrize(
    ("settings", "kubelet", "way_out"),
    [
        pytest.param(
            Settings(kubelet_cpu_manager="none"), STATIC, "drain the node", id="another policy"
        ),
        pytest.param(
            Settings(kubelet_cpu_manager="static"),
            KubeletConfiguration("kubelet 7"),
            "declare what it is",
            id="declared static",
        ),
        pytest.param(
            Settings(be_on_reserved=True),
            msgspec.structs.replace(STATIC, cpu_manager_options={"strict-cpu-reservation": "true"}),
            "switch one of them off",
            id="reserved CPUs for nobody and for BE",
        ),
        pytest.param(
            Settings(be_on_reserved=True),
            KubeletConfiguration("kubelet 7"),
            "reservedSystemCPUs",
            id="BE on nothing",
        ),
        pytest.param(
            Settings(bind_memory=True),
            KubeletConfiguration("kubelet 7", memory_manager_policy="Static"),
            "switch one of them off",
            id="two that bind memory",
        ),
    ],
)
def test_combination_that_cannot_be_right_says_how_to_get_out(
    settings: Settings, kubelet: KubeletConfiguration, way_out: str
) -> None:
    with pytest.raises(CombinationError, match=way_out) as raised:
        beside.check(settings, kubelet)
    assert "kubelet 7" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "kubelet"),
    [
        (Settings(), STATIC),
        (Settings(kubelet_cpu_manager="static", be_on_reserved=True), STATIC),
        (Settings(kubelet_cpu_manager="static"), None),
        (Settings(bind_memory=True), STATIC),
    ],
)
def test_combination_that_can(settings: Settings, kubelet: KubeletConfiguration | None) -> None:
    beside.check(settings, kubelet)


def test_kubelet_within_another_program(tmp_path: Path) -> None:
    words = ["/usr/bin/k3s", "server", "--kubelet-arg=cpu-manager-policy=static"]
    words += ["--kubelet-arg", "reserved-cpus=0-1", "--node-name", "n"]
    process(tmp_path, 9, *words)
    got = beside.of_processes(str(tmp_path))
    assert got is not None
    assert (got.static, str(got.reserved_cpus), got.source) == (True, "0-1", "k3s 9")


def test_what_is_configured_comes_of_node_kubelet_and_settings(tmp_path: Path) -> None:
    words = ["kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1"]
    process(tmp_path, 9, *words)
    settings = Settings(root=str(tmp_path), be_on_reserved=True, bind_memory=True)
    made = rules(Beside(settings).applied(NodeConfiguration(), machine()))
    assert (str(made.reserved), made.be_on_reserved, made.bind_memory) == ("1", True, True)
    assert not made.owners_on_reserved


def test_kubelet_that_changes_into_what_cannot_be_right_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1")
    settings = Settings(root=str(tmp_path), kubelet_cpu_manager="static")
    watched = Beside(settings)
    before = watched.applied(NodeConfiguration(), machine())
    process(tmp_path, 9, "kubelet")
    monkeypatch.setattr("agent.node.beside.LOOK_AGAIN_SECONDS", 0.0)
    for _ in range(2):
        assert watched.applied(NodeConfiguration(), machine()) == before
    (said,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "cpuManagerPolicy is none" in said.getMessage()


def test_strict_reservation_leaves_the_reserved_cpus_to_nobody(tmp_path: Path) -> None:
    options = "--cpu-manager-policy-options=strict-cpu-reservation=true"
    process(tmp_path, 9, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1", options)
    configured = Beside(Settings(root=str(tmp_path))).applied(NodeConfiguration(), machine())
    decision = decide(machine(), (pod("a", "LS"),), KubeletCpus(), {}, {}, rules(configured))
    assert decision.pods["a"].each.cpuset == "0,2-3"
