from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import (
    GROUP_ANNOTATION,
    MAX_VALUES,
    ApiContainer,
    GroupError,
    Phase,
    PodAffinity,
    PodGroup,
    admitted_values,
    decode,
    from_object,
    group_of,
    unequal_cpu,
)
from tests.fixtures.fleet import pod

BODY: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u-1",
        "resourceVersion": "12",
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {"a": "b"},
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "managedFields": [{"x": 1}],
    },
    "spec": {
        "nodeName": "n",
        "containers": [
            {
                "name": "c",
                "image": "i",
                "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": 2}},
            },
            {"name": "side"},
        ],
        "initContainers": [{"name": "i", "resources": {}}],
    },
    "status": {"phase": "Running", "qosClass": "Burstable", "podIP": "192.0.2.1"},
}


def body(**changes: Any) -> dict[str, Any]:
    """BODY with changed fields of its metadata; None removes a field."""
    metadata = {**BODY["metadata"], **changes}
    return {
        **BODY,
        "metadata": {key: value for key, value in metadata.items() if value is not None},
    }


def test_the_fields_that_are_read() -> None:
    pod = decode(msgspec.json.encode(BODY))
    assert pod == from_object(BODY)
    assert (pod.title, pod.uid, pod.runtime_uid, pod.node) == ("ns/p", "u-1", "u-1", "n")
    assert (pod.phase, pod.kube_class, pod.resource_version) == (Phase.RUNNING, "burstable", "12")
    assert pod.created_at == 1_767_323_045_000_000_000
    assert not any((pod.deleted, pod.terminal, pod.mirror))
    assert pod.containers == (
        ApiContainer("c", {"cpu": 1500, "memory": 1 << 30}, {"cpu": 2000}),
        ApiContainer("side"),
    )
    assert pod.init_containers == (ApiContainer("i"),)


def test_an_object_with_few_fields() -> None:
    pod = from_object({"metadata": {"name": "p", "uid": "u"}})
    assert (pod.namespace, pod.phase, pod.kube_class) == ("default", Phase.PENDING, None)
    assert (pod.created_at, pod.node, pod.labels) == (0, "", {})


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        ({}, False),
        ({"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c"}]}, True),
        ({"additionalNodeAllocatableResources": []}, False),
        ({"additionalNodeAllocatableResources": [{"sourceKind": "Other"}]}, False),
        ({"additionalNodeAllocatableResources": [{"sourceKind": "ResourceClaim"}]}, True),
    ],
)
def test_claims_that_the_scheduler_counts(status: dict[str, Any], counted: bool) -> None:
    """KEP-5517, by the fields of Kubernetes 1.36 and 1.37 and of 1.38."""
    assert from_object({**BODY, "status": status}).claims_requested == counted


@pytest.mark.parametrize(
    ("phase", "terminal"),
    [
        ("Pending", False),
        ("Running", False),
        ("Succeeded", True),
        ("Failed", True),
        ("Unknown", False),
        ("Invalid", False),
    ],
)
def test_phases(phase: str, terminal: bool) -> None:
    assert from_object({**BODY, "status": {"phase": phase}}).terminal is terminal


def test_deletion() -> None:
    assert from_object(body(deletionTimestamp="2026-01-02T03:04:05Z")).deleted


@pytest.mark.parametrize(
    ("annotations", "uid"),
    [
        ({"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}, "h"),
        ({"kubernetes.io/config.mirror": "h"}, "h"),
        ({"kubernetes.io/config.hash": "h"}, "u-1"),
        ({"kubernetes.io/config.source": "api"}, "u-1"),
    ],
)
def test_a_mirror_pod_has_the_uid_of_its_static_pod(annotations: dict[str, str], uid: str) -> None:
    assert from_object(body(annotations=annotations)).runtime_uid == uid


@pytest.mark.parametrize(
    ("changed", "uid"),
    [
        ({}, "n-1"),
        ({"name": "other"}, ""),
        ({"kind": "ReplicaSet"}, ""),
        ({"apiVersion": "apps/v1"}, ""),
        ({"controller": False}, ""),
        ({"controller": None}, ""),
        ({"uid": "x" * 1000}, "x" * 64),
    ],
)
def test_the_node_that_controls_a_pod(changed: dict[str, Any], uid: str) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n-1", "controller": True}
    other = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "n", "uid": "d"}
    it = from_object(body(ownerReferences=[other, owner | changed]))
    assert it.controlling_node == uid
    assert from_object(body()).controlling_node == ""


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (body(uid=None), "Pod ns/p: metadata: .*missing required field `uid`"),
        (body(uid=""), "Pod ns/p: metadata.uid: is empty"),
        (body(labels={"a": 1}), r"Pod ns/p: metadata.labels\[...\]: Expected `str`"),
        (
            body(creationTimestamp="soon"),
            "Pod ns/p: metadata.creationTimestamp: 'soon' is not a time",
        ),
        (
            {
                **BODY,
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "x"}}}]},
            },
            r"Pod ns/p: spec.containers\[0\].resources.limits.cpu: 'x' is not a quantity",
        ),
        ({**BODY, "spec": []}, "Pod ns/p: spec: Expected `object`, got `array`"),
        ([], "Pod without a name: Expected `object`, got `array`"),
    ],
)
def test_invalid_objects_are_named(broken: object, message: str) -> None:
    with pytest.raises(ObjectError, match=message):
        from_object(broken)
    with pytest.raises(ObjectError, match=message):
        decode(msgspec.json.encode(broken))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b'{"metadata": ', b'{"metadata": {"name": "\xff"}}']
)
def test_invalid_json(text: bytes) -> None:
    with pytest.raises(ObjectError, match="Pod without a name: is not JSON"):
        decode(text)


