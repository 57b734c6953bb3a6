"""What the driver reads of a ResourceClaim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.model.cpu.policies import BindPolicy
from agent.model.dra.cpu_parameters import API_VERSION, KIND, CpuParameters, CpuSpread
from agent.model.dra.names import DRIVER
from agent.model.dra.resource_claim import (
    MAX_CONSUMERS,
    ClaimConsumer,
    ClaimedGroup,
    CpuResourceClaim,
    decode,
)
from agent.model.objects import ObjectError

POD_CLAIM = {"resource.kubernetes.io/pod-claim-name": "cpus"}
METADATA = {"name": "c", "namespace": "n", "uid": "u-1", "annotations": POD_CLAIM}


def claim(
    results: list[dict[str, Any]] | None = None,
    config: list[dict[str, Any]] | None = None,
    **status: Any,
) -> bytes:
    allocation = {"devices": {"results": results or [], "config": config or []}}
    return json.dumps(
        {"metadata": METADATA, "status": {"allocation": allocation, **status}}
    ).encode()


def outcome(request: str, **fields: Any) -> dict[str, Any]:
    return {"request": request, "driver": DRIVER, "pool": "node", "device": "numa-node-0", **fields}


def config(
    *requests: str, source: str = "FromClaim", driver: str = DRIVER, **parameters: Any
) -> dict[str, Any]:
    own = {"apiVersion": API_VERSION, "kind": KIND, **parameters}
    opaque = {"driver": driver, "parameters": own}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def test_the_parts_of_this_driver() -> None:
    amounts = {f"{DRIVER}/cpu": "3500m", "memory": "1Gi", f"{DRIVER}/hugepages_2Mi": "4Mi"}
    text = claim(
        [
            outcome("a/first", consumedCapacity=amounts, shareID="s"),
            outcome("gpu", driver="gpu.example.com"),
            outcome("b", adminAccess=True),
        ],
        [
            config(source="FromClass", cpuBindPolicy="SpreadByPCPUs", spread="Evenly"),
            config("a", spread="Packed"),
            {"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": 1}},
        ],
        reservedFor=[
            {"resource": "pods", "name": "p", "uid": "u"},
            {"apiGroup": "x", "resource": "jobs", "name": "j", "uid": "v"},
        ],
    )
    spread = BindPolicy.SPREAD_BY_PCPUS
    assert decode(text) == CpuResourceClaim(
        "u-1",
        "n",
        "c",
        True,
        (
            ClaimedGroup(
                "a/first",
                "node",
                "numa-node-0",
                3500,
                {"memory": 1 << 30, "hugepages_2Mi": 4 << 20},
                "s",
                parameters=CpuParameters(spread, spread=CpuSpread.PACKED),
            ),
            ClaimedGroup(
                "b",
                "node",
                "numa-node-0",
                admin=True,
                parameters=CpuParameters(spread, spread=CpuSpread.EVENLY),
            ),
        ),
        (ClaimConsumer("p", "u"),),
        "cpus",
    )


def test_a_claim_without_an_allocation() -> None:
    assert not decode(json.dumps({"metadata": METADATA}).encode()).allocated


def test_an_external_allocator_writes_the_schema_of_dra_driver_cpu() -> None:
    peer = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}
    for driver in (DRIVER, "dra.cpu"):
        entry = {"source": "FromClaim", "requests": ["a"]}
        entry["opaque"] = {"driver": driver, "parameters": peer}  # type: ignore[assignment]
        (group,) = decode(claim([outcome("a")], [entry])).groups
        assert group.parameters.cpus == "2-5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            claim([outcome("a", consumedCapacity={"cpu": "x"})]),
            "ResourceClaim n/c: status.allocation.devices.results: consumedCapacity cpu: 'x'",
        ),
        *(
            (
                claim([outcome("a", consumedCapacity={name: "-3"})]),
                f"status.allocation.devices.results: consumedCapacity {name}: -3 is below 0",
            )
            for name in ("cpu", "memory")
        ),
        (
            claim([outcome("a")], [config("a"), config("a", cpus="x")]),
            "ResourceClaim n/c: status.allocation.devices.config[1].opaque.parameters: cpus: ",
        ),
        (
            claim([outcome("a")], [config("a", source="FromClass", cpus="1")]),
            "config[0]: names CPUs, and is not of the claim, for one request",
        ),
        (
            claim([outcome("a"), outcome("b")], [config("a", "b", cpus="1")]),
            "config[0]: names CPUs, and is not of the claim, for one request",
        ),
        (claim([outcome("a")] * 33), "status.allocation.devices.results: has more than 32"),
        (
            claim(reservedFor=[{"resource": "pods"}] * (MAX_CONSUMERS + 1)),
            "status.reservedFor: has more than 256 entries",
        ),
        (b'{"metadata": {"name": "c"}}', "metadata.uid: is not a uid"),
        (b'{"metadata": {"name": "c", "uid": "../a"}}', "metadata.uid: is not a uid"),
        (claim([outcome("../a")]), "request: '../a' is no name"),
        (b'{"metadata": {"name": 1}}', "metadata.name"),
        (b"{", "is not JSON"),
    ],
)
def test_faults_name_object_and_field(text: bytes, message: str) -> None:
    with pytest.raises(ObjectError) as raised:
        decode(text)
    assert message in str(raised.value)


def test_parameters_of_a_claim_on_other_devices_are_not_read() -> None:
    """Another driver's claim may have an entry of this driver that nobody uses."""
    other = outcome("a", driver="gpu.example.com")
    assert decode(claim([other], [config("a", cpus="x")])).groups == ()


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "x" * 64])
def test_an_annotation_that_is_no_name_of_a_claim_in_a_pod_is_left_out(name: str) -> None:
    """The claim's author writes it, and a folder in containers has it as its name."""
    of_author = json.loads(claim())
    of_author["metadata"]["annotations"] = dict.fromkeys(POD_CLAIM, name)
    assert decode(json.dumps(of_author).encode()).pod_claim == ""
