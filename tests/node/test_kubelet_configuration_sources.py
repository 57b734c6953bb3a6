from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from agent.kubelet import configuration
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.settings.agent import AgentSettings
from agent.node import kubelet_configuration
from agent.node.kubelet_configuration import Reading, inferred, merged
from agent.node.sources import SourceName
from tests.node.procfs import POD, process

STATIC = "cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}\n"


def read(root: Path, **settings: Any) -> Reading:
    return kubelet_configuration.read(AgentSettings(root=str(root), **settings), lambda: "/")


def whole(reading: Reading) -> KubeletConfiguration:
    assert not any(reading.problems.values()), reading.problems
    assert reading.whole is not None
    return reading.whole


def put(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_kubelet_with_a_file_and_flags(tmp_path: Path) -> None:
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 70, "/usr/bin/kubelet", "--config=/etc/kubelet.yaml", "--reserved-cpus=1")
    put(tmp_path, "/etc/kubelet.yaml", STATIC)
    configuration = whole(read(tmp_path))
    assert (
        configuration.static,
        configuration.reserved_milli,
        str(configuration.reserved_cpus),
    ) == (True, 500, "1")
    assert configuration.source == "kubelet 70, /etc/kubelet.yaml"


def test_no_kubelet_runs(tmp_path: Path) -> None:
    process(tmp_path, 5, "kubelet-wrapper")
    process(tmp_path, 6, "kubelet", "--config=/nonexistent", groups=POD)
    reading = read(tmp_path)
    assert reading.whole is None
    assert not any(reading.problems.values())


def make_fifo(root: Path) -> None:
    (root / "etc").mkdir()
    os.mkfifo(root / "etc/kubelet.yaml")