def test_fields_of_a_pod_for_the_scheduler() -> None:
    spec = {
        **BODY["spec"],
        "priority": 9500,
        "preemptionPolicy": "Never",
        "schedulerName": "topolet",
        "overhead": {"cpu": "250m", "memory": "1Ki"},
        "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "3500m"}},
        "containers": [{"name": "main", "resources": {"claims": [{"name": "card"}]}}],
    }
    pod = from_object(
        {**BODY, "spec": spec, "status": {"phase": "Running", "startTime": "2026-01-02T03:04:06Z"}}
    )
    assert (pod.priority, pod.preempts, pod.scheduler) == (9500, False, "topolet")
    assert (pod.requests, pod.limits) == ({"cpu": 2000}, {"cpu": 3500})
    assert pod.overhead == {"cpu": 250, "memory": 1024}
    assert pod.has_claims
    assert pod.started_at == 1_767_323_046_000_000_000
    without_fields = from_object(BODY)
    assert (without_fields.priority, without_fields.preempts, without_fields.scheduler) == (
        None,
        True,
        "",
    )
    assert not any(
        (
            without_fields.requests,
            without_fields.limits,
            without_fields.overhead,
            without_fields.started_at,
            without_fields.has_claims,
        )
    )


@pytest.mark.parametrize(
    ("spec", "status", "field"),
    [
        ({"overhead": {"cpu": "x"}}, {}, "spec.overhead.cpu"),
        ({"resources": {"requests": {"memory": "1Q"}}}, {}, "spec.resources.requests.memory"),
        ({}, {"startTime": "yesterday"}, "status.startTime"),
        ({"priority": "high"}, {}, "spec.priority"),
    ],
)
def test_an_invalid_field_is_named(
    spec: dict[str, Any], status: dict[str, Any], field: str
) -> None:
    with pytest.raises(ObjectError, match=rf"Pod ns/p: {field}: "):
        from_object({**BODY, "spec": spec, "status": status})


def container_spec(name: str, request: str, limit: str, **more: str) -> dict[str, Any]:
    """A container; "" sets no amount."""
    amounts = {"requests": request, "limits": limit}
    resources = {field: {"cpu": text} for field, text in amounts.items() if text}
    return {"name": name, "resources": resources, **more}


