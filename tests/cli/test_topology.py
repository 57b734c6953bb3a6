"""The command `topolet topology`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import NOTHING, Owner, PodWanted, Snapshot, Wanted, encode
from tests.cli.conftest import Topolet
from tests.fixtures.trees import CPU, machine, offline, write


def test_json(tmp_path: Path, topolet: Topolet) -> None:
    files = offline(machine(2, 1, 1, 1, 2, hugepages=4), CpuSet((3,))) | {f"{CPU}/isolated": "1"}

    def node(number: int, cpu_list: str, distances: list[int]) -> dict[str, Any]:
        pools = [{"size_bytes": 2 << 20, "total": 4, "free": 4}]
        return {
            "id": number,
            "cpus": cpu_list,
            "memory_bytes": 8 << 30,
            "memory_kind": "dram",
            "memory_tier": None,
            "read_mib_per_second": None,
            "read_latency_ns": None,
            "side_cache_bytes": None,
            "distances": distances,
            "hugepages": pools,
        }

    def cpu(number: int, core: int, socket: int) -> dict[str, Any]:
        return {
            "id": number,
            "core": core,
            "l3": core,
            "die": 0,
            "socket": socket,
            "node": socket,
            "kind": None,
        }

    def cache(level: int, kind: str, size_kib: int) -> dict[str, Any]:
        shared = ["0,2", "1"]
        return {"level": level, "kind": kind, "size_bytes": size_kib << 10, "shared_by": shared}

    root = write(str(tmp_path), files)
    assert topolet("topology", "--root", root, "--output", "json").json == {
        "schema_version": 1,
        "cpus": [cpu(0, 0, 0), cpu(1, 1, 1), cpu(2, 0, 0)],
        "cpu_models": [],
        "caches": [
            cache(1, "data", 512),
            cache(1, "instruction", 512),
            cache(2, "unified", 512),
            cache(3, "unified", 32768),
        ],
        "numa_nodes": [node(0, "0,2", [10, 21]), node(1, "1", [21, 10])],
        "online": "0-2",
        "offline": "3",
        "isolated": "1",
        "smt": True,
        "smt_control": "on",
        "devices": [],
    }


def test_unknown_is_null(tmp_path: Path, topolet: Topolet) -> None:
    files = {f"{CPU}/cpu0/topology/core_id": "0", "proc/meminfo": "MemTotal: 4 kB"}
    root = write(str(tmp_path), files)
    found = topolet("topology", "--root", root, "--output", "json").json
    assert found["cpus"] == [
        {"id": 0, "core": 0, "l3": None, "die": None, "socket": 0, "node": 0, "kind": None}
    ]
    assert found["caches"] == found["cpu_models"] == []
    (node,) = found["numa_nodes"]
    assert (node["cpus"], node["memory_bytes"], node["distances"]) == ("0", 4096, [])
    assert node["memory_tier"] is node["read_mib_per_second"] is None


def test_text_is_plain_in_a_pipe(
    tmp_path: Path, topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    picture = topolet("topology", "--root", write(str(tmp_path), machine())).out
    assert picture.startswith(
        "2 CPUs · 2 cores · 1 socket · 1 NUMA node · 8 GiB\n2 L1d of 512 KiB, 2 L1i of "
    )
    assert "\x1b" not in picture


@pytest.mark.parametrize("output", ["text", "json"])
def test_root_that_does_not_exist(tmp_path: Path, output: str, topolet: Topolet) -> None:
    printed = topolet("topology", "--root", str(tmp_path / "none"), "--output", output, code=2)
    assert printed == ("", f"topolet topology: --root {tmp_path}/none: no such folder\n")


def test_json_with_owners(tmp_path: Path, topolet: Topolet) -> None:
    snapshot = Snapshot(
        generation=1,
        listed_at=0,
        boot_id="boot",
        kubelet_static=False,
        pools={"ls": (Pool(0, 0, "1"),), "be": (Pool(0, 0, "1"),)},
        owners=(Owner("u1", "default/db", QoS.LSR, "0"),),
        pods={
            "u1": PodWanted(
                "default/db", QoS.LSR, Wanted(LinuxResources("0", quota=NO_QUOTA), exclusive=True)
            ),
            "u2": PodWanted("default/web", QoS.LS, NOTHING, refused="taken"),
        },
        containers={},
    )
    (tmp_path / "snapshot.json").write_bytes(encode(snapshot))
    root = write(str(tmp_path / "root"), machine())
    words = ("topology", "--root", root, "--state-dir", str(tmp_path), "--output", "json")
    found = topolet(*words, "--owners").json
    decisions = found.pop("decisions")
    assert found == topolet(*words).json
    assert decisions["pools"]["ls"] == [{"socket": 0, "node": 0, "cpus": "1"}]
    assert decisions["owners"] == [
        {
            "uid": "u1",
            "pod": "default/db",
            "qos": "LSR",
            "cpus": "0",
            "offline": "",
            "kubelet": False,
            "claims": False,
        }
    ]
    assert [(pod["uid"], pod["cpus"], pod["refused"]) for pod in decisions["pods"]] == [
        ("u1", "0", None),
        ("u2", None, "taken"),
    ]


def test_json_with_owners_without_a_snapshot(tmp_path: Path, topolet: Topolet) -> None:
    root = write(str(tmp_path / "root"), machine())
    words = ("topology", "--root", root, "--state-dir", str(tmp_path), "--output", "json")
    printed = topolet(*words, "--owners", code=1)
    assert printed.out == ""
    assert printed.err.startswith("topolet: no decisions to show: ")
    assert "snapshot.json" in printed.err


def test_root_without_a_machine(tmp_path: Path, topolet: Topolet) -> None:
    printed = topolet("topology", "--root", str(tmp_path), code=1)
    assert printed == ("", f"topolet: {tmp_path}/{CPU}: no online CPU\n")


def test_an_invalid_cpu_list_is_reported(tmp_path: Path, topolet: Topolet) -> None:
    root = write(str(tmp_path), machine() | {f"{CPU}/online": "0-"})
    error = topolet("topology", "--root", root, code=1).err
    assert error.startswith(f"topolet: {tmp_path}/{CPU}/online: CPU list '0-'")
    assert "Traceback" not in error


@pytest.mark.parametrize("output", ["text", "json"])
def test_full_disk(tmp_path: Path, output: str) -> None:
    root = write(str(tmp_path), machine())
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agent", "topology", "--root", root, "--output", output],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "topolet topology: standard output: No space left on device\n"
