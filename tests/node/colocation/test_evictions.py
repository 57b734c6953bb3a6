"""Evictions on a simulated node, with an API server that answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.colocation.be_suppress import Suppression
from agent.allocate.colocation.eviction import EvictionFeature, EvictionSettings, NodeAmounts
from agent.kube.errors import KubeError, TooManyRequestsError, UnreachableError
from agent.kube.events import Regarding
from agent.kube.eviction import EvictionResult
from agent.model.node_slo import NodeSlo, ResourceThreshold
from agent.model.pod.apiobjects import CONFIG_MIRROR, ApiContainer, ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node.colocation.evictions import (
    ASKED_SECONDS,
    EVICTED,
    EVICTION_REFUSED,
    REFUSED_SECONDS,
    TOLD_SECONDS,
    EvictionRequests,
    EvictionRules,
    Evictions,
    rules,
)
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.usage.pod_strategies import PodStrategies
from agent.usage.sampler import Counted
from agent.usage.strategies import Strategies
from agent.view import evictions as evictions_view
from tests.waiting import eventually

GIB = 1 << 30
BATCH = "kubernetes.io/batch-cpu"
MEMORY = ResourceThreshold(
    enable=True, memory_evict_threshold_percent=80, memory_evict_lower_percent=50
)
ALLOCATABLE = ResourceThreshold(
    enable=True,
    cpu_allocatable_evict_threshold_percent=110,
    cpu_allocatable_evict_lower_percent=100,
    allocatable_evict_priority_threshold=7999,
)
COOLING_SECONDS = 20.0


def be_pod(uid: str, *, batch_milli: int = 1000, **of_pod: Any) -> ApiPod:
    labels = {QOS_LABEL: QoS.BE.value, "koordinator.sh/eviction-enabled": "true"}
    containers = (ApiContainer("main", requests={BATCH: batch_milli}),)
    pod = ApiPod(uid, "ns", uid, "n", Phase.RUNNING, labels, {}, "besteffort", 1)
    return msgspec.structs.replace(pod, containers=containers, priority=5500, **of_pod)


class EvictionNode:
    """The node is a NodeView. Its memory is 100 GiB; each pod uses 10 GiB and one CPU."""

    def __init__(self, path: Path, features: Collection[EvictionFeature], **options: Any) -> None:
        self.path = path
        self.pods: tuple[ApiPod, ...] = ()
        self.threshold = MEMORY
        self.allocatable: Mapping[str, int] = {BATCH: 10_000}
        self.offers: Mapping[str, int] = {}
        self.used_gib: int | None = 90
        self.fresh = True
        self.now = 100.0
        self.answers: dict[str, EvictionResult | KubeError] = {}
        self.asked: list[str] = []
        self.events: list[tuple[str, str, str]] = []
        self.answering = threading.Event()
        self.answering.set()
        self.rules = EvictionRules(
            frozenset(features), EvictionSettings(2, COOLING_SECONDS), **options
        )
        self.start()

    def start(self, *, acts: bool = True) -> None:
        self.requests = EvictionRequests(self.evict)
        self.evictions = Evictions(
            self.rules,
            self,
            lambda: self.offers,
            Suppression,
            self.requests,
            lambda pod, reason, note: self.events.append((pod.name, reason, note)),
            str(self.path),
            lambda: self.now,
            acts=acts,
        )

    def evict(self, pod: Regarding) -> EvictionResult:
        self.asked.append(pod.uid)
        self.answering.wait(30)
        answer = self.answers.get(pod.uid, EvictionResult.EVICTED)
        if isinstance(answer, KubeError):
            raise answer
        return answer

    def eviction_amounts(self, window_seconds: float) -> NodeAmounts | None:
        if not self.fresh:
            return None
        capacity = {"cpu": 10_000, "memory": 100 * GIB}
        used = None if self.used_gib is None else self.used_gib * GIB
        cores = {pod.uid: 1.0 for pod in self.pods}
        return NodeAmounts(capacity, {**capacity, **self.allocatable}, 9000, used, cores)

    def used_by_pods(self, window_seconds: float) -> Mapping[str, tuple[int | None, int | None]]:
        return {pod.uid: (1000, 10 * GIB) for pod in self.pods}

    def counted(self) -> Counted:
        return Counted()

    def step(self, seconds: int, *, wait: bool = True) -> None:
        """So many seconds, each with one look, and with the end of its request if it waits."""
        for _ in range(seconds):
            self.now += 1
            strategies = Strategies(NodeSlo(resource_used_threshold_with_be=self.threshold))
            of_pods = tuple(
                ColocatedPod(pod.uid, pod.title, QoS.BE, "", {}, PodStrategies(), pod)
                for pod in self.pods
            )
            self.problem = self.evictions.wanted(Moment(of_pods, strategies)).problem
            if wait:
                eventually("the request has ended", self.idle)

    def idle(self) -> bool:
        return not any(thread.name == "eviction" for thread in threading.enumerate())


@pytest.fixture
def node(tmp_path: Path) -> EvictionNode:
    node = EvictionNode(tmp_path / "evictions.json", [EvictionFeature.BE_MEMORY])
    node.pods = (be_pod("a"), be_pod("b"), be_pod("c"), be_pod("d"))
    return node


def test_one_pod_leaves_in_a_cooling_time_and_its_event_says_why(node: EvictionNode) -> None:
    node.step(1)
    assert node.asked == [], "two rounds in a row are needed"
    node.step(int(COOLING_SECONDS) - 2)
    assert node.asked == ["d"]
    node.step(5)
    assert node.asked == ["d", "c"]
    assert node.events[0] == (
        "d",
        EVICTED,
        "BEMemoryEvict: 90 % of the node's memory is in use, and 80 % evicts. The pod is next by "
        "its priority 5500, and frees 10Gi of memory in use, where 40Gi is too much.",
    )
    assert node.evictions.measured() == (
        {"BEMemoryEvict": 4},
        {"BEMemoryEvict": 2},
        {},
    )
    node.used_gib = 49
    node.step(60)
    assert node.asked == ["d", "c"]


def test_a_pod_that_leaves_counts_as_gone(node: EvictionNode) -> None:
    node.used_gib = 80
    gone = [msgspec.structs.replace(pod, deleted=True) for pod in node.pods[:3]]
    node.pods = (*gone, node.pods[3])
    node.step(30)
    assert node.asked == []


def test_a_refused_pod_is_passed_over_for_a_while(
    node: EvictionNode, caplog: pytest.LogCaptureFixture
) -> None:
    budget = "The disruption budget web needs 2 healthy pods and has 2 currently"
    node.answers["d"] = TooManyRequestsError("429", disruption_budget=budget)
    node.step(4)
    assert node.asked == ["d", "c"]
    assert node.events[0][:2] == ("d", EVICTION_REFUSED)
    assert budget in node.events[0][2]
    assert node.evictions.measured()[2] == {"BEMemoryEvict": 1}
    assert evictions_view.read(str(node.path)).refused == {"ns/d": budget}
    node.step(int(REFUSED_SECONDS) - 20)
    assert node.asked.count("d") == 1
    assert sum(budget in record.getMessage() for record in caplog.records) == 1
    del node.answers["d"]
    node.step(60)
    assert node.asked == ["d", "c", "b", "a", "d"]


def test_an_api_server_is_not_asked_each_second_by_many_pods_with_budgets(
    node: EvictionNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.pods = tuple(be_pod(f"p{place:03}") for place in range(100))
    refuses = TooManyRequestsError("429", disruption_budget="no")
    node.answers = {pod.uid: refuses for pod in node.pods}
    node.step(600)
    assert 600 / 20 < len(node.asked) < 600 / 5
    assert len(caplog.records) == len(set(node.asked)), "each is logged once"


@pytest.mark.parametrize(
    "error", [UnreachableError("no answer"), TooManyRequestsError("too much to do")]
)
def test_who_does_not_know_the_answer_waits(node: EvictionNode, error: KubeError) -> None:
    node.answers["d"] = error
    node.step(int(COOLING_SECONDS))
    assert node.asked == ["d"]
    assert node.problem == str(error)
    assert node.events == []
    node.used_gib = 10
    node.step(1)
    assert node.problem == "", "nobody has to leave"
    node.used_gib = 90
    node.answers.clear()
    node.step(5)
    assert len(node.asked) == 2
    assert node.problem == ""


def test_a_pod_that_is_gone_has_no_event(node: EvictionNode) -> None:
    node.answers["d"] = EvictionResult.DELETED
    node.step(5)
    assert node.asked == ["d"]
    assert node.events == []


def test_an_agent_that_starts_again_evicts_no_second_pod(node: EvictionNode) -> None:
    node.answering.clear()
    node.step(2, wait=False)
    eventually("the API server is asked", lambda: node.asked)
    node.start()  # before the answer
    node.answering.set()
    node.step(int(COOLING_SECONDS) - 1)
    assert node.asked == ["d"]
    node.used_gib = 60
    node.threshold = msgspec.structs.replace(MEMORY, memory_evict_threshold_percent=60)
    node.step(int(ASKED_SECONDS) - int(COOLING_SECONDS) - 2)
    assert node.asked == ["d"], "the pod that was asked frees enough"


def test_nothing_is_evicted_without_new_values(node: EvictionNode) -> None:
    node.fresh = False
    node.step(30)
    node.fresh, node.used_gib = True, None
    node.step(30)
    assert node.asked == []


@pytest.mark.parametrize(
    ("allocatable", "offers", "evicts"),
    [
        ({}, {}, False),
        ({BATCH: 0}, {}, False),
        ({}, {BATCH: 10_000}, False),
        ({BATCH: 10_000}, {BATCH: 0}, False),
        ({BATCH: 10_000}, {}, False),
        ({BATCH: 3_000}, {}, True),
        ({BATCH: 0}, {BATCH: 0}, True),
    ],
)
def test_withdrawn_batch_resources_evict_nobody(
    tmp_path: Path, allocatable: dict[str, int], offers: dict[str, int], *, evicts: bool
) -> None:
    node = EvictionNode(tmp_path / "evictions.json", [EvictionFeature.CPU_ALLOCATABLE])
    node.threshold, node.allocatable, node.offers = ALLOCATABLE, allocatable, offers
    node.pods = tuple(map(be_pod, "abcd"))
    node.step(5)
    assert bool(node.asked) is evicts


def test_an_agent_that_observes_evicts_nobody(
    node: EvictionNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.start(acts=False)
    node.step(10)
    assert node.asked == []
    assert [record.getMessage() for record in caplog.records] == [
        "pod ns/d would be evicted by BEMemoryEvict: 90 % of the node's memory is in use, and 80 % "
        "evicts. The pod is next by its priority 5500, and frees 10Gi of memory in use, where 40Gi "
        "is too much."
    ]
    told = evictions_view.read(str(node.path))
    assert told.next_pod == "ns/d"
    assert not told.acts


def test_nothing_is_evicted_by_features_that_are_off(tmp_path: Path, node: EvictionNode) -> None:
    off = EvictionNode(tmp_path / "off.json", ())
    off.pods = node.pods
    off.step(10)
    node.threshold = msgspec.structs.replace(MEMORY, enable=False)
    node.step(10)
    assert off.asked == node.asked == []


def test_what_can_not_be_remembered_does_not_happen(node: EvictionNode) -> None:
    node.path.mkdir()
    node.step(10)
    assert node.asked == []
    assert node.problem.startswith("no pod is evicted: ")


def test_people_are_told_what_is_next_and_which_pods_never_leave(node: EvictionNode) -> None:
    critical = be_pod("critical")
    node.pods = (
        be_pod("a"),
        msgspec.structs.replace(critical, priority=2_000_000_000),
        msgspec.structs.replace(be_pod("own"), annotations={CONFIG_MIRROR: "x"}),
        msgspec.structs.replace(be_pod("service"), labels={}),
    )
    node.step(int(TOLD_SECONDS) + 1)
    told = evictions_view.read(str(node.path))
    assert {title: evictions_view.of_pod(told, title) for title in told.pods} == {
        "ns/a": "It is leaving.",
        "ns/critical": "It is never evicted: it is critical.",
        "ns/own": "It is never evicted: it is static.",
        "ns/service": "It is not evicted: it is not BE, or no feature for BE pods is on, and its "
        'label koordinator.sh/eviction-enabled is not "true".',
    }
    (feature,) = told.features
    assert feature.level == (
        "90 % of the node's memory is in use; from 80 % it evicts, until less than 50 %"
    )


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "priority": st.sampled_from([0, 5500, 1_999_999_999, 2_000_000_000, 2_000_001_000]),
                "annotations": st.just({CONFIG_MIRROR: "x"}),
                "controlling_node": st.just("n"),
                "deleted": st.booleans(),
            },
        ),
        max_size=5,
    )
)
def test_static_mirror_and_critical_pods_are_never_asked(
    tmp_path_factory: pytest.TempPathFactory, pods: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("evictions") / "evictions.json"
    node = EvictionNode(path, EvictionFeature)
    node.threshold = msgspec.structs.replace(
        ALLOCATABLE,
        memory_evict_threshold_percent=80,
        memory_evict_lower_percent=10,
        evict_enabled_priority_threshold=(1 << 31) - 1,
        cpu_evict_threshold_percent=50,
    )
    node.allocatable = {BATCH: 1}
    node.pods = tuple(
        msgspec.structs.replace(be_pod(f"p{place}"), **of_pod) for place, of_pod in enumerate(pods)
    )
    for _ in range(len(pods) + 1):
        node.step(2)
        node.now += COOLING_SECONDS
    by_uid = {pod.uid: pod for pod in node.pods}
    for uid in node.asked:
        pod = by_uid[uid]
        assert not pod.mirror
        assert not pod.controlling_node
        assert not pod.deleted
        assert (pod.priority or 0) < 2_000_000_000
    assert len(node.asked) == len(set(node.asked))


def test_an_agent_without_threads_or_with_a_bug_in_a_request_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def bug(_: Regarding) -> EvictionResult:
        raise AttributeError("of a bug")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    node = EvictionNode(tmp_path / "evictions.json", [EvictionFeature.BE_MEMORY])
    node.pods = tuple(be_pod(f"p{place}") for place in range(3))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        node.step(2)
    node.step(1)
    assert node.problem == "can't start new thread"
    node.requests._evict = bug
    node.step(int(COOLING_SECONDS) + 2)
    assert node.problem == "the request has ended without an answer"
    node.requests._evict = node.evict
    node.step(int(COOLING_SECONDS) + 2)
    assert len(node.asked) == 1


def test_the_settings_name_features() -> None:
    settings = AgentSettings(
        evictions="BEMemoryEvict, CPUPressureEvict", evict_by="deletion", eviction_rounds=5
    )
    of_settings = rules(settings)
    assert of_settings.features == {EvictionFeature.BE_MEMORY, EvictionFeature.CPU_PRESSURE}
    assert of_settings.kills
    assert of_settings.settings == EvictionSettings(5, 20.0)
    assert rules(AgentSettings()).features == frozenset()
    with pytest.raises(SettingsError, match="'All' is not one of BECPUEvict"):
        rules(AgentSettings(evictions="All"))
    with pytest.raises(SettingsError, match="evict-memory-pressure-lower-percent 30 is not below"):
        rules(AgentSettings(evict_memory_pressure_lower_percent=30))
