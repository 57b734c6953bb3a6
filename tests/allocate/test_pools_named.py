"""Only present containers and those of the spec count, regardless of the annotations."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.pools import MAX_COMING, decide, decided_names, of_spec
from agent.allocate.reserved_cpus import KubeletCpus
from agent.model import bounds
from agent.model import snapshot as snapshots
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC, RESOURCE_STATUS, SHARED_CONTAINERS
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QOS_LABEL, KubeClass, QoS
from tests import builders
from tests.builders import machine

TOPOLOGY = machine()
BASE_BYTES = 4 << 10
CONTAINER_BYTES = 512


def pod(
    annotations: dict[str, str],
    *present: str,
    named: tuple[str, ...] | None = None,
    qos: str = "BE",
    uid: str = "p",
) -> Pod:
    containers = tuple(Container(each, each, ContainerState.RUNNING) for each in present)
    labels = {QOS_LABEL: qos}
    return Pod(uid, "ns", uid, labels, annotations, "besteffort", 1, containers, named=named)


def batch(*names: str) -> dict[str, str]:
    amounts = {"limits": {"kubernetes.io/batch-cpu": "1000"}}
    return {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": dict.fromkeys(names, amounts)})}


NAMES = tuple(f"c{number:03}" for number in range(100))
SPEC = tuple(reversed(NAMES))


@pytest.mark.parametrize(
    ("pod_", "wanted"),
    [
        (pod({}, named=()), set()),
        (pod({}, "c000", "c001", "other", named=()), {"c000", "c001"}),
        (pod({}, named=("other", "c007")), {"c007"}),
        (pod({}, named=SPEC), set(SPEC[:MAX_COMING])),
        (pod({}, *SPEC[:90], named=SPEC), set(SPEC)),
        (pod({}), set(NAMES[:MAX_COMING])),
        (pod({}, "c099"), {*NAMES[:MAX_COMING], "c099"}),
    ],
)
def test_present_containers_and_the_next_ones_of_the_spec_count(
    pod_: Pod, wanted: set[str]
) -> None:
    assert decided_names(pod_, NAMES) == wanted


@given(
    st.lists(st.sampled_from(NAMES), unique=True),
    st.none() | st.lists(st.sampled_from(NAMES), unique=True),
    st.sets(st.sampled_from(NAMES)),
)
def test_the_number_of_counted_containers_is_bounded(
    present: list[str], spec: list[str] | None, names: set[str]
) -> None:
    pod_ = pod({}, *present, named=None if spec is None else tuple(spec))
    counted = decided_names(pod_, names)
    assert counted <= names
    assert counted >= names & set(present)
    assert len(counted) <= len(present) + MAX_COMING
    if spec is not None:
        assert counted <= {*spec, *present}


def test_amounts_of_containers_that_are_not_in_the_spec_do_not_count() -> None:
    pod_ = pod({}, "debug", named=("main",))
    assert of_spec(pod_, {"main": 1, "debug": 2, "none": 3}) == {"main": 1, "debug": 2}
    assert of_spec(msgspec.structs.replace(pod_, named=None), {"none": 3}) == {"none": 3}


def test_a_pod_is_limited_to_the_sum_of_its_own_containers() -> None:
    pod_ = pod(batch("main", "none"), named=("main",))
    decided = decide(TOPOLOGY, (pod_,), KubeletCpus(), {}, {}).pods["p"]
    assert decided.containers.keys() == {"main"}
    assert decided.group == decided.containers["main"].resources.without("cpuset")


@pytest.mark.parametrize("kube_class", ["guaranteed", "burstable", None])
def test_label_and_annotation_lift_no_limit_of_a_pod_that_is_not_best_effort(
    kube_class: KubeClass | None,
) -> None:
    """Also, the pod shares no CPUs with an LSR pod and gets no weight of its own."""
    pod_ = msgspec.structs.replace(pod(batch("main"), "main"), kube_class=kube_class)
    owner = builders.pod("own", "LSR", "1")
    decision = decide(TOPOLOGY, (pod_, owner), KubeletCpus(), {}, {})
    assert decision.pods["p"].group == NO_RESOURCES
    assert decision.pods["p"].of("main").resources == LinuxResources("0,2-3")
    assert decision.pods["p"].qos is QoS.LS


def test_an_annotation_beyond_the_spec_is_refused_as_a_whole() -> None:
    pod_ = msgspec.structs.replace(pod(batch("main"), "main"), batch_excess="too much")
    decision = decide(TOPOLOGY, (pod_,), KubeletCpus(), {}, {})
    assert decision.pods["p"].of("main").resources == LinuxResources("0-3")
    assert decision.pods["p"].group == NO_RESOURCES
    (refusal,) = decision.refusals
    assert (refusal.key, refusal.reason) == (EXTENDED_RESOURCE_SPEC, "too much")


@pytest.mark.parametrize("named", [None, ("main",), SPEC], ids=["unknown", "one", "many"])
@pytest.mark.parametrize("kind", ["batch", "sidecars"])
def test_a_snapshot_is_bounded_by_the_containers(named: tuple[str, ...] | None, kind: str) -> None:
    """For any number of containers in an annotation."""
    names = [f"c{number:03}" for number in range(bounds.MAX_CONTAINERS)]
    notes = batch(*names)
    if kind == "sidecars":
        notes = {RESOURCE_STATUS: '{"cpuset": "1"}', SHARED_CONTAINERS: ",".join(names)}
    assert all(len(text) <= bounds.POD_LIST_BYTES for text in notes.values())
    pods = tuple(
        pod(notes, "main", *names[200:210], named=named, uid=f"p{number}") for number in range(20)
    )
    decision = decide(TOPOLOGY, pods, KubeletCpus(), {}, {})
    text = snapshots.encode(
        snapshots.Snapshot(
            1,
            0,
            "boot",
            False,
            decision.pools,
            decision.owners,
            decision.pods,
            {},
        )
    )
    assert len(text) < BASE_BYTES + CONTAINER_BYTES * len(pods) * (11 + MAX_COMING)


@pytest.mark.parametrize(
    ("notes", "key", "reason"),
    [
        (
            batch(*(f"c{number:x}" for number in range(25_936))),
            EXTENDED_RESOURCE_SPEC,
            "has more than 32768 bytes",
        ),
        (
            {RESOURCE_STATUS: '{"cpuset": "1"}', SHARED_CONTAINERS: "c," * 9_000},
            SHARED_CONTAINERS,
            "has more than 8192 bytes",
        ),
        (
            {
                RESOURCE_STATUS: '{"cpuset": "1"}',
                SHARED_CONTAINERS: ",".join(f"c{number}" for number in range(300)),
            },
            SHARED_CONTAINERS,
            "names 300 containers: at most 256",
        ),
        (
            {RESOURCE_STATUS: '{"cpuset": "0-8191:1/2"}'},
            RESOURCE_STATUS,
            "CPUs 4,6,8,",
        ),
    ],
)
def test_a_refusal_names_pod_and_annotation_and_is_short(
    notes: dict[str, str], key: str, reason: str
) -> None:
    decision = decide(TOPOLOGY, (pod(notes, "main", qos="LSR"),), KubeletCpus(), {}, {})
    (refusal,) = decision.refusals
    assert (refusal.uid, refusal.title, refusal.key) == ("p", "ns/p", key)
    assert refusal.reason.startswith(reason)
    assert len(refusal.reason) <= bounds.REASON_CHARACTERS
    assert decision.pods["p"].refused == refusal.reason


def test_an_invalid_sidecar_annotation_takes_no_cpus_away() -> None:
    notes = {RESOURCE_STATUS: '{"cpuset": "1"}', SHARED_CONTAINERS: "c," * 9_000}
    decision = decide(TOPOLOGY, (pod(notes, "main", qos="LSR"),), KubeletCpus(), {}, {})
    assert decision.pods["p"].each.cpuset == "1"
    assert decision.pods["p"].each.exclusive