def pod_of_class(qos: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": qos}
    metadata = {"uid": "u", "name": "p", "namespace": "ns", "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [*containers], **spec}}


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
@pytest.mark.parametrize(
    ("containers", "spec", "difference"),
    [
        ([("a", "2", "2")], {}, ""),
        ([("a", "2000m", "2")], {}, ""),
        ([("a", "", "2")], {}, ""),
        ([("a", "", "")], {}, ""),
        ([("a", "2", "4")], {}, "container a: requests.cpu is 2, limits.cpu is 4"),
        ([("a", "2", "")], {}, "container a: requests.cpu is 2, limits.cpu is not set"),
        (
            [("a", "2", "2"), ("b", "500m", "1")],
            {},
            "container b: requests.cpu is 500m, limits.cpu is 1",
        ),
        # The sums are equal.
        ([("a", "1", "2"), ("b", "2", "1")], {}, "container a: requests.cpu is 1, limits.cpu is 2"),
        # Init containers that are not sidecars terminate before the others start.
        ([("a", "2", "2")], {"initContainers": [container_spec("i", "1", "3")]}, ""),
        (
            [("a", "2", "2")],
            {"initContainers": [container_spec("s", "1", "3", **SIDECAR)]},
            "container s: requests.cpu is 1, limits.cpu is 3",
        ),
        # Pod-level resources override those of the containers.
        ([("a", "1", "")], {"resources": container_spec("", "2", "2")["resources"]}, ""),
        (
            [("a", "2", "2")],
            {"resources": container_spec("", "2", "4")["resources"]},
            "spec.resources: requests.cpu is 2, limits.cpu is 4",
        ),
    ],
)
def test_the_first_difference_between_limit_and_request_is_named(
    qos: str, containers: list[tuple[str, str, str]], spec: dict[str, Any], difference: str
) -> None:
    """`containers`: names, requests and limits."""
    specs = [container_spec(*each) for each in containers]
    assert unequal_cpu(from_object(pod_of_class(qos, *specs, **spec))) == difference


@pytest.mark.parametrize("qos", ["LS", "BE", "SYSTEM", "", "x"])
def test_other_classes_may_have_any_limit(qos: str) -> None:
    assert unequal_cpu(from_object(pod_of_class(qos, container_spec("a", "2", "4")))) == ""


@given(st.lists(st.tuples(st.integers(0, 64_000), st.integers(0, 64_000)), min_size=1, max_size=4))
def test_any_container_whose_limit_differs_is_found(amounts: list[tuple[int, int]]) -> None:
    containers = [
        container_spec(f"c{index}", f"{request}m", f"{limit}m")
        for index, (request, limit) in enumerate(amounts)
    ]
    found = unequal_cpu(from_object(pod_of_class("LSR", *containers)))
    unequal = [index for index, (request, limit) in enumerate(amounts) if request != limit]
    assert found.startswith(f"container c{unequal[0]}: ") if unequal else found == ""


def resources(cpu: str, memory: str = "1Gi") -> dict[str, dict[str, str]]:
    return {"requests": {"cpu": cpu, "memory": memory}}


def container_status(name: str, cpu: str, admitted: str = "") -> dict[str, Any]:
    """A container's status; `admitted`: the CPU of `allocatedResources`, if it differs."""
    allocated = resources(admitted or cpu)["requests"]
    return {"name": name, "resources": resources(cpu), "allocatedResources": allocated}


PENDING: dict[str, Any] = {"conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}
DEFERRED: dict[str, Any] = {"conditions": [{"type": "PodResizePending", "reason": "Deferred"}]}


@pytest.mark.parametrize(
    ("spec_cpu", "status", "counted"),
    [
        ("2", {}, 2000),
        ("2", {"containerStatuses": [{"name": "a"}]}, 2000),
        ("2", {"containerStatuses": [container_status("a", "2")]}, 2000),
        ("2", {"containerStatuses": [container_status("other", "4")]}, 2000),
        # Kubelets before 1.35 without the feature gate report no allocatedResources.
        ("2", {"containerStatuses": [{"name": "a", "resources": resources("2")}]}, 2000),
        # A resize up counts at once, unless it is infeasible.
        ("4", {"containerStatuses": [container_status("a", "2")]}, 4000),
        ("4", {**DEFERRED, "containerStatuses": [container_status("a", "2")]}, 4000),
        ("4", {**PENDING, "containerStatuses": [container_status("a", "2")]}, 2000),
        # A resize down counts when the runtime has applied it.
        ("1", {"containerStatuses": [container_status("a", "2")]}, 2000),
        ("1", {"containerStatuses": [container_status("a", "2", "1")]}, 2000),
        ("1", {"containerStatuses": [container_status("a", "1", "2")]}, 2000),
        ("1", {**PENDING, "containerStatuses": [container_status("a", "2")]}, 2000),
        ("1", {"containerStatuses": [container_status("a", "1")]}, 1000),
    ],
)
def test_a_resize_counts_as_for_kube_scheduler(
    spec_cpu: str, status: dict[str, Any], counted: int
) -> None:
    """As in component-helpers of 1.36.3: determineEffectiveRequests."""
    spec = {"containers": [{"name": "a", "resources": resources(spec_cpu)}]}
    (container,) = from_object({**BODY, "spec": spec, "status": status}).containers
    assert container.requests["cpu"] == 1000 * int(spec_cpu)
    assert container.counted == {"cpu": counted, "memory": 1 << 30}


def test_a_sidecar_is_resized_and_another_init_container_is_not() -> None:
    spec = {
        "initContainers": [
            {"name": "s", "resources": resources("1"), **SIDECAR},
            {"name": "i", "resources": resources("1")},
        ]
    }
    statuses = [container_status("i", "2"), container_status("s", "2")]
    pod = from_object({**BODY, "spec": spec, "status": {"initContainerStatuses": statuses}})
    assert [each.counted["cpu"] for each in pod.init_containers] == [2000, 1000]


def test_pod_level_resources_are_resized_where_the_pod_has_them() -> None:
    status = {**PENDING, "resources": resources("2"), "allocatedResources": {"cpu": "2"}}
    spec = {"resources": {"requests": {"cpu": "4"}}}
    pod = from_object({**BODY, "spec": spec, "status": status})
    assert (pod.requests, pod.counted, pod.pod_level) == ({"cpu": 4000}, {"cpu": 2000}, True)
    without = from_object({**BODY, "status": status})
    assert (without.counted, without.pod_level) == ({}, False)


def test_an_invalid_amount_in_force_is_named() -> None:
    spec = {"containers": [{"name": "a", "resources": resources("1")}]}
    status = {"containerStatuses": [container_status("a", "1", "x")]}
    field = r"status.containerStatuses\[0\].allocatedResources.cpu: 'x' is not"
    with pytest.raises(ObjectError, match=rf"Pod ns/p: {field}"):
        from_object({**BODY, "spec": spec, "status": status})


def annotated(text: str) -> apiobjects.ApiPod:
    return apiobjects.from_object(pod("p", annotations={GROUP_ANNOTATION: text}))


def test_a_group_is_a_name_and_a_size() -> None:
    assert group_of(annotated("train.0/8")) == PodGroup("default", "train.0", 8)
    assert group_of(apiobjects.from_object(pod("p"))) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not NAME/SIZE"),
        ("train", "'train' is not NAME/SIZE"),
        ("/2", "'/2' is not NAME/SIZE"),
        ("Train/2", "'Train/2' is not NAME/SIZE"),
        ("train/two", "'train/two' is not NAME/SIZE"),
        ("train/-1", "'train/-1' is not NAME/SIZE"),
        ("train/٣", "'train/٣' is not NAME/SIZE"),
        ("train/0", "SIZE 0 is not 1 to 64"),
        ("train/65", "SIZE 65 is not 1 to 64"),
    ],
)
def test_an_invalid_annotation_is_named(text: str, reason: str) -> None:
    with pytest.raises(GroupError) as raised:
        group_of(annotated(text))
    assert str(raised.value) == f"pod default/p: annotation topolet.io/group: {reason}"


def term(*expressions: tuple[str, str, list[str]]) -> dict[str, Any]:
    names = ("key", "operator", "values")
    return {"matchExpressions": [dict(zip(names, each, strict=True)) for each in expressions]}


@pytest.mark.parametrize(
    ("selector", "terms", "admitted"),
    [
        (None, None, ()),
        ({"model": "a", "other": "b"}, None, ("a",)),
        ({"other": "b"}, None, ()),
        (None, [term(("model", "In", ["b", "a"]))], ("a", "b")),
        (None, [term(("model", "In", ["a"])), term(("model", "In", ["b"]))], ("a", "b")),
        (None, [term(("model", "In", ["a"])), term(("other", "In", ["b"]))], ()),
        (None, [term(("model", "In", ["a", "b"]), ("model", "In", ["b", "c"]))], ("b",)),
        (None, [term(("model", "NotIn", ["a"]))], ()),
        ({"model": "a"}, [term(("model", "In", ["a", "b"]))], ("a",)),
        (None, [], ()),
        (None, [{}], ()),
    ],
)
def test_selectors_and_lists_limit_the_values(
    selector: dict[str, str] | None, terms: list[Any] | None, admitted: tuple[str, ...]
) -> None:
    found = admitted_values("model", selector, affinity(terms) if terms is not None else None)
    assert found == admitted


def affinity(terms: list[Any] | None) -> PodAffinity:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return msgspec.convert({"nodeAffinity": required}, PodAffinity)


def test_a_long_list_counts_as_any_value() -> None:
    """Placements keep the values for each kind of pods, and an object has up to 1.5 MB."""
    values = [f"model-{number}" for number in range(MAX_VALUES + 1)]
    assert admitted_values("model", None, affinity([term(("model", "In", values))])) == ()
    found = admitted_values("model", None, affinity([term(("model", "In", values[1:]))]))
    assert len(found) == MAX_VALUES


def test_a_value_that_no_label_can_have_is_left_out() -> None:
    terms = [term(("model", "In", ["a", "x" * 64]))]
    assert admitted_values("model", None, affinity(terms)) == ("a",)
