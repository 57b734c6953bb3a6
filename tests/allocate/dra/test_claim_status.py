"""The devices in the status of a claim."""

from __future__ import annotations

from msgspec.structs import replace

from agent.allocate.dra.claim_status import devices
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from tests.allocate.dra.node import FOUR_NODES

CLAIM = PreparedClaim(
    "u",
    "ns",
    "a",
    (
        PreparedGroup("cpus", "n1", "numa-node-0", "6-9", share="s1"),
        PreparedGroup("mixed", "n1", "numa-node-2", "16", shared=True),
        PreparedGroup("look", "n1", "numa-node-1"),
    ),
)


def test_each_device_has_its_cpus_and_their_numa_nodes_in_words() -> None:
    first, mixed = devices(CLAIM, FOUR_NODES)
    assert first == {
        "driver": "cpu.topolet.io",
        "pool": "n1",
        "device": "numa-node-0",
        "shareID": "s1",
        "conditions": [{"type": "Ready", "status": "True", "reason": "Prepared", "message": ""}],
        "data": {"cpus": "6-9", "numaNodes": "0-1"},
    }
    assert "shareID" not in mixed
    assert mixed["data"] == {"cpus": "16", "numaNodes": "2", "shared": True}


def test_a_device_is_not_ready_while_one_of_its_cpus_is_offline() -> None:
    topology = replace(FOUR_NODES, cpus=FOUR_NODES.cpus[8:], offline=CpuSet(range(8)))
    (condition,) = devices(CLAIM, topology)[0]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "CPUsOffline")
    assert condition["message"] == "CPUs 6-7 are offline"
