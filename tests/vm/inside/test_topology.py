"""The output of `topolet topology` in the guest is compared with lscpu and the kernel."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.vm.guest import DISTANCES, NODES


@pytest.fixture(scope="module")
def seen() -> Any:
    """The JSON that the command prints."""
    command = [sys.executable, "-m", "agent", "topology", "--output", "json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_cpus_equal_lscpus(seen: Any) -> None:
    command = ["lscpu", "--json", "--extended=CPU,CORE,SOCKET,NODE,CACHE"]
    rows = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["cpus"]

    def lowest(column: str, value: str) -> int:
        return min(int(row["cpu"]) for row in rows if row[column] == value)

    l3 = {row["cpu"]: row["l1d:l1i:l2:l3"].split(":")[3] for row in rows}
    wanted = [
        {
            "id": int(row["cpu"]),
            "core": lowest("core", row["core"]),
            "l3": min(int(cpu) for cpu, cache in l3.items() if cache == l3[row["cpu"]]),
            "socket": int(row["socket"]),
            "node": int(row["node"]),
        }
        for row in rows
    ]
    assert len(wanted) == 16
    assert [{key: cpu[key] for key in wanted[0]} for cpu in seen["cpus"]] == wanted


def test_siblings_sockets_and_nodes_are_as_requested(seen: Any) -> None:
    shape = [(cpu["core"], cpu["socket"], cpu["node"]) for cpu in seen["cpus"]]
    assert shape == [(cpu // 2 * 2, cpu // 8, cpu // 4) for cpu in range(16)]
    assert seen["smt"] is True
    assert tuple(node["cpus"] for node in seen["numa_nodes"]) == NODES
    assert tuple(tuple(node["distances"]) for node in seen["numa_nodes"]) == DISTANCES


def test_memory_equals_the_kernels(seen: Any) -> None:
    for node in seen["numa_nodes"]:
        meminfo = pathlib.Path(f"/sys/devices/system/node/node{node['id']}/meminfo").read_text()
        total = next(line.split()[3] for line in meminfo.splitlines() if "MemTotal" in line)
        assert node["memory_bytes"] == int(total) << 10
