"""Renders deploy/chart for tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import tools
from tests.deploy.manifests import DEPLOY, documents

Object = dict[str, Any]

CHART = DEPLOY / "chart"
NAMESPACE = "topolet-system"


def helm(name: str = "helm") -> Path:
    """The program of a set of tests/tools; without it the test is skipped."""
    where = tools.built(name)
    if isinstance(where, str):
        pytest.skip(where)
    return where / "helm"


def attempt(
    home: Path, *words: str, values: Object | None = None, program: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Helm with its own files below `home`, and with values for the chart."""
    given = () if values is None else ("--values=-",)
    return subprocess.run(
        [str(program or helm()), *words, *given],
        input=yaml.safe_dump(values),
        capture_output=True,
        check=False,
        text=True,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )


def rendered(
    home: Path, values: Object, version: str = "1.36.0", program: Path | None = None
) -> list[Object]:
    """The objects that the chart renders for this version of the API server."""
    words = ("template", "topolet", str(CHART), f"--namespace={NAMESPACE}")
    version_flag = f"--kube-version={version}"
    ended = attempt(home, *words, version_flag, values=values, program=program)
    assert ended.returncode == 0, ended.stderr
    return [each for each in documents(ended.stdout) if each]


def refused(home: Path, values: Object) -> str:
    """The error of Helm for invalid values."""
    ended = attempt(home, "template", "topolet", str(CHART), values=values)
    assert ended.returncode
    return ended.stderr


def for_any_version(folder: Path) -> str:
    """A copy of the chart without `kubeVersion`: a kube-apiserver that is built from its module
    reports no version."""
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    file = copy / "Chart.yaml"
    file.write_text(re.sub(r"^kubeVersion:.*\n", "", file.read_text(), flags=re.MULTILINE))
    return str(copy)
