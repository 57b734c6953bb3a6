from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet.cpu_manager_state import CpuManagerState, decode, encode
from agent.kubelet.statefile import Checked
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.node.takeover import TakeoverError, with_chosen


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


STATE = CpuManagerState(
    policy="static",
    default=cpus("0,4-7"),
    entries={"u": {"a": cpus("1-2")}, "v": {"a": cpus("3")}},
    version=2,
    checked=Checked.VERIFIED,
)


def test_chosen_cpus_replace_the_kubelets_own() -> None:
    after = with_chosen(STATE, {"u": {"a": cpus("4-5")}, "w": {"b": cpus("1")}})
    assert after.entries == {
        "u": {"a": cpus("4-5")},
        "v": {"a": cpus("3")},
        "w": {"b": cpus("1")},
    }
    assert after.default == cpus("0,2,6-7")
    assert decode(encode(after)) == after
    assert STATE.entries["u"] == {"a": cpus("1-2")}


def test_two_pods_may_swap_cpus() -> None:
    after = with_chosen(STATE, {"u": {"a": cpus("3")}, "v": {"a": cpus("1-2")}})
    assert (after.default, after.by_uid) == (
        STATE.default,
        {"u": cpus("3"), "v": cpus("1-2")},
    )


def test_containers_of_one_pod_may_share() -> None:
    after = with_chosen(STATE, {"u": {"a": cpus("4-5"), "b": cpus("4-5")}})
    assert after.default == cpus("0-2,6-7")


def test_nothing_chosen_changes_nothing() -> None:
    assert with_chosen(STATE, {}) == STATE


def changed(**fields: object) -> CpuManagerState:
    return msgspec.structs.replace(STATE, **fields)


@pytest.mark.parametrize(
    ("state", "chosen", "reason"),
    [
        (STATE, {"u": {"a": cpus("3-4")}}, "pod v, container a: CPUs 3 also belong to pod u"),
        (
            STATE,
            {"w": {"x": cpus("4")}, "x": {"y": cpus("4-5")}},
            "pod x, container y: CPUs 4 also belong to pod w",
        ),
        (
            STATE,
            {"u": {"a": cpus("7-9")}},
            "pod u, container a: the kubelet's state does not have CPUs 8-9",
        ),
        (STATE, {"u": {"a": EMPTY}}, "pod u, container a: no CPUs"),
        (STATE, {"u": {"a": cpus("6-7")}}, "pod u, container a: the kubelet reserves CPUs 6"),
        (STATE, {"u": {"a": cpus("0-2,4-7")}}, "reserves CPUs 0,6"),
        (
            changed(version=3, pods={"w": cpus("8-9")}),
            {"w": {"a": cpus("8")}},
            "pod w, container a: the kubelet gave CPUs 8-9 to the pod",
        ),
        (
            changed(version=3, pods={"w": cpus("8-9")}),
            {"u": {"a": cpus("8")}},
            "pod u, container a: CPUs 8 also belong to pod w",
        ),
        (changed(policy="none"), {}, "policy is none"),
        (changed(version=1), {}, "version 1 is not"),
        (changed(version=None), {}, "version unknown is not"),
        (changed(checked=Checked.MISMATCH), {}, "checksum"),
        (changed(problems=("entries.u.b: bad",)), {}, "entries.u.b"),
        (changed(version=4, originals={"u": {}}), {}, "pod u has been resized"),
    ],
)
def test_states_that_are_not_written(
    state: CpuManagerState, chosen: dict[str, dict[str, CpuSet]], reason: str
) -> None:
    with pytest.raises(TakeoverError, match=reason):
        with_chosen(state, chosen, reserved=cpus("0,6"))


def test_the_last_shared_cpu_is_kept() -> None:
    with pytest.raises(TakeoverError, match="no CPU of 0-7 would be left"):
        with_chosen(STATE, {"w": {"a": cpus("0,4-7")}})


SETS = st.frozensets(st.integers(0, 9), max_size=4).map(CpuSet)


@given(
    chosen=st.dictionaries(
        st.sampled_from("uvwx"), st.dictionaries(st.sampled_from("ab"), SETS), max_size=4
    )
)
def test_no_cpu_is_lost_or_assigned_twice(chosen: dict[str, dict[str, CpuSet]]) -> None:
    try:
        after = with_chosen(STATE, chosen)
    except TakeoverError:
        return
    parts = [after.default, *after.by_uid.values()]
    assert union(parts) == cpus("0-7")
    assert sum(map(len, parts)) == 8
    for uid, containers in chosen.items():
        assert containers.items() <= after.entries.get(uid, {}).items()
