import pytest

from agent.allocate.shares import host_application_cpus
from agent.model.snapshot import Pool

POOLS = (Pool(0, 0, "0-1"), Pool(0, 1, ""), Pool(1, 2, "4"))


def test_host_application_of_class_ls_runs_on_the_ls_pool() -> None:
    assert str(host_application_cpus("LS", POOLS)) == "0-1,4"


@pytest.mark.parametrize("qos", ["", "BE", "LSR", "SYSTEM", "bogus"])
def test_host_application_of_another_class_is_refused_with_the_class(qos: str) -> None:
    with pytest.raises(ValueError, match=f"class '{qos}'"):
        host_application_cpus(qos, POOLS)
