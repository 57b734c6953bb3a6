from __future__ import annotations

from typing import Any

import pytest

from agent.kubelet.configuration import ConfigurationError
from agent.node.kubelet_process import (
    arguments_of_file,
    arguments_of_k3s,
    own_arguments,
    program_of,
    runs_kubelet,
)


@pytest.mark.parametrize(
    ("argv0", "name"),
    [
        ("kubelet", "kubelet"),
        ("/var/lib/k0s/bin/kubelet", "kubelet"),
        ("/usr/local/bin/k3s", "k3s"),
        ("/snap/microk8s/7/kubelite", "kubelite"),
        ("/usr/local/bin/k3s server", "k3s"),
        ("k3s agent", "k3s"),
        ("k3s kubectl", None),
        ("kubelet server", None),
        ("kubelet-wrapper", None),
        ("/kubelet/", None),
        ("kubelet\n", None),
        ("", None),
    ],
)
def test_program(argv0: str, name: str | None) -> None:
    assert program_of(argv0) == name


@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        (["kubelet"], True),
        (["kubelet", "--v=2"], True),
        (["kubelet", "--version"], False),
        (["kubelet", "--help"], False),
        (["k3s", "server"], True),
        (["k3s", "agent", "--token", "x"], True),
        (["k3s", "server", "--disable-agent"], False),
        (["k3s", "kubectl", "get", "nodes"], False),
        (["k3s"], False),
        (["/usr/local/bin/k3s server", "", ""], True),
        (["kubelite", "--kubelet-args-file=/a"], True),
    ],
)
def test_which_command_lines_run_a_kubelet(argv: list[str], runs: bool) -> None:
    assert runs_kubelet(argv) is runs


def test_arguments_that_k3s_passes_on() -> None:
    argv = ["/usr/bin/k3s", "server", "--kubelet-arg=cpu-manager-policy=static"]
    argv += ["--kubelet-arg", "reserved-cpus=0-1", "--node-name", "n"]
    assert own_arguments(argv) == [
        "/usr/bin/k3s",
        "--cpu-manager-policy=static",
        "--reserved-cpus=0-1",
    ]
    assert own_arguments(["kubelet", "--a"]) == ["kubelet", "--a"]


def test_flags_in_the_file_of_a_kubelite() -> None:
    text = "# mine\n--cpu-manager-policy=static\n\n  --reserved-cpus 0-1\n--v=2"
    assert arguments_of_file(text) == [
        "--cpu-manager-policy=static",
        "--reserved-cpus",
        "0-1",
        "--v=2",
    ]


def test_later_files_of_k3s_replace_or_append() -> None:
    contents: list[dict[str, Any]] = [
        {"kubelet-arg": ["a=1", "b=2"]},
        {},
        {"kubelet-arg+": "c=3"},
    ]
    assert arguments_of_k3s(contents, "here") == ["--a=1", "--b=2", "--c=3"]
    contents.append({"kubelet-arg": ["d=4"]})
    assert arguments_of_k3s(contents, "here") == ["--d=4"]


@pytest.mark.parametrize("content", [{"kubelet-arg": [1]}, {"kubelet-arg+": {}}])
def test_invalid_files_of_k3s(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="here: "):
        arguments_of_k3s([content], "here")
