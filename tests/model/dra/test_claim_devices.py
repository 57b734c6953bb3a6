"""What people read of the status of a ResourceClaim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.allocate.dra import claim_status
from agent.model.dra.claim_devices import ClaimDevice, ClaimStatus, decode
from agent.model.dra.names import DRIVER
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from agent.model.dra.resource_claim import MAX_RESULTS
from agent.model.objects import ObjectError
from tests.allocate.dra.node import FOUR_NODES

METADATA = {"name": "c", "namespace": "ns", "uid": "u"}


def status_of(**status: Any) -> ClaimStatus:
    return decode(json.dumps({"metadata": METADATA, "status": status}).encode())


def allocated(*devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "devices": {"results": [{"request": "a", "driver": DRIVER, **each} for each in devices]}
    }


def test_the_cpus_that_the_agent_wrote_are_those_of_the_allocated_devices() -> None:
    """A share of a device is one of several."""
    groups = tuple(
        PreparedGroup("a", "n1", "numa-node-0", cpus, share) for cpus, share in (("0-1", "s1"),)
    )
    claim = PreparedClaim("u", "ns", "c", groups)
    written = [
        {**device, "conditions": [{**device["conditions"][0], "lastTransitionTime": "T"}]}
        for device in claim_status.devices(claim, FOUR_NODES)
    ]
    names = {"pool": "n1", "device": "numa-node-0"}
    of_claim = status_of(
        allocation=allocated(
            {**names, "shareID": "s1"},
            {**names, "shareID": "s2"},
            {**names, "adminAccess": True},
            {**names, "driver": "gpu.example.com"},
        ),
        devices=written,
    )
    assert of_claim == ClaimStatus(
        "ns/c",
        True,
        (
            ClaimDevice("n1", "numa-node-0", cpus="0-1", since="T"),
            ClaimDevice("n1", "numa-node-0"),
            ClaimDevice("n1", "numa-node-0", admin=True),
        ),
    )


def test_a_claim_without_an_allocation() -> None:
    assert status_of() == ClaimStatus("ns/c", False)


def test_offline_cpus_are_a_trouble() -> None:
    names = {"driver": DRIVER, "pool": "n1", "device": "numa-node-0"}
    condition = {"type": "Ready", "status": "False", "message": "CPUs 0 are offline"}
    reported = {**names, "data": {"cpus": "0-1"}, "conditions": [condition]}
    (device,) = status_of(allocation=allocated(names), devices=[reported]).devices
    assert (device.cpus, device.trouble, device.since) == ("0-1", "CPUs 0 are offline", "")


def test_a_status_beyond_the_limits_of_the_api_is_refused() -> None:
    names = {"pool": "n1", "device": "numa-node-0"}
    with pytest.raises(ObjectError, match="ns/c: status: has more than 32 devices"):
        status_of(allocation=allocated(*[names] * (MAX_RESULTS + 1)))
