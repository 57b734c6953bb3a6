from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.device_holders.holdings import Conflict, Rule, conflicts
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource

CARD = ("gpu", "GPU-a")
CAPACITY = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
NAMES = {
    Form.WHOLE: "nvidia.com/gpu",
    Form.REPLICA: "nvidia.com/gpu.shared",
    Form.INSTANCE: "nvidia.com/mig-1g.10gb",
}


def cpus(uid: str, part: str) -> DeviceHolding:
    return DeviceHolding(uid, "main", "dra.cpu", "", "", Form.CPUS, part)


def holding(
    uid: str,
    form: Form,
    part: str = "",
    core: int = 0,
    source: HoldingSource = HoldingSource.CHECKPOINT,
    resource: str | None = None,
) -> DeviceHolding:
    amounts = {"koordinator.sh/gpu-core": core} if core else {}
    name = NAMES.get(form, "") if resource is None else resource
    return DeviceHolding(uid, "main", name, *CARD, form, part, amounts, source)


KEPT, REFUSED = True, False

PAIRS = [
    # The holdings of two pods of a device, and whether both are kept.
    (holding("a", Form.WHOLE), holding("b", Form.WHOLE), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.WHOLE, source=HoldingSource.ALLOCATION), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.WHOLE, source=HoldingSource.CLAIM), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.SHARE, core=1), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.REPLICA, "0"), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.FUNCTION, "0000:18:00.1"), REFUSED),
    (holding("a", Form.WHOLE), holding("b", Form.OPEN), KEPT),
    (holding("a", Form.SHARE, core=60), holding("b", Form.SHARE, core=40), KEPT),
    (holding("a", Form.SHARE, core=60), holding("b", Form.SHARE, core=41), REFUSED),
    (holding("a", Form.SHARE, core=60), holding("b", Form.REPLICA, "0"), REFUSED),
    (holding("a", Form.SHARE, core=60), holding("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (holding("a", Form.SHARE, core=60), holding("b", Form.FUNCTION, "0000:18:00.1"), KEPT),
    (holding("a", Form.REPLICA, "0"), holding("b", Form.REPLICA, "1"), KEPT),
    (holding("a", Form.REPLICA, "0"), holding("b", Form.REPLICA, "0"), REFUSED),
    (
        holding("a", Form.REPLICA, "0"),
        holding("b", Form.REPLICA, "1", resource="nvidia.com/gpu"),
        REFUSED,
    ),
    (holding("a", Form.REPLICA, "0"), holding("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (holding("a", Form.REPLICA, "0"), holding("b", Form.FUNCTION, "f"), REFUSED),
    (holding("a", Form.INSTANCE, "MIG-x"), holding("b", Form.INSTANCE, "MIG-y"), KEPT),
    (holding("a", Form.INSTANCE, "MIG-x"), holding("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (holding("a", Form.INSTANCE, "MIG-x::0"), holding("b", Form.INSTANCE, "MIG-x::1"), KEPT),
    (holding("a", Form.INSTANCE, "MIG-x::0"), holding("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (holding("a", Form.INSTANCE, "MIG-x"), holding("b", Form.FUNCTION, "f"), REFUSED),
    (
        holding("a", Form.FUNCTION, "0000:18:00.1"),
        holding("b", Form.FUNCTION, "0000:18:00.2"),
        KEPT,
    ),
    (
        holding("a", Form.FUNCTION, "0000:18:00.1"),
        holding("b", Form.FUNCTION, "0000:18:00.1"),
        REFUSED,
    ),
    (holding("a", Form.OPEN), holding("b", Form.OPEN), KEPT),
    (cpus("a", "2-3"), cpus("b", "4"), KEPT),
    (cpus("a", "2-3"), cpus("b", "3-4"), REFUSED),
]


@pytest.mark.parametrize(("one", "other", "kept"), PAIRS)
def test_conflicts_of_two_pods_and_one_device(
    one: DeviceHolding, other: DeviceHolding, kept: bool
) -> None:
    for pair in ((one, other), (other, one)):
        assert len(conflicts(pair, {CARD: CAPACITY})) == (0 if kept else 1)


@pytest.mark.parametrize("other", [Form.WHOLE, Form.SHARE, Form.INSTANCE])
def test_one_pod_may_hold_a_device_under_two_names(other: Form) -> None:
    one, two = holding("a", Form.WHOLE), holding("a", other, source=HoldingSource.ALLOCATION)
    assert conflicts((one, two), {CARD: CAPACITY}) == ()


def test_holdings_of_different_devices_do_not_conflict() -> None:
    one = holding("a", Form.WHOLE)
    other = DeviceHolding("b", "main", "nvidia.com/gpu", "gpu", "GPU-b", Form.WHOLE)
    assert conflicts((one, other), {}) == ()


@pytest.mark.parametrize(
    ("sources", "refused"),
    [
        ((HoldingSource.CHECKPOINT, HoldingSource.ALLOCATION), "a"),
        ((HoldingSource.ALLOCATION, HoldingSource.CHECKPOINT), "b"),
        ((HoldingSource.NODE, HoldingSource.CLAIM), "a"),
        ((HoldingSource.CHECKPOINT, HoldingSource.CHECKPOINT), "b"),
    ],
)
def test_which_holding_is_refused(
    sources: tuple[HoldingSource, HoldingSource], refused: str
) -> None:
    one, other = (
        holding(uid, Form.WHOLE, source=of) for uid, of in zip("ab", sources, strict=True)
    )
    (found,) = conflicts((one, other), {CARD: CAPACITY})
    assert (found.refused.uid, found.rule) == (refused, Rule.REFUSED)


shares = st.lists(st.integers(1, 60), max_size=6)


@given(shares)
def test_kept_shares_fit_and_no_refused_share_would_fit(amounts: list[int]) -> None:
    shares_of_pods = [holding(str(n), Form.SHARE, core=core) for n, core in enumerate(amounts)]
    refused = {each.refused.uid for each in conflicts(shares_of_pods, {CARD: CAPACITY})}
    kept = [each for each in shares_of_pods if each.uid not in refused]
    total = 0
    for each in shares_of_pods:
        core = each.amounts["koordinator.sh/gpu-core"]
        assert (total + core <= 100) is (each in kept), "in their order, as far as they fit"
        total += core if each in kept else 0


def test_two_pods_with_one_cpu_conflict_unless_they_share_a_claim() -> None:
    one, other = cpus("a", "2-3"), cpus("b", "3")
    assert conflicts((one, other, cpus("c", "4")), {}) == (Conflict(one, other, Rule.OTHER_CPUS),)
    shared = [msgspec.structs.replace(each, claim="ns/x") for each in (one, other)]
    assert conflicts(shared, {}) == (), "two pods may use one claim"
