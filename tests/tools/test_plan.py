"""The plan that `make test` prints before it starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import ROOT
from tests.tools import ONLY_LONG


@pytest.mark.parametrize("flags", [(), ("-a",)], ids=["test", "test-all"])
def test_everything_missing_on_an_empty_machine_is_listed(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The machine has no apt-get, so nothing is installed. Only test-all builds all sets."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "sed", "grep", "cat", "uname", "id"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    done = subprocess.run(
        [ROOT / "tests" / "plan", *flags, sys.executable],
        env={"PATH": str(programs), "HOME": str(tmp_path), "TOPOLET_CACHE": str(tmp_path / "no")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    installed = " ".join(line for line in lines if line.startswith("install:")).split()
    expected = {"containerd", "gcc", "hwloc-nox", "openssl", "buildah", "chromium-headless-shell"}
    assert expected <= set(installed)
    assert {"fetch: docker-registry", "fetch: prometheus", "fetch: axe-core"} <= set(lines)
    assert "fetch: linux-image-amd64 of bookworm trixie" in lines
    (built,) = [line for line in lines if line.startswith("build:")]
    assert " kubernetes-v" in built
    for name in ONLY_LONG:
        assert (f" {name}-v" in built) == bool(flags)
    for name in ("conmon", "skopeo"):
        assert (f"fetch: {name}" in lines) == bool(flags)
    assert any(line.startswith("start:") for line in lines)
    assert not (tmp_path / "no").exists()