def make_folder(root: Path) -> None:
    (root / "etc/kubelet.yaml").mkdir(parents=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("a: [", "is not YAML"),
        ("cpuManagerPolicy: [static]", "cpuManagerPolicy"),
        ("- a", "must be an object"),
        ("a: 'x\0'", ""),
        ("#" * (5 << 20), "is larger than"),
        (make_fifo, "is not a regular file"),
        (make_folder, "Is a directory"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_path(
    tmp_path: Path, content: Any, reason: str
) -> None:
    process(tmp_path, 70, "kubelet", "--config", "/etc/kubelet.yaml", "--reserved-cpus=1")
    if callable(content):
        content(tmp_path)
    elif content is not None:
        put(tmp_path, "/etc/kubelet.yaml", content)
    reading = read(tmp_path)
    assert reading.whole is None
    (problem,) = reading.problems[SourceName.KUBELET_CONFIG]
    assert re.match("kubelet 70[,:] /etc/kubelet.yaml: ", problem)
    assert reason in problem
    assert reading.argv == ("kubelet", "--config", "/etc/kubelet.yaml", "--reserved-cpus=1")


def test_a_relative_path_is_not_guessed(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config=kubelet.yaml")
    (problem,) = read(tmp_path).problems[SourceName.KUBELET_CONFIG]
    assert "is relative" in problem


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config=/etc/kubelet.yaml")
    put(tmp_path, "/etc/kubelet.yaml", "")
    assert not whole(read(tmp_path)).static


def test_drop_ins_in_their_order(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config=/etc/k.yaml", "--config-dir=/etc/k.d", "--v=2")
    put(tmp_path, "/etc/k.yaml", STATIC + "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n")
    put(tmp_path, "/etc/k.d/20.conf", "reservedSystemCPUs: '2'\n")
    put(tmp_path, "/etc/k.d/10.conf", "reservedSystemCPUs: '1'\nkubeReserved: {cpu: '1'}\n")
    put(tmp_path, "/etc/k.d/30/x.conf", '{"cpuManagerPolicyOptions": {"a": "true"}}')
    put(tmp_path, "/etc/k.d/90.yaml", "cpuManagerPolicy: none\n")
    configuration = whole(read(tmp_path))
    assert (
        configuration.static,
        str(configuration.reserved_cpus),
        configuration.reserved_milli,
    ) == (True, "2", 1000)
    assert configuration.cpu_manager_options == {"full-pcpus-only": "true", "a": "true"}


def test_drop_ins_that_cannot_be_read_make_the_configuration_unknown(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config=/etc/k.yaml", "--config-dir=/opt/k.d")
    put(tmp_path, "/etc/k.yaml", STATIC)
    reading = read(tmp_path)
    assert reading.whole is None
    assert reading.content["cpuManagerPolicy"] == "static"
    (problem,) = reading.problems[SourceName.KUBELET_CONFIG]
    assert "/opt/k.d: No such file or directory" in problem


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"a": None, "b": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}}, {"a": {"c": 2, "d": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": {"c": None, "d": 1}}}, {"a": {"b": {"d": 1}}}),
    ],
)
def test_a_merge_patch(before: Any, patch: Any, after: Any) -> None:
    """RFC 7386, section 2 and appendix A."""
    assert merged(before, patch) == after


def test_a_declared_file_is_preferred_and_flags_override_it(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config=/etc/kubernetes/k.json", "--reserved-cpus=1")
    put(tmp_path, "/mine.json", json.dumps({"cpuManagerPolicy": "static"}))
    reading = read(tmp_path, kubelet_config=str(tmp_path / "mine.json"))
    configuration = whole(reading)
    assert (configuration.static, str(configuration.reserved_cpus)) == (True, "1")


def test_a_declared_file_counts_in_part_if_the_process_is_unknown(tmp_path: Path) -> None:
    """Flags of the kubelet override the file."""
    put(tmp_path, "/mine.json", json.dumps({"cpuManagerPolicy": "static"}))
    process(tmp_path, 70, "kubelet", "--reserved-cpus=1")
    process(tmp_path, 71, "kubelet")
    reading = read(tmp_path, kubelet_config=str(tmp_path / "mine.json"))
    assert reading.whole is None
    assert "several run" in reading.problems[SourceName.KUBELET_PROCESS][0]
    assert reading.problems[SourceName.KUBELET_CONFIG] == ()
    found = inferred(reading, "", CpuSet(), strict=False)
    assert found is not None
    assert found.static
    put(tmp_path, "/mine.json", json.dumps({"cpuManagerPolicy": 1}))
    reading = read(tmp_path, kubelet_config=str(tmp_path / "mine.json"))
    assert "cpuManagerPolicy" in reading.problems[SourceName.KUBELET_CONFIG][0]


def test_configz_is_preferred(tmp_path: Path) -> None:
    process(tmp_path, 70, "kubelet", "--config=/nonexistent")
    put(tmp_path, "/configz", json.dumps({"kubeletconfig": {"cpuManagerPolicy": "static"}}))
    url = f"file:{tmp_path}/configz"
    assert whole(read(tmp_path, kubelet_configz=url)).static
    put(tmp_path, "/configz", "{")
    process(tmp_path, 70, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=1")
    reading = read(tmp_path, kubelet_configz=url)
    assert reading.whole is not None
    assert str(reading.whole.reserved_cpus) == "1"
    assert url in reading.problems[SourceName.KUBELET_CONFIGZ][0]


@pytest.mark.parametrize(
    ("url", "sent"), [("https://127.0.0.1:1/configz", True), ("http://127.0.0.1:1/configz", False)]
)
def test_the_token_of_the_service_account_is_sent_to_configz_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, sent: bool
) -> None:
    put(tmp_path, "/account/token", "secret")
    tokens: list[str] = []
    monkeypatch.setattr(
        configuration, "read_configz", lambda _url, token_file, *_: tokens.append(token_file)
    )
    read(tmp_path, kubelet_configz=url, kubeconfig=str(tmp_path / "account"))
    assert tokens == [f"{tmp_path}/account/token" if sent else ""]


def test_kubelet_within_k3s(tmp_path: Path) -> None:
    argv = ["/usr/bin/k3s", "server", "--kubelet-arg=cpu-manager-policy=static"]
    process(tmp_path, 9, *argv, "--kubelet-arg", "reserved-cpus=0-1", name="k3s-server")
    put(tmp_path, "/etc/rancher/k3s/config.yaml", "kubelet-arg: [reserved-cpus=3]")
    configuration = whole(read(tmp_path))
    assert (configuration.static, str(configuration.reserved_cpus), configuration.source) == (
        True,
        "0-1",
        "k3s 9",
    )


def test_files_of_k3s(tmp_path: Path) -> None:
    process(tmp_path, 9, "k3s", "agent", name="k3s-agent")
    (problem,) = read(tmp_path).problems[SourceName.KUBELET_CONFIG]
    assert "/etc/rancher/k3s/config.yaml: its folder is not mounted in" in problem
    (tmp_path / "etc").mkdir()
    assert not whole(read(tmp_path)).static
    put(tmp_path, "/etc/rancher/k3s/config.yaml", "kubelet-arg: cpu-manager-policy=static")
    put(tmp_path, "/etc/rancher/k3s/config.yaml.d/a.yaml", "kubelet-arg+: [reserved-cpus=1]")
    put(
        tmp_path,
        "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/a.conf",
        "topologyManagerPolicy: restricted",
    )
    configuration = whole(read(tmp_path))
    assert (configuration.static, str(configuration.reserved_cpus)) == (True, "1")
    assert configuration.topology_manager_policy == "restricted"
    put(tmp_path, "/etc/rancher/k3s/config.yaml", "kubelet-arg: 1")
    reading = read(tmp_path)
    assert reading.whole is None
    assert "kubelet-arg: must be a list" in reading.problems[SourceName.KUBELET_CONFIG][0]
    for content in ("[]", "x"):
        put(tmp_path, "/etc/rancher/k3s/config.yaml", content)
        (problem,) = read(tmp_path).problems[SourceName.KUBELET_CONFIG]
        assert problem.endswith("/k3s/config.yaml: its content must be an object")


def test_k3s_reads_only_yaml_files_in_its_folder(tmp_path: Path) -> None:
    """See `dotDFiles` in pkg/configfilearg/parser.go of k3s."""
    process(tmp_path, 9, "k3s", "agent", name="k3s-agent")
    for name, cpus in (("1.yaml", 1), ("2.YML", 2), ("3.txt", 3), ("4.yaml/x.yaml", 4)):
        put(
            tmp_path, f"/etc/rancher/k3s/config.yaml.d/{name}", f"kubelet-arg: reserved-cpus={cpus}"
        )
    assert str(whole(read(tmp_path)).reserved_cpus) == "2"


def test_k3s_that_hides_its_flags(tmp_path: Path) -> None:
    """k3s overwrites its command line (`SetProcTitle` in pkg/cli/server/server.go)."""
    process(tmp_path, 9, "/usr/local/bin/k3s server", "", "", name="k3s-server")
    put(tmp_path, "/etc/rancher/k3s/config.yaml", "kubelet-arg: cpu-manager-policy=static")
    reading = read(tmp_path)
    assert reading.whole is None
    (problem,) = reading.problems[SourceName.KUBELET_CONFIG]
    assert problem.startswith("k3s 9: it hides its flags")
    found = inferred(reading, "", CpuSet.parse("1"), strict=False)
    assert found is not None
    assert (found.static, str(found.reserved_cpus)) == (True, "1")


@pytest.mark.parametrize("flag", ["config", "config-dir"])
def test_an_invalid_path_is_reported(tmp_path: Path, flag: str) -> None:
    process(tmp_path, 9, "kubelite", "--kubelet-args-file=/args")
    put(tmp_path, "/args", f"--{flag}=/a\0b\n")
    (problem,) = read(tmp_path).problems[SourceName.KUBELET_CONFIG]
    assert problem == "kubelite 9: /a\0b: embedded null byte"


def test_the_file_of_a_kubelite(tmp_path: Path) -> None:
    process(tmp_path, 9, "/snap/microk8s/7/kubelite", "--kubelet-args-file=/var/snap/args/kubelet")
    assert read(tmp_path).whole is None
    put(tmp_path, "/var/snap/args/kubelet", "--cpu-manager-policy=static\n--reserved-cpus=1\n")
    configuration = whole(read(tmp_path))
    assert (configuration.static, str(configuration.reserved_cpus)) == (True, "1")
