"""The kubelet's configuration of docs/kubelet.md, given to a real kubelet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.apiserver.commands import program_or_skip

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kubelet.md"
INVALID = "failed to validate kubelet configuration"
HERE = "failCgroupV1: false\nruntimeRequestTimeout: 1s\ncontainerRuntimeEndpoint: unix:///none\n"
"""No runtime runs: a kubelet with a valid configuration ends because of that."""


@pytest.mark.parametrize(
    ("more", "valid"),
    [
        ("", True),
        ("systemReservedCgroup: /system.slice\n", False),
        ("kubeReservedCgroup: /kube.slice\n", False),
    ],
    ids=["as documented", "with the system's cgroup", "with the kubelet's cgroup"],
)
def test_the_documented_reservation_is_valid_and_excludes_the_names_of_cgroups(
    more: str, valid: bool, tmp_path: Path
) -> None:
    kubelet = program_or_skip("kubelet")
    (documented,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "config.yaml"
    file.write_text(documented + HERE + more)
    ended = subprocess.run(
        [str(kubelet), f"--config={file}", f"--root-dir={tmp_path}"],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert (INVALID not in ended.stderr) is valid, ended.stderr
    assert ("can't use reservedSystemCPUs" not in ended.stderr) is valid
