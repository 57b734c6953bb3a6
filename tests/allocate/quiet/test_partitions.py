"""Which groups of owners become partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.quiet.partitions import OwnerGroups, isolation
from agent.model.cpu.cpuset import CpuSet, union


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def owner(
    name: str, containers: dict[str, str], others: tuple[str | None, ...] = ()
) -> OwnerGroups:
    of_group = {f"/kubepods/pod{name}/{key}": cpus(text) for key, text in containers.items()}
    beside = tuple(None if text is None else cpus(text) for text in others)
    return OwnerGroups(name, f"/kubepods/pod{name}", of_group, union(of_group.values()), beside)


def test_the_pod_is_the_partition_if_all_in_it_runs_on_its_cpus() -> None:
    isolated = isolation([owner("a", {"main": "2-3", "log": "2-3"}, ("2-3",))])
    assert isolated.groups == {"/kubepods/poda": cpus("2-3")}
    assert not isolated.refusals


def test_containers_are_partitions_if_the_pause_container_or_a_sidecar_runs_elsewhere() -> None:
    isolated = isolation([owner("a", {"one": "2", "two": "3"}, ("0-1", "0-1"))])
    assert isolated.groups == {"/kubepods/poda/one": cpus("2"), "/kubepods/poda/two": cpus("3")}


def test_containers_are_partitions_beside_one_that_inherits() -> None:
    isolated = isolation([owner("a", {"one": "2-3"}, (None,))])
    assert isolated.groups == {"/kubepods/poda/one": cpus("2-3")}


def test_containers_that_share_cpus_beside_a_sidecar_are_no_partitions() -> None:
    isolated = isolation([owner("a", {"one": "2-3", "two": "3"}, ("0-1",))])
    assert not isolated.groups
    assert isolated.refusals == (
        "a: its containers share CPUs 3, and something in the pod runs elsewhere",
    )


def test_pods_with_the_same_cpus_are_no_partitions() -> None:
    isolated = isolation([owner("a", {"main": "2-3"}), owner("b", {"main": "3"})])
    assert not isolated.groups
    assert isolated.refusals == (
        "a: another pod has the CPUs 3 too",
        "b: another pod has the CPUs 3 too",
    )


SETS = st.frozensets(st.integers(0, 7), min_size=1, max_size=4).map(CpuSet)
CONTAINERS = st.dictionaries(st.sampled_from(["one", "two", "three"]), SETS, min_size=1)


@given(st.lists(st.tuples(CONTAINERS, st.lists(st.none() | SETS, max_size=2)), max_size=4))
def test_partitions_are_disjoint_and_contain_no_other_cpus_than_own(
    pods: list[tuple[dict[str, CpuSet], list[CpuSet | None]]],
) -> None:
    owners = [
        owner(
            str(number),
            {name: str(of_name) for name, of_name in containers.items()},
            tuple(None if each is None else str(each) for each in others),
        )
        for number, (containers, others) in enumerate(pods)
    ]
    isolated = isolation(owners)
    taken = CpuSet()
    for of_group in isolated.groups.values():
        assert not taken & of_group
        taken |= of_group
    refused = {text.partition(":")[0] for text in isolated.refusals}
    for each in owners:
        of_owner = {
            group: of_group
            for group, of_group in isolated.groups.items()
            if f"{group}/".startswith(f"{each.pod}/")
        }
        assert (each.title in refused) == (not of_owner)
        if each.pod in of_owner:
            assert all(other is not None and other <= each.own for other in each.others)
        else:
            assert of_owner.items() <= each.containers.items()
            beside = union(other for other in each.others if other is not None)
            assert not beside & union(of_owner.values())
        assert union(of_owner.values()) in (each.own, CpuSet())
