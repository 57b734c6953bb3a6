import msgspec
import pytest

from agent.model.annotations import AnnotationError
from agent.model.cpuset import CpuSet
from agent.model.resources import (
    CPU_SHARED_POOLS,
    NodeConfiguration,
    koordinator_annotations,
    node_labels,
    shared_pools,
)
from agent.model.snapshot import Pool
from tests.builders import machine


def test_node_labels_tell_the_kind_of_machine() -> None:
    topology = machine(2, 2)
    kinds = ("core", "atom", "core", None)
    cpus = tuple(
        msgspec.structs.replace(cpu, core=cpu.id & 2, kind=kind)
        for cpu, kind in zip(topology.cpus, kinds, strict=True)
    )
    hybrid = msgspec.structs.replace(topology, cpus=cpus, smt=True, offline=CpuSet([9]))
    labels = node_labels(hybrid)
    assert {key.partition("/")[2]: value for key, value in labels.items()} == {
        "cpus": "4",
        "cores": "2",
        "sockets": "2",
        "numa-nodes": "2",
        "l3-caches": "0",
        "smt": "true",
        "core-kinds": "atom_core",
    }


@pytest.mark.parametrize("text", [None, "", "null", "[]"])
def test_no_pools(text: str | None) -> None:
    assert shared_pools({} if text is None else {CPU_SHARED_POOLS: text}, CPU_SHARED_POOLS) == ()


def test_pools_are_read_as_they_are_reported_and_as_koordinator_writes_empty_ones() -> None:
    pools = (Pool(0, 0, "1"), Pool(1, 1, "2-3"))
    notes = koordinator_annotations(machine(), pools, (), (), NodeConfiguration())
    assert shared_pools(notes, CPU_SHARED_POOLS) == pools
    text = '[{"socket": 0, "node": 0}]'
    assert shared_pools({CPU_SHARED_POOLS: text}, CPU_SHARED_POOLS) == (Pool(0, 0, ""),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bad", "is not JSON"),
        ("{}", "Expected `array"),
        ('[{"socket": 0}]', "missing required field `node`"),
        ('[{"socket": 0, "node": 0, "cpuset": "x"}]', "CPU list 'x'"),
    ],
)
def test_pools_that_cannot_be_read(text: str, reason: str) -> None:
    with pytest.raises(AnnotationError, match=CPU_SHARED_POOLS) as raised:
        shared_pools({CPU_SHARED_POOLS: text}, CPU_SHARED_POOLS)
    assert reason in raised.value.reason
