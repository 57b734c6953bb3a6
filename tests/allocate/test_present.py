from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate import present as rule
from agent.allocate.present import coming, in_api, metadata_by_uid, vouched
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC, RESOURCE_STATUS
from agent.model.pod.apiobjects import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    ApiContainer,
    ApiNode,
    ApiPod,
    Phase,
)
from agent.model.pod.pods import Container, ContainerState, Pod, PodMetadata
from agent.model.pod.qos import QOS_LABEL


def api_pod(
    uid: str, phase: Phase = Phase.RUNNING, *, name: str = "", deleted: bool = False
) -> ApiPod:
    return ApiPod(
        uid,
        "ns",
        name or uid,
        "n",
        phase,
        {},
        {RESOURCE_STATUS: "api"},
        "guaranteed",
        5,
        deleted=deleted,
    )


def running(uid: str, name: str = "") -> Pod:
    container = Container("c-" + uid, "main", ContainerState.RUNNING)
    return Pod(uid, "ns", name or uid, {}, {RESOURCE_STATUS: "runtime"}, None, 3, (container,))


def present(api: list[ApiPod], runtime: list[Pod]) -> tuple[Pod, ...]:
    return rule.present(api, runtime, metadata_by_uid(api))


def test_annotations_are_the_apis_and_containers_the_runtimes() -> None:
    (pod,) = present([api_pod("a")], [running("a")])
    assert (pod.annotations, pod.created_at) == ({RESOURCE_STATUS: "api"}, 3)
    assert pod.containers == running("a").containers


@pytest.mark.parametrize(
    "pod",
    [
        api_pod("a", Phase.SUCCEEDED),
        api_pod("a", Phase.FAILED),
        api_pod("a", deleted=True),
        api_pod("a", Phase.FAILED, deleted=True),
    ],
)
def test_an_ended_pod_is_present_until_the_runtime_removes_it(pod: ApiPod) -> None:
    assert [each.uid for each in present([pod], [running("a")])] == ["a"]
    assert present([pod], []) == ()


def test_a_pod_deleted_from_the_api_is_present_until_the_runtime_removes_it() -> None:
    assert present([], [running("a")]) == (running("a"),)


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RUNNING, Phase.UNKNOWN])
def test_a_pod_is_present_before_the_runtime_has_it(phase: Phase) -> None:
    (pod,) = present([api_pod("a", phase)], [])
    assert (pod.uid, pod.containers, pod.created_at) == ("a", (), 5)
    assert not coming(msgspec.structs.replace(api_pod("a", phase), node=""))


def test_two_pods_with_one_name_are_separate() -> None:
    old, new = running("old", "web-0"), api_pod("new", Phase.PENDING, name="web-0")
    pods = present([new], [old])
    assert [each.uid for each in pods] == ["new", "old"]
    assert pods[1].annotations == {RESOURCE_STATUS: "runtime"}, "not those of the new pod"


def test_a_static_pod_and_its_mirror_are_one_and_the_mirrors_annotations_are_ignored() -> None:
    marks = {CONFIG_MIRROR: "hash", CONFIG_HASH: "hash", RESOURCE_STATUS: "api"}
    mirror = msgspec.structs.replace(api_pod("api-uid"), annotations=marks)
    named = msgspec.structs.replace(running("hash", "api-uid"), named=())
    assert present([mirror], [running("hash", "api-uid")]) == (named,)
    (waiting,) = present([mirror], [])
    assert waiting.uid == "hash"


def mirror_of(victim: str, uid: str, name: str = "", node: str = "n-uid") -> ApiPod:
    marks = {CONFIG_MIRROR: victim, CONFIG_HASH: victim}
    containers = (ApiContainer("main", {"cpu": 2000}, {"cpu": 4000}),)
    return msgspec.structs.replace(
        api_pod(uid, name=name),
        annotations=marks,
        labels={QOS_LABEL: "LSR"},
        containers=containers,
        controlling_node=node,
    )


def by_uid(*pods: ApiPod) -> dict[str, ApiPod]:
    return {each.uid: each for each in pods}


def test_a_forged_mirror_pod_does_not_change_the_pod_whose_uid_it_names() -> None:
    """Its name differs from that of the runtime's pod, even if the Node controls it."""
    victim, fake = running("victim"), mirror_of("victim", "fake")
    assert present([fake], [victim]) == (victim,)
    assert in_api([victim], [fake]) == {}
    assert in_api([victim], [fake, api_pod("victim")]) == {"victim": api_pod("victim")}
    real = mirror_of("victim", "real", "victim")
    assert in_api([victim], [fake, real]) == in_api([victim], [real, fake]) == {"victim": real}


