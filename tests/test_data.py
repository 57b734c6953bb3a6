"""The data from other projects has no identifiers of machines."""

from __future__ import annotations

import bz2
import importlib.util
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import DATA

SNAPSHOTS = sorted((DATA / "sysfs").glob("*.tar.bz2"))


def shorten() -> ModuleType:
    specification = importlib.util.spec_from_file_location("shorten", DATA / "sysfs/shorten.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name.partition(".")[0])
def test_snapshots_do_not_contain_removed_identifiers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tarballs are compared as they are before their compression, which takes seconds."""
    monkeypatch.setattr(bz2, "compress", bytes)
    with tarfile.open(path) as once:
        before = [(each.name, each.size, each.uname, each.uid, each.mtime) for each in once]
    compressed = path.read_bytes()
    assert shorten().shortened(compressed) == bz2.decompress(compressed)
    assert {member[2:] for member in before} == {("", 0, 0)}
