import pytest

from agent.allocate.kubelet.cpu_assignment import NotEnoughCpusError
from agent.allocate.layout import of
from agent.allocate.reserved_cpus import cpus_for, reserved_cpus
from agent.conformance.machines import cpus
from agent.model.nrt.node_annotations import RESERVATION, node_reservation
from agent.model.pod.annotations import AnnotationError

LAYOUT = of(cpus([1, 1, 4, 2], "interleaved"))


@pytest.mark.parametrize(
    ("cpu_milli", "chosen"), [(0, ""), (100, "0"), (1000, "0"), (1001, "0,4"), (3000, "0-1,4")]
)
def test_an_amount_takes_whole_cpus_core_by_core(cpu_milli: int, chosen: str) -> None:
    assert str(cpus_for(LAYOUT, cpu_milli)) == chosen


def test_an_amount_beyond_the_layout() -> None:
    with pytest.raises(NotEnoughCpusError):
        cpus_for(LAYOUT, 8001)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("{}", ""),
        ('{"resources": {"memory": "1Gi"}}', ""),
        ('{"resources": {"cpu": "1500m"}}', "0,4"),
        ('{"reservedCPUs": "2,6"}', "2,6"),
        ('{"reservedCPUs": "2", "resources": {"cpu": "3"}}', "2"),
    ],
)
def test_listed_cpus_override_an_amount(text: str, chosen: str) -> None:
    assert str(reserved_cpus(LAYOUT, node_reservation({RESERVATION: text}))) == chosen


def test_an_amount_beyond_the_machine_is_refused_with_its_annotation() -> None:
    reservation = node_reservation({RESERVATION: '{"resources": {"cpu": 9}}'})
    with pytest.raises(AnnotationError, match=r"reservation: resources\.cpu: 9 CPUs were req"):
        reserved_cpus(LAYOUT, reservation)