def test_a_mirror_pod_that_its_node_does_not_control_is_ignored() -> None:
    node = ApiNode("n-uid")
    real, other = mirror_of("a", "real"), mirror_of("b", "other", node="another-uid")
    forged = mirror_of("c", "forged", node="")
    plain = api_pod("plain")
    assert vouched(by_uid(real, other, forged, plain), node) == by_uid(real, plain)
    for unknown in (None, ApiNode()):
        assert vouched(by_uid(real, forged, plain), unknown) == by_uid(real, plain)


@pytest.mark.parametrize("uid", ["", "x" * 256])
def test_a_mirror_pod_whose_uid_no_folder_can_have_is_ignored(uid: str) -> None:
    """The agent keeps files by the uid, and would fail for all pods."""
    assert vouched(by_uid(mirror_of(uid, "forged")), ApiNode("n-uid")) == {}


def test_a_mirror_pod_does_not_count_if_another_pod_has_its_uid() -> None:
    node = ApiNode("n-uid")
    one, two = mirror_of("a", "one"), mirror_of("a", "two")
    plain, fake = api_pod("plain"), mirror_of("plain", "fake")
    assert vouched(by_uid(one, two, plain, fake), node) == by_uid(plain)
    assert vouched(by_uid(one, mirror_of("a", "forged", node="")), node) == by_uid(one)


def test_only_metadata_that_decisions_read_is_merged() -> None:
    pod = running("a")
    pod = msgspec.structs.replace(pod, labels={QOS_LABEL: "LS", "app": "x"})
    (joined,) = rule.present([], [pod], {"a": PodMetadata({QOS_LABEL: "LSR"}, {})})
    assert joined.labels == {QOS_LABEL: "LSR", "app": "x"}
    assert joined.annotations == {}


pods = st.builds(api_pod, st.sampled_from("abc"), st.sampled_from(Phase), deleted=st.booleans())


@given(st.lists(pods, unique_by=lambda each: each.uid), st.sets(st.sampled_from("abcd")))
def test_every_running_pod_is_present_in_any_order_of_reports(
    api: list[ApiPod], uids: set[str]
) -> None:
    runtime = [running(uid) for uid in sorted(uids)]
    found = present(api, runtime)
    assert uids <= {each.uid for each in found}
    assert found == present(api[::-1], runtime[::-1])


def test_a_limit_that_differs_is_known_by_every_source() -> None:
    labels = {QOS_LABEL: "LSR"}
    containers = (ApiContainer("main", {"cpu": 2000}, {"cpu": 4000}),)
    unequal = msgspec.structs.replace(api_pod("a"), labels=labels, containers=containers)
    text = "container main: requests.cpu is 2, limits.cpu is 4"
    assert [each.unequal for each in present([unequal], [])] == [text]
    assert [each.unequal for each in present([unequal], [running("a")])] == [text]
    # The pod is removed from the API, or the API server is unavailable.
    (kept,) = rule.present([], [running("a")], metadata_by_uid([unequal]))
    assert kept.unequal == text
    mirror = msgspec.structs.replace(unequal, annotations={CONFIG_MIRROR: "a", CONFIG_HASH: "a"})
    assert [each.unequal for each in present([mirror], [running("a")])] == [text]
    # The API server has the amounts of each container, a sandbox only sums.
    summed = msgspec.structs.replace(running("a"), unequal="its sandbox: ...")
    assert [each.unequal for each in present([api_pod("a")], [summed])] == [""]
    assert [each.unequal for each in present([], [summed])] == ["its sandbox: ..."]


def test_batch_amounts_beyond_the_spec_are_known_by_every_source() -> None:
    text = '{"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "2000"}}}}'
    containers = (ApiContainer("main", {"kubernetes.io/batch-cpu": 1000}, {}),)
    notes = {EXTENDED_RESOURCE_SPEC: text}
    beyond = msgspec.structs.replace(api_pod("a"), annotations=notes, containers=containers)
    (kept,) = rule.present([], [running("a")], metadata_by_uid([beyond]))
    for each in (*present([beyond], []), *present([beyond], [running("a")]), kept):
        assert each.batch_excess.startswith("containers.main.requests.kubernetes.io/batch-cpu")
    unread = msgspec.structs.replace(beyond, annotations={EXTENDED_RESOURCE_SPEC: "x"})
    assert present([unread], [])[0].batch_excess == ""
