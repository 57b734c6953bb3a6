"""An offer ends, whatever the node reports. Reports of a stolen agent are tried in larger numbers,
and timed, by `python -m tests.parsers --count 100000 reports`."""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import OFFER_STEPS
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod import apiobjects
from agent.model.pod_request import request_of
from agent.scheduler.state import records
from agent.scheduler.state.records import Unreadable
from tests.fixtures import fleet
from tests.fixtures.fleet import Model
from tests.parsers import of_reports

MAX_LINES: Final = 2_000_000
"""Of Python that one offer executes: some 50 ms."""
REPORTS: Final = 25


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Readers log the faults of objects."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _lines(call: Callable[[], object]) -> int:
    """The number of lines that a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def _zone(node: int, amounts: dict[str, str]) -> dict[str, Any]:
    resources = [
        {"name": name, "capacity": each, "allocatable": each, "available": each}
        for name, each in amounts.items()
    ]
    return {"name": f"node-{node}", "type": "Node", "resources": resources}


def _topology(zones: list[dict[str, Any]]) -> bytes:
    body = {"metadata": {"name": "n"}, "topologyPolicies": ["best-effort"], "zones": zones}
    return json.dumps(body).encode()


def test_an_offer_for_any_accepted_report_executes_a_bounded_number_of_lines() -> None:
    rng = random.Random()
    for number in range(REPORTS):
        rng.seed(number)
        allocator = of_reports.read(of_reports.report(rng))
        for request in of_reports.REQUESTS:
            lines = _lines(lambda: allocator.offer(request))  # noqa: B023
            assert lines <= MAX_LINES, f"report {number}, {request.title}: {lines} lines"


def test_a_report_of_more_numa_nodes_than_machines_have_is_unreadable() -> None:
    with_cpus = [_zone(node, {"cpu": "1", "memory": "1Gi"}) for node in range(64)]
    of_memory = [_zone(node, {"memory": "1Gi"}) for node in range(64)]
    for zones, reason in (
        (with_cpus[:33], "zones: 33 NUMA nodes with CPUs are more than 32"),
        ([*of_memory, _zone(64, {"memory": "1Gi"})], "zones: 65 NUMA nodes are more than 64"),
    ):
        found = records.topology(_topology(zones))
        assert isinstance(found, Unreadable)
        assert found.text == f"NodeResourceTopology n: {reason}"
    assert isinstance(records.topology(_topology(with_cpus[:32] + of_memory[32:])), NodeTopology)


def test_an_offer_that_takes_too_many_steps_names_the_reports_of_the_node() -> None:
    zones = [
        _zone(node, {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "1Gi"}) for node in range(64)
    ]
    for node, zone in enumerate(zones):
        zone["resources"] = zone["resources"][node % 2 :: 1 + node % 3]
    devices = {"metadata": {"name": "n"}, "spec": {"devices": []}}
    devices["spec"]["devices"] = [
        of_reports.device(random.Random(1), "gpu", minor, 64) for minor in range(1000)
    ]
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "64"}}}
    allocator = of_reports.read(
        (
            json.dumps(node).encode(),
            _topology(zones),
            json.dumps(devices).encode(),
            AllocatorRules(),
        )
    )
    amounts = {"cpu": "2", "memory": "2Gi", "koordinator.sh/gpu": "1600"}
    pod = fleet.pod("p", amounts, limits=amounts)
    found = allocator.offer(request_of(apiobjects.from_object(pod)))
    assert isinstance(found, Refusal)
    (why,) = found.reasons
    assert why.reason is Reason.TOO_COMPLEX
    assert found.unresolvable
    assert why.text == (
        f"NodeResourceTopology and Device n: too complex for an offer in {OFFER_STEPS} steps"
    )


def test_eight_gpus_of_a_machine_with_32_numa_nodes_take_fewer_steps_than_an_offer_may() -> None:
    model = Model("n", (2, 16, 8, 2), 1 << 40, 16, "best-effort", switch_gpus=2)
    machine = fleet.Machine(model)
    reports = machine.node("n"), machine.topology("n"), machine.devices("n")
    node, topology, devices = (json.dumps(each).encode() for each in reports)
    allocator = of_reports.read((node, topology, devices, AllocatorRules()))
    amounts = {"cpu": "16", "memory": "8Gi", fleet.GPU: "800", fleet.RDMA: "1"}
    notes = {
        fleet.NUMA_SPEC: '{"numaTopologyPolicy":"BestEffort"}',
        "scheduling.koordinator.sh/device-joint-allocate": (
            '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'
        ),
    }
    pod = fleet.pod("p", amounts, limits=amounts, labels={fleet.QOS: "LSR"}, annotations=notes)
    assert isinstance(allocator.offer(request_of(apiobjects.from_object(pod))), NodeOffer)


def test_cores_of_thousands_of_forms_are_not_counted_on_each_numa_node() -> None:
    detail = [
        {"id": cpu, "core": cpu * cpu % 2039, "socket": 0, "node": cpu % 32} for cpu in range(4096)
    ]
    zones = [_zone(node, {"cpu": "128", "memory": "1Gi"}) for node in range(32)]
    topology = json.loads(_topology(zones))
    notes = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}
    topology["metadata"]["annotations"] = notes
    labels = {"node.koordinator.sh/cpu-bind-policy": "SpreadByPCPUs"}
    node = {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {"cpu": "4096"}}}
    bodies = [json.dumps(each).encode() for each in (node, topology)]
    devices = b'{"metadata":{"name":"n"},"spec":{"devices":[]}}'
    allocator = of_reports.read((*bodies, devices, AllocatorRules()))
    pod = fleet.pod("p", {"cpu": "4"}, limits={"cpu": "4"}, labels={fleet.QOS: "LSR"})
    request = request_of(apiobjects.from_object(pod))
    assert _lines(lambda: allocator.offer(request)) <= MAX_LINES // 20
    found = allocator.offer(request)
    assert isinstance(found, Refusal)
    assert [each.reason for each in found.reasons] == [Reason.TOO_COMPLEX]
