from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.http.requests import BadRequestError
from agent.scheduler.extender import extender
from agent.scheduler.extender.extender import (
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)
from tests.scheduler.extender.requests import ARGS, BINDING, META, POD, encoded


def test_a_recorded_filter_request() -> None:
    args = extender.extender_args(encoded(ARGS))
    assert list(args.node_names) == ["f1", "f2", "n1"]
    assert args.items is None
    assert (args.pod.title, args.pod.uid, args.pod.annotations) == (
        "default/e1",
        "9ce0",
        {"a": "b"},
    )
    assert args.pod.containers[0].requests == {"example.com/gpu": 1}


def node_args(*names: str) -> dict[str, Any]:
    items = [{"metadata": {"name": each, "labels": {"l": each}}, "spec": {}} for each in names]
    return {"Pod": POD, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}


def test_a_request_with_node_objects_is_answered_with_node_objects() -> None:
    body = node_args("f1", "n1", "n2")
    args = extender.extender_args(encoded(body))
    assert list(args.node_names) == ["f1", "n1", "n2"]
    answer = json.loads(
        extender.filter_answer(args, ExtenderFilterResult(["n2", "n1"], {"f1": "no"}))
    )
    first, second, third = body["Nodes"]["items"]
    assert answer["Nodes"]["items"] == [third, second]
    assert answer["FailedNodes"] == {first["metadata"]["name"]: "no"}


def test_a_recorded_preempt_request() -> None:
    body = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": META}
    args = extender.preemption_args(encoded(body))
    assert args.pod.title == "default/e1"
    assert args.victims == {"f1": MetaVictims((MetaPod("44ba"),), 1), "f2": MetaVictims()}
    answer = ExtenderPreemptionResult({"f1": args.victims["f1"]})
    assert json.loads(extender.encode(answer)) == {"NodeNameToMetaVictims": {"f1": META["f1"]}}


def test_victims_may_be_pod_objects() -> None:
    victims = {"f1": {"Pods": [POD], "NumPDBViolations": 2}, "f2": {}}
    args = extender.preemption_args(encoded({"Pod": POD, "NodeNameToVictims": victims}))
    assert args.victims == {"f1": MetaVictims((MetaPod("9ce0"),), 2), "f2": MetaVictims()}


def test_a_recorded_bind_request() -> None:
    args = extender.binding_args(encoded(BINDING))
    assert args == ExtenderBindingArgs("e1", "default", "9ce0", "n1")
    assert json.loads(extender.encode(ExtenderBindingResult("deleted"))) == {"Error": "deleted"}


def without(body: dict[str, Any], *path: str) -> dict[str, Any]:
    first, *rest = path
    others = {key: value for key, value in body.items() if key != first}
    return {**others, first: without(body[first], *rest)} if rest else others


