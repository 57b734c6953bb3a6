from __future__ import annotations

from pathlib import Path

import pytest

from agent.kubelet.configuration import ConfigurationError
from agent.node import beside


def process(root: Path, pid: int, *words: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
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
