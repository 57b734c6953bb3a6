from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import (
    ExclusionError,
    Owner,
    PodWanted,
    Snapshot,
    SnapshotError,
    Wanted,
    excludes,
    parse_patterns,
)

LS_POD = PodWanted("ns/p", QoS.LS, Wanted(LinuxResources("0-3")))

text = st.text(st.characters(codec="utf-8"), max_size=12)
cpusets = st.frozensets(st.integers(0, 200), min_size=1, max_size=9).map(lambda c: str(CpuSet(c)))
pools = st.lists(st.builds(Pool, st.integers(0, 3), st.integers(0, 9), cpusets), max_size=3).map(
    tuple
)
qos = st.sampled_from(list(QoS))
wanted = st.builds(
    Wanted,
    st.builds(
        LinuxResources,
        st.none() | cpusets,
        st.none() | cpusets,
        quota=st.none() | st.builds(CpuQuota, st.integers(-1, 9), st.integers(1, 9)),
    ),
    exclusive=st.booleans(),
    kubelet=st.booleans(),
    blocked=text,
)
full = st.builds(
    Snapshot,
    generation=st.integers(0, 2**62),
    listed_at=st.integers(0, 2**62),
    boot_id=text,
    kubelet_static=st.booleans(),
    pools=st.dictionaries(text, pools, max_size=3),
    owners=st.lists(st.builds(Owner, text, text, qos, cpusets), max_size=3).map(tuple),
    pods=st.dictionaries(
        text, st.builds(PodWanted, text, qos, wanted, st.dictionaries(text, wanted), text)
    ),
    containers=st.dictionaries(text, wanted),
)


def encoded() -> dict[str, Any]:
    snapshot = Snapshot(
        5, 7, "boot", False, {}, (), {"u": LS_POD}, {"c": Wanted(LinuxResources("1"))}
    )
    fields: dict[str, Any] = json.loads(snapshots.encode(snapshot))
    return fields


def test_a_snapshot_of_an_unknown_version_is_refused() -> None:
    """Also if its other fields have other types."""
    later = {**encoded(), "version": 2}
    assert next(iter(later)) == "version"
    for text in (later, {"version": 2}, {**later, "pods": []}):
        with pytest.raises(SnapshotError) as raised:
            snapshots.decode(json.dumps(text).encode())
        assert str(raised.value) == "snapshot: has the version 2, and only version 1 can be read"


def test_unknown_fields_of_a_snapshot_are_ignored() -> None:
    pods = {"u": {**encoded()["pods"]["u"], "later": {}}}
    text = json.dumps({**encoded(), "later": [1], "pods": pods}).encode()
    assert snapshots.decode(text).pods == {"u": LS_POD}


@given(full)
def test_snapshots_are_encoded_and_decoded(snapshot: Snapshot) -> None:
    line = snapshots.encode(snapshot)
    assert snapshots.decode(line) == snapshot
    assert line.count(b"\n") == 1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\0" * 64, "is not JSON"),
        (b'{"boot_id":"\xff"}', "is not JSON"),
        (b'{"more":' + b"[" * 100_000, "is not JSON"),
        (b'{"generation":"1"}', "generation"),
        (b'{"version":99999999999999999999}', "version"),
        (b"{}", "missing required field `generation`"),
    ],
)
def test_invalid_snapshots(raw: bytes, reason: str) -> None:
    with pytest.raises(SnapshotError, match=reason):
        snapshots.decode(raw)


@pytest.mark.parametrize(
    ("text", "pod", "container", "excluded"),
    [
        ("", "prod/db", "main", False),
        ("prod", "prod/db", "main", True),
        ("prod", "prod/db", "", True),
        ("prod/db", "prod/web", "main", False),
        ("kube-*, prod/d?", "prod/db", "main", True),
        ("kube-*,prod/d?", "kube-system/dns", "", True),
        ("prod/*/istio-proxy", "prod/db", "istio-proxy", True),
        ("prod/*/istio-proxy", "prod/db", "main", False),
        ("prod/*/istio-proxy", "prod/db", "", False),
        ("prod/*/istio-proxy", "team/db", "istio-proxy", False),
        ("p*/*/*", "prod/db", "", False),
        ("PROD", "prod/db", "main", False),
    ],
)
def test_excluded_containers(text: str, pod: str, container: str, excluded: bool) -> None:
    assert excludes(parse_patterns(text), *pod.split("/"), container) is excluded


@pytest.mark.parametrize(
    "text", ["*/*/istio-proxy", "*", "*/db", "kube-system, *-system", "?rod", "[a-z]*/*/envoy"]
)
def test_a_pattern_whose_namespace_begins_with_a_wildcard_is_refused(text: str) -> None:
    with pytest.raises(ExclusionError, match="the namespace begins with a wildcard"):
        parse_patterns(text)


@pytest.mark.parametrize("text", ["a/b/c/d", "/a", "a//b", "a/", "a,/"])
def test_an_invalid_pattern_is_quoted(text: str) -> None:
    with pytest.raises(ExclusionError, match="is not NAMESPACE"):
        parse_patterns(text)
