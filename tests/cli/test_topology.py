"""The command `topolet topology`, run as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import NOTHING, Owner, PodWanted, Snapshot, Wanted, encode
from tests.fixtures.trees import CPU, machine, offline, write

MAIN = "import sys; from agent.__main__ import main; sys.exit(main())"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "topology", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def test_json(tmp_path: Path) -> None:
    files = offline(machine(2, 1, 1, 1, 2, hugepages=4), CpuSet((3,))) | {f"{CPU}/isolated": "1"}
    done = run("--root", write(str(tmp_path), files), "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")

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

    assert json.loads(done.stdout) == {
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


def test_unknown_is_null(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu0/topology/core_id": "0", "proc/meminfo": "MemTotal: 4 kB"}
    done = run("--root", write(str(tmp_path), files), "--output", "json")
    found = json.loads(done.stdout)
    assert found["cpus"] == [
        {"id": 0, "core": 0, "l3": None, "die": None, "socket": 0, "node": 0, "kind": None}
    ]
    assert found["caches"] == found["cpu_models"] == []
    (node,) = found["numa_nodes"]
    assert (node["cpus"], node["memory_bytes"], node["distances"]) == ("0", 4096, [])
    assert node["memory_tier"] is node["read_mib_per_second"] is None


def test_same_input_same_output(snapshot: Callable[[str], str]) -> None:
    root = snapshot("fakeheteromemtiers")
    first, second = (run("--root", root, "--output", "json").stdout for _ in range(2))
    assert first == second
    assert [node["id"] for node in json.loads(first)["numa_nodes"]] == [0, 1, 2, 4, 6, 8, 9]


def test_text_is_plain_in_a_pipe(tmp_path: Path) -> None:
    done = run("--root", write(str(tmp_path), machine()))
    assert done.returncode == 0
    assert done.stdout.startswith(
        "2 CPUs · 2 cores · 1 socket · 1 NUMA node · 8 GiB\n2 L1d of 512 KiB, 2 L1i of "
    )
    assert "\x1b" not in done.stdout


def test_terminal_without_box_characters(tmp_path: Path) -> None:
    done = run("--root", write(str(tmp_path), machine()), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "+- Socket 0 - NUMA node 0 - 8 GiB - L3 -+\n| [0] [1]" in done.stdout


@pytest.mark.parametrize("output", ["text", "json"])
def test_root_that_does_not_exist(tmp_path: Path, output: str) -> None:
    done = run("--root", str(tmp_path / "none"), "--output", output)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"topolet topology: --root {tmp_path}/none: no such folder\n"


def test_json_with_owners(tmp_path: Path) -> None:
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
    arguments = ("--root", root, "--state-dir", str(tmp_path), "--output", "json")
    done = run(*arguments, "--owners")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    decisions = found.pop("decisions")
    assert found == json.loads(run(*arguments).stdout)
    assert decisions["pools"]["ls"] == [{"socket": 0, "node": 0, "cpus": "1"}]
    assert decisions["owners"] == [
        {
            "uid": "u1",
            "pod": "default/db",
            "qos": "LSR",
            "cpus": "0",
            "offline": "",
            "kubelet": False,
        }
    ]
    assert [(pod["uid"], pod["cpus"], pod["refused"]) for pod in decisions["pods"]] == [
        ("u1", "0", None),
        ("u2", None, "taken"),
    ]


def test_json_with_owners_without_a_snapshot(tmp_path: Path) -> None:
    root = write(str(tmp_path / "root"), machine())
    done = run("--root", root, "--state-dir", str(tmp_path), "--output", "json", "--owners")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("topolet: no decisions to show: ")
    assert "snapshot.json" in done.stderr


def test_root_without_a_machine(tmp_path: Path) -> None:
    done = run("--root", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"topolet: {tmp_path}/{CPU}: no online CPU\n"


def test_an_invalid_cpu_list_is_reported(tmp_path: Path) -> None:
    done = run("--root", write(str(tmp_path), machine() | {f"{CPU}/online": "0-"}))
    assert done.returncode == 1
    assert done.stderr.startswith(f"topolet: {tmp_path}/{CPU}/online: CPU list '0-'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("output", ["text", "json"])
def test_reader_that_closes_the_pipe(tmp_path: Path, output: str) -> None:
    write(tmp_path, machine())
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        done = written_to(pipe, tmp_path, output)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("output", ["text", "json"])
def test_full_disk(tmp_path: Path, output: str) -> None:
    write(tmp_path, machine())
    with open("/dev/full", "wb") as full:
        done = written_to(full, tmp_path, output)
    assert done.returncode == 1
    assert done.stderr == "topolet topology: standard output: No space left on device\n"


def written_to(file: IO[bytes], root: Path, output: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", "topology", "--root", str(root), "--output", output],
        stdout=file,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
