from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.foreign.coexistence import TABLE, Rule, conflicts, cpus, may_share
from agent.model.holding import Form, Holding, Source

CARD = ("gpu", "GPU-a")
CAPACITY = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
NAMES = {
    Form.WHOLE: "nvidia.com/gpu",
    Form.REPLICA: "nvidia.com/gpu.shared",
    Form.INSTANCE: "nvidia.com/mig-1g.10gb",
}


def held(
    uid: str,
    form: Form,
    part: str = "",
    core: int = 0,
    source: Source = Source.CHECKPOINT,
    resource: str | None = None,
) -> Holding:
    amounts = {"koordinator.sh/gpu-core": core} if core else {}
    name = NAMES.get(form, "") if resource is None else resource
    return Holding(uid, "main", name, *CARD, form, part, amounts, source)


KEPT, REFUSED = True, False

PAIRS = [
    # What a pod has by its first name, what another has by its second, and whether both may.
    (held("a", Form.WHOLE), held("b", Form.WHOLE), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.WHOLE, source=Source.ALLOCATION), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.WHOLE, source=Source.CLAIM), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.SHARE, core=1), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.REPLICA, "0"), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.FUNCTION, "0000:18:00.1"), REFUSED),
    (held("a", Form.WHOLE), held("b", Form.OPEN), KEPT),
    (held("a", Form.SHARE, core=60), held("b", Form.SHARE, core=40), KEPT),
    (held("a", Form.SHARE, core=60), held("b", Form.SHARE, core=41), REFUSED),
    (held("a", Form.SHARE, core=60), held("b", Form.REPLICA, "0"), REFUSED),
    (held("a", Form.SHARE, core=60), held("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (held("a", Form.SHARE, core=60), held("b", Form.FUNCTION, "0000:18:00.1"), KEPT),
    (held("a", Form.REPLICA, "0"), held("b", Form.REPLICA, "1"), KEPT),
    (held("a", Form.REPLICA, "0"), held("b", Form.REPLICA, "0"), REFUSED),
    (
        held("a", Form.REPLICA, "0"),
        held("b", Form.REPLICA, "1", resource="nvidia.com/gpu"),
        REFUSED,
    ),
    (held("a", Form.REPLICA, "0"), held("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (held("a", Form.REPLICA, "0"), held("b", Form.FUNCTION, "f"), REFUSED),
    (held("a", Form.INSTANCE, "MIG-x"), held("b", Form.INSTANCE, "MIG-y"), KEPT),
    (held("a", Form.INSTANCE, "MIG-x"), held("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (held("a", Form.INSTANCE, "MIG-x::0"), held("b", Form.INSTANCE, "MIG-x::1"), KEPT),
    (held("a", Form.INSTANCE, "MIG-x::0"), held("b", Form.INSTANCE, "MIG-x"), REFUSED),
    (held("a", Form.INSTANCE, "MIG-x"), held("b", Form.FUNCTION, "f"), REFUSED),
    (held("a", Form.FUNCTION, "0000:18:00.1"), held("b", Form.FUNCTION, "0000:18:00.2"), KEPT),
    (held("a", Form.FUNCTION, "0000:18:00.1"), held("b", Form.FUNCTION, "0000:18:00.1"), REFUSED),
    (held("a", Form.OPEN), held("b", Form.OPEN), KEPT),
]


@pytest.mark.parametrize(("one", "other", "kept"), PAIRS)
def test_two_pods_and_one_device(one: Holding, other: Holding, kept: bool) -> None:
    assert may_share(one, other, CAPACITY) is kept
    assert may_share(other, one, CAPACITY) is kept
    found = conflicts((one, other), {CARD: CAPACITY})
    assert len(found) == (0 if kept else 1)


def test_the_table_has_a_row_for_any_two_and_each_is_tried() -> None:
    forms = [form for form in Form if form is not Form.CPUS]
    pairs = {frozenset(pair) for pair in combinations_with_replacement(forms, 2)}
    assert set(TABLE) == pairs
    tried = {frozenset({one.form, other.form}) for one, other, _ in PAIRS}
    assert pairs - tried == {frozenset({Form.OPEN, form}) for form in forms[1:-1]}


@pytest.mark.parametrize("other", [Form.WHOLE, Form.SHARE, Form.INSTANCE])
def test_one_pod_may_have_a_device_by_two_names(other: Form) -> None:
    one, two = held("a", Form.WHOLE), held("a", other, source=Source.ALLOCATION)
    assert may_share(one, two, CAPACITY)
    assert conflicts((one, two), {CARD: CAPACITY}) == ()


def test_other_devices_do_not_matter() -> None:
    one = held("a", Form.WHOLE)
    other = Holding("b", "main", "nvidia.com/gpu", "gpu", "GPU-b", Form.WHOLE)
    assert may_share(one, other)
    assert conflicts((one, other), {}) == ()


@pytest.mark.parametrize(
    ("sources", "refused"),
    [
        ((Source.CHECKPOINT, Source.ALLOCATION), "a"),
        ((Source.ALLOCATION, Source.CHECKPOINT), "b"),
        ((Source.NODE, Source.CLAIM), "a"),
        ((Source.CHECKPOINT, Source.CHECKPOINT), "b"),
    ],
)
def test_who_is_refused(sources: tuple[Source, Source], refused: str) -> None:
    one, other = (held(uid, Form.WHOLE, source=of) for uid, of in zip("ab", sources, strict=True))
    (found,) = conflicts((one, other), {CARD: CAPACITY})
    assert (found.refused.uid, found.rule) == (refused, Rule.REFUSED)


shares = st.lists(st.integers(1, 60), max_size=6)


@given(shares)
def test_what_is_kept_of_shares_fits_and_more_would_not(amounts: list[int]) -> None:
    held_shares = [held(str(n), Form.SHARE, core=core) for n, core in enumerate(amounts)]
    refused = {each.refused.uid for each in conflicts(held_shares, {CARD: CAPACITY})}
    kept = [each for each in held_shares if each.uid not in refused]
    total = 0
    for each in held_shares:
        core = each.amounts["koordinator.sh/gpu-core"]
        assert (total + core <= 100) is (each in kept), "in their order, whatever still fits"
        total += core if each in kept else 0


def test_cpus_of_a_driver_are_told_apart_and_conflict_with_no_device() -> None:
    some = Holding("a", "main", "dra.cpu", "", "", Form.CPUS, "2-3")
    assert cpus((held("b", Form.WHOLE), some)) == (some,)
    other = Holding("b", "main", "dra.cpu", "", "", Form.CPUS, "2-3")
    assert conflicts((some, other), {}) == ()
