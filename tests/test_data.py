"""The data from other projects: complete, documented, and without identifiers of machines."""

from __future__ import annotations

import bz2
import csv
import importlib.util
import re
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


@pytest.mark.parametrize("folder", ["vectors", "sysfs", "openb", "proposals", "xrt", "gpunames"])
def test_every_folder_documents_its_source_and_licence(folder: str) -> None:
    text = (DATA / folder / "README.md").read_text()
    assert "## Where they come from" in text
    assert re.search("licen[cs]e", text, re.IGNORECASE)


def test_every_set_of_vectors_is_described() -> None:
    text = (DATA / "vectors" / "README.md").read_text()
    sets = {path.name.partition(".")[0] for path in (DATA / "vectors").glob("*.jsonl*")}
    assert {name for name in sets if f"| {name} |" not in text} == set()


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name.partition(".")[0])
def test_snapshots_do_not_contain_removed_identifiers(path: Path) -> None:
    with tarfile.open(path) as once:
        before = [(each.name, each.size, each.uname, each.uid, each.mtime) for each in once]
    again = shorten().shortened(path.read_bytes())
    assert bz2.decompress(again) == bz2.decompress(path.read_bytes())
    assert {member[2:] for member in before} == {("", 0, 0)}


def test_identifiers_of_a_machine_are_removed(tmp_path: Path) -> None:
    kept = {
        "m/proc/cmdline": b"root=UUID=1 isolcpus=2-3 quiet\n",
        "m/proc/hwloc-nofile-info": b"OSName: Linux\nHostName: a.b\nArchitecture: arm\n",
        "m/sys/class/net/eth0/address": b"78:2b:cb:38:ac:21\n",
        "m/sys/devices/system/cpu/online": b"0-3\n",
    }
    dropped = ("m/proc/mounts", "m/proc/self/cgroup", "m/sys/class/dmi/id/board_serial")
    upstream = tmp_path / "upstream.tar.bz2"
    with tarfile.open(upstream, "w:bz2") as archive:
        for number, (name, content) in enumerate({**kept, **dict.fromkeys(dropped, b"")}.items()):
            file = tmp_path / str(number)
            file.write_bytes(content)
            archive.add(file, name)
    made = tmp_path / "made.tar.bz2"
    made.write_bytes(shorten().shortened(upstream.read_bytes()))
    with tarfile.open(made) as archive:
        found = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    assert found == {
        "m/proc/cmdline": b"isolcpus=2-3 quiet\n",
        "m/proc/hwloc-nofile-info": b"OSName: Linux\nArchitecture: arm\n",
        "m/sys/class/net/eth0/address": b"01:23:45:67:89:ab\n",
        "m/sys/devices/system/cpu/online": b"0-3\n",
    }


def test_the_traces_are_complete() -> None:
    with (DATA / "openb" / "openb_node_list_gpu_node.csv").open() as file:
        nodes = list(csv.DictReader(file))
    assert (len(nodes), sum(int(node["gpu"]) for node in nodes)) == (1213, 6212)
    with (DATA / "openb" / "published_allocation.csv").open() as file:
        traces = {row["trace"] for row in csv.DictReader(file)}
    for trace in traces:
        with (DATA / "openb" / f"openb_pod_list_{trace}.csv").open() as file:
            assert len(list(csv.DictReader(file))) > 7800