@pytest.mark.parametrize(
    ("decode", "body", "message"),
    [
        (extender.extender_args, without(ARGS, "Pod"), "`Pod`"),
        (extender.extender_args, {"Pod": POD}, "NodeNames"),
        (extender.extender_args, {**ARGS, "NodeNames": ["n1", 2]}, "$.NodeNames[1]"),
        (extender.extender_args, without(ARGS, "Pod", "metadata", "name"), "`name`"),
        (
            extender.extender_args,
            {**ARGS, "Pod": {**POD, "metadata": {**POD["metadata"], "uid": ""}}},
            "default/e1: metadata.uid",
        ),
        (
            extender.extender_args,
            {
                **ARGS,
                "Pod": {
                    **POD,
                    "spec": {
                        "containers": [{"name": "c", "resources": {"requests": {"cpu": "one"}}}]
                    },
                },
            },
            "default/e1: spec.containers[0].resources.requests.cpu",
        ),
        (extender.extender_args, {**node_args(), "Nodes": {"items": [{}]}}, "Nodes.items[0]"),
        (extender.preemption_args, {"Pod": POD}, "NodeNameToMetaVictims"),
        (
            extender.preemption_args,
            {"Pod": POD, "NodeNameToMetaVictims": {"f1": {"Pods": [{"UID": 1}]}}},
            "$.NodeNameToMetaVictims",
        ),
        (
            extender.preemption_args,
            {"Pod": POD, "NodeNameToVictims": {"f1": {"Pods": [{"metadata": {}}]}}},
            "$.NodeNameToVictims",
        ),
        (extender.binding_args, without(BINDING, "Node"), "`Node`"),
        (extender.binding_args, {**BINDING, "Node": "../n1"}, "Node: '../n1'"),
        (extender.binding_args, {**BINDING, "Node": "n" * 254}, "Node: 'nnn"),
        (extender.binding_args, {**BINDING, "PodName": "e1\0"}, "PodName: 'e1\\x00'"),
        (extender.binding_args, {**BINDING, "PodName": "e1\n"}, "PodName: 'e1\\n'"),
        (extender.binding_args, {**BINDING, "PodNamespace": ""}, "PodNamespace: ''"),
        (extender.binding_args, {**BINDING, "PodUID": ""}, "PodUID"),
    ],
)
def test_invalid_fields_are_named(decode: Any, body: object, message: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        decode(encoded(body))
    assert message in str(raised.value)
    assert str(raised.value).startswith("Extender")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
@pytest.mark.parametrize(
    "decode",
    [extender.extender_args, extender.preemption_args, extender.binding_args],
    ids=lambda f: f.__name__,
)
def test_other_bodies_are_rejected(decode: Any, body: bytes) -> None:
    with pytest.raises(BadRequestError, match="Extender"):
        decode(body)


LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
BODIES = {
    extender.extender_args: ARGS,
    extender.preemption_args: {"Pod": POD, "NodeNameToMetaVictims": META},
    extender.binding_args: BINDING,
}


def replaced(body: Any, path: list[int], value: object) -> Any:
    """`body` with another value at this path."""
    if not path or not isinstance(body, dict | list) or not body:
        return value
    first, *rest = path
    if isinstance(body, list):
        place = first % len(body)
        return [*body[:place], replaced(body[place], rest, value), *body[place + 1 :]]
    key = list(body)[first % len(body)]
    return {**body, key: replaced(body[key], rest, value)}


@given(st.sampled_from(list(BODIES)), st.lists(st.integers(0, 9), max_size=6), JSON)
def test_any_value_in_any_field_is_accepted_or_rejected(
    decode: Any, path: list[int], value: object
) -> None:
    with contextlib.suppress(BadRequestError):
        decode(encoded(replaced(BODIES[decode], path, value)))


@given(
    st.lists(st.text(max_size=9), max_size=9),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=9),
)
def test_a_filter_answer_has_the_nodes_and_reasons_of_the_result(
    names: list[str], reasons: dict[str, str]
) -> None:
    args = extender.extender_args(encoded(ARGS))
    answer = json.loads(extender.filter_answer(args, ExtenderFilterResult(names, reasons, reasons)))
    assert answer["NodeNames"] == names
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == reasons


@pytest.mark.parametrize(
    ("spec", "constrained"),
    [
        ({}, False),
        (
            {"affinity": {"nodeAffinity": {"x": 1}}, "volumes": [{"name": "v", "emptyDir": {}}]},
            False,
        ),
        ({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}, False),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}, True),
        ({"affinity": {"podAntiAffinity": {"x": 1}}}, True),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, True),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, True),
    ],
)
def test_a_pod_with_constraints_besides_resources_is_constrained(
    spec: dict[str, Any], constrained: bool
) -> None:
    pod = {**POD, "spec": {**POD.get("spec", {}), **spec}}
    args = extender.preemption_args(encoded({"Pod": pod, "NodeNameToMetaVictims": {}}))
    assert args.constrained is constrained
