"""A set is built once and completely; a failure is reported with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import conftest, tools

# Records its calls; "builds" when requested, slowly enough for a concurrent caller.
_GO = """#!/bin/sh
echo "$1" >> "{calls}"
sleep 0.2
{then}
echo built > "$GOBIN/containerd"
"""


@pytest.fixture
def install_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Puts a `go` on PATH that runs a line of shell before it builds; returns the list of calls."""
    monkeypatch.setenv("TOPOLET_CACHE", str(tmp_path / "cache"))
    calls = tmp_path / "calls"

    def install(then: str) -> Path:
        program = tmp_path / "bin" / "go"
        program.parent.mkdir()
        program.write_text(_GO.format(calls=calls, then=then))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return calls

    for function in (tools.built, tools.source):
        function.cache_clear()
    yield install
    for function in (tools.built, tools.source):
        function.cache_clear()


def test_concurrent_callers_share_one_build(install_go: Callable[[str], Path]) -> None:
    calls = install_go(":")
    with ThreadPoolExecutor(4) as pool:
        (folder,) = set(pool.map(tools.built, ["containerd"] * 4))
    assert isinstance(folder, Path)
    assert (folder / "containerd").read_text() == "built\n"
    assert calls.read_text() == "install\n"


def test_a_failed_build_is_reported_and_leaves_nothing(install_go: Callable[[str], Path]) -> None:
    install_go("echo 'no such host' >&2; exit 1")
    assert tools.built("containerd") == "containerd: go install: no such host"
    assert [each.name for each in tools.cache().iterdir()] == ["containerd.lock"]


def test_missing_go_is_reported(
    install_go: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert tools.built("containerd") == "containerd: no go here to build it"


def test_an_unavailable_source_is_reported(
    install_go: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_go("""echo '{"Error": "no such host"}'; exit 1""")
    assert tools.source("go-nvml") == "go-nvml: no such host"
    tools.source.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert str(tools.source("go-nvml")).startswith("go-nvml: no go here to download it")


@pytest.mark.parametrize("change", ["go.sum", "descriptor/main.go"])
def test_a_changed_module_is_built_in_another_folder(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tools.folder("cri-tools")
    copy = tmp_path / "cri-tools"
    monkeypatch.setattr(tools, "_HERE", tmp_path)
    for file in ("go.mod", "go.sum", "critest.go", "descriptor/main.go"):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        (copy / file).write_bytes((Path(tools.__file__).parent / "cri-tools" / file).read_bytes())
    assert tools.folder("cri-tools") == before
    with (copy / change).open("a") as file:
        file.write("// more\n")
    assert tools.folder("cri-tools") != before


def test_every_folder_with_a_module_is_built_or_read() -> None:
    """The Makefile finds the versions of Kubernetes by their folders."""
    folders = {each.parent.name for each in Path(tools.__file__).parent.glob("*/go.mod")}
    assert folders == {*(tools.module(name).name for name in tools.NAMES), *tools.SOURCES}
    versions = {f"kubernetes-{version}" for version in tools.VERSIONS}
    assert {each for each in folders if each.startswith("kubernetes-")} == versions


@pytest.mark.parametrize("version", tools.VERSIONS)
def test_a_version_of_kubernetes_is_that_of_all_its_modules_and_programs(version: str) -> None:
    text = (tools.module(tools.VERSIONS[version]) / "go.mod").read_text()
    _, _, minor = version.partition(".")
    (patch,) = re.findall(rf"^\tk8s\.io/kubernetes v1\.{minor}\.(\d+) ", text, re.MULTILINE)
    replaced = re.findall(r" => k8s\.io/\S+ (\S+)$", text, re.MULTILINE)
    assert set(replaced) == {f"v0.{minor}.{patch}"}
    assert re.findall(r"^\tk8s\.io/kubernetes/cmd/(\S+)$", text, re.MULTILINE) == [
        *tools.OF_VERSION
    ]


@pytest.mark.parametrize("version", tools.VERSIONS)
def test_the_version_of_kubernetes_is_configurable(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TOPOLET_KUBERNETES takes precedence over KUBEBUILDER_ASSETS only for its own programs."""
    monkeypatch.setattr(tools, "built", Path)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.delenv("TOPOLET_KUBERNETES", raising=False)
    (tmp_path / "kubectl").touch()
    assert tools.kubernetes_version() == f"that of {tmp_path}"
    monkeypatch.setenv("TOPOLET_KUBERNETES", version)
    assert tools.kubernetes_version().startswith(f"v{version}.")
    assert f"1.{tools.kubernetes_minor()}" == version
    for program in tools.OF_VERSION:
        assert tools.kubernetes(program) == Path(f"kubernetes-{version}") / program
    assert tools.kubernetes("kubectl") == tmp_path / "kubectl"
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    assert tools.kubernetes("kubectl") == Path("kubernetes") / "kubectl"


def test_an_unknown_version_of_kubernetes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOLET_KUBERNETES", "1.2")
    with pytest.raises(
        pytest.UsageError, match=r"TOPOLET_KUBERNETES=1\.2: not one of 1\.33, 1\.34, 1\.35, 1\.37"
    ):
        conftest.pytest_configure()
