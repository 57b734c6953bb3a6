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
def test_snapshots_do_not_contain_removed_identifiers(path: Path) -> None:
    with tarfile.open(path) as once:
        before = [(each.name, each.size, each.uname, each.uid, each.mtime) for each in once]
    again = shorten().shortened(path.read_bytes())
    assert bz2.decompress(again) == bz2.decompress(path.read_bytes())
    assert {member[2:] for member in before} == {("", 0, 0)}
