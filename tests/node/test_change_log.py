from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.cpu_claims import ClaimRefusal, RefusalCause
from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.kube.events import Regarding
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Condition, Device
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner
from agent.node.change_log import (
    AGENT_NOT_READY,
    CLAIM_NOT_HONORED,
    CPU_OVERLAP,
    CPUS_ASSIGNED,
    CPUS_CHANGED,
    CPUS_RELEASED,
    DELAY_SECONDS,
    DEVICE_UNHEALTHY,
    DISTURBED,
    DISTURBED_SECONDS,
    INVALID_ANNOTATION,
    INVALID_NODE,
    KUBELET_INCOMPATIBLE,
    KUBELET_POLICY_CHANGED,
    LASTING_SECONDS,
    NO_CPUS_ALLOCATED,
    NODE_CPUS_CHANGED,
    PAUSE_SECONDS,
    REPEAT_SECONDS,
    SOURCE_UNREADABLE,
    ChangeRecorder,
    DeviceFaults,
    NodeNotes,
    PodEvents,
    node_changes,
    node_faults,
    node_state,
)
from agent.node.sources import SourceName
from agent.node.violations import Shortfall, Unallocated
from agent.telemetry.metrics import AgentMetrics
from tests.builders import machine, pod
from tests.node.world import Recorded


def test_container_that_stays_without_a_cgroup_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = AgentMetrics()
    recorder = ChangeRecorder(metrics)

    def errors_and_metric(titles: dict[str, str], now: float) -> tuple[int, bool]:
        """The number of lines that this pass logs, and whether the metric counts a container."""
        caplog.clear()
        recorder.without_cgroup(titles, now)
        lines = [each for each in caplog.records if each.levelno == logging.ERROR]
        return len(lines), "topolet_containers_without_cgroup 1" in metrics.render()

    assert errors_and_metric({"a": "x main"}, 10.0) == (0, False)
    assert errors_and_metric({"a": "x main"}, 10.5) == (0, False)
    assert errors_and_metric({}, 10.6) == (0, False)
    assert errors_and_metric({"a": "x main"}, 11.5) == (0, False)
    assert errors_and_metric({"a": "x main"}, 12.5) == (1, True)
    assert errors_and_metric({"a": "x main"}, 13.0) == (0, True)
    assert errors_and_metric({}, 13.5) == (0, False)


def test_owner_of_an_offline_cpu_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = AgentMetrics()
    recorder = ChangeRecorder(metrics)
    owner = pod("a", "LSE", "1-2")
    for offline in ("2", "2", ""):
        topology = machine(offline=offline)
        decision = decide(topology, (owner,), KubeletCpus(), {"a": CpuSet([1, 2])}, {})
        recorder.export(decision)
        recorder.decided((owner,), decision, decision.owners, {})
        assert (
            'topolet_exclusive_cpus_offline{namespace="ns",pod="a"} 1' in metrics.render()
        ) == bool(offline)
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == ["pod ns/a: CPUs 2 of its own are offline"]


def test_faults_of_the_node_are_events_again_while_they_last() -> None:
    recorded, now = Recorded(), [0.0]
    events = PodEvents(recorded, lambda: now[0])
    about = Regarding("", "n", "uid-n", "Node")
    for now[0], faults, count in (
        (0.0, ["label a: x"], 1),
        (1.0, ["label a: x"], 1),
        (2.0, ["label a: x", "label b: y"], 1),
        (PAUSE_SECONDS, ["label a: x", "label b: y"], 2),
        (PAUSE_SECONDS + 1, [], 2),
        (PAUSE_SECONDS + 2, ["label a: x", "label b: y"], 2),
        (PAUSE_SECONDS + REPEAT_SECONDS, ["label a: x", "label b: y"], 3),
    ):
        notes = {INVALID_NODE: "; ".join(faults)} if faults else {}
        events.record((), (), (), (), {}, node=NodeNotes("n", "uid-n", notes))
        assert len(recorded.events) == count
    assert recorded.events[:2] == [
        (about, INVALID_NODE, "label a: x"),
        (about, INVALID_NODE, "label a: x; label b: y"),
    ]


def test_owner_class_without_cpus_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = AgentMetrics()
    recorder = ChangeRecorder(metrics)
    found = (Unallocated("a", "ns/a", QoS.LSR),)
    for unallocated, count in ((found, 1), (found, 1), ((), 0), (found, 1)):
        recorder.unallocated(unallocated)
        assert f"topolet_pods_without_allocated_cpus {count}" in metrics.render()
    text = "pod ns/a: no scheduler allocated CPUs to this LSR pod, so it shares the pool"
    assert caplog.messages == [text] * 2


class SimulatedEvents:
    """Events of the pods `a` to `d` of the API server, with a simulated clock."""

    def __init__(self, phase: Phase = Phase.RUNNING) -> None:
        self.now = 1000.0
        self.recorded: list[tuple[float, str, str, str]] = []
        self.known = {
            uid: ApiPod(uid, "ns", uid, "n", phase, {}, {}, None, 1, scheduler="default-scheduler")
            for uid in "abcd"
        }
        self._events = PodEvents(self, lambda: self.now)

    def record(self, regarding: Regarding, reason: str, note: str) -> None:
        self.recorded.append((self.now, regarding.uid, reason, note))

    def inform(self, regarding: Regarding, reason: str, note: str) -> None:
        self.record(regarding, reason, note)

    def owners(self, **cpus: str) -> list[tuple[str, str, str]]:
        """The normal Events of a pass after which the pods own these CPUs, by uid."""
        before = len(self.recorded)
        owners = [Owner(uid, f"ns/{uid}", QoS.LSE, each) for uid, each in cpus.items()]
        self._events.owners(owners, self.known)
        return [each[1:] for each in self.recorded[before:]]

    def run_pass(
        self,
        *,
        shortfalls: tuple[Shortfall, ...] = (),
        refusals: tuple[ClaimRefusal, ...] = (),
        unallocated: tuple[Unallocated, ...] = (),
        created: str = "abcd",
        disturbed: Mapping[str, list[str]] = MappingProxyType({}),
    ) -> list[tuple[str, str, str]]:
        """The Events of one pass."""
        before = len(self.recorded)
        self._events.record(
            shortfalls, refusals, unallocated, set(created), self.known, disturbed=disturbed
        )
        return [each[1:] for each in self.recorded[before:]]


def shortfall(uid: str, container: str = "main", held: str = "") -> Shortfall:
    return Shortfall(uid, f"ns/{uid}", container, "2-3", held, "why")


def refusal(uid: str, claimed: str = "2-3", held: str = "") -> ClaimRefusal:
    return ClaimRefusal(uid, f"ns/{uid}", RESOURCE_STATUS, RefusalCause.OWNED, "why", claimed, held)


def test_one_event_for_each_pod_and_reason() -> None:
    simulated = SimulatedEvents()
    shortfalls = shortfall("a"), shortfall("a", "other")
    events = simulated.run_pass(
        shortfalls=shortfalls,
        refusals=(refusal("a"), refusal("b", held="4-5"), refusal("c", "")),
        unallocated=(Unallocated("d", "ns/d", QoS.LSE),),
    )
    assert events == [
        ("a", CLAIM_NOT_HONORED, f"{shortfalls[0].text}; {shortfalls[1].text}"),
        (
            "b",
            CLAIM_NOT_HONORED,
            f"annotation {RESOURCE_STATUS} claims CPUs 2-3: why; it keeps CPUs 4-5",
        ),
        ("c", INVALID_ANNOTATION, f"annotation {RESOURCE_STATUS}: why"),
        (
            "d",
            NO_CPUS_ALLOCATED,
            "no scheduler allocated CPUs to this LSE pod, so it shares the pool; "
            "spec.schedulerName: default-scheduler",
        ),
    ]
    assert simulated.run_pass(shortfalls=shortfalls) == []


def test_an_event_is_repeated_while_its_cause_lasts() -> None:
    simulated = SimulatedEvents()
    assert simulated.run_pass(shortfalls=(shortfall("a"),))
    simulated.now += REPEAT_SECONDS - 1
    assert simulated.run_pass(shortfalls=(shortfall("a"),)) == []
    simulated.now += 1
    assert simulated.run_pass(shortfalls=(shortfall("a"),))


def test_a_pod_that_is_disturbed_gets_an_event_when_it_lasts_whatever_the_amounts_are() -> None:
    simulated = SimulatedEvents()
    for _ in range(3):
        assert simulated.run_pass(disturbed={"a": [f"a waited {simulated.now} ms"]}) == []
        simulated.now += DISTURBED_SECONDS / 3
    (event,) = simulated.run_pass(disturbed={"a": ["a waited 9 ms"]})
    assert event == ("a", DISTURBED, "a waited 9 ms")
    for _ in range(2):
        simulated.now += PAUSE_SECONDS
        assert simulated.run_pass(disturbed={"a": [f"a waited {simulated.now} ms"]}) == []
    simulated.now += REPEAT_SECONDS
    assert simulated.run_pass(disturbed={"a": ["a waited 8 ms"], "gone": ["x"]})


def test_a_claim_of_a_pod_without_containers_gets_an_event_if_its_refusal_lasts() -> None:
    """The previous owner of the CPUs may still be terminating."""
    simulated = SimulatedEvents()
    for _ in range(3):
        assert simulated.run_pass(refusals=(refusal("a"),), created="") == []
        simulated.now += LASTING_SECONDS / 3
    ((uid, reason, _),) = simulated.run_pass(refusals=(refusal("a"),), created="")
    assert (uid, reason) == ("a", CLAIM_NOT_HONORED)
    assert simulated.run_pass(refusals=(refusal("b"),), created="") == []
    assert simulated.run_pass(created="") == []
    simulated.now += LASTING_SECONDS
    assert simulated.run_pass(refusals=(refusal("b"),), created="") == [], (
        "it was honoured meanwhile"
    )


def test_a_pod_that_ended_or_is_unknown_gets_no_event() -> None:
    simulated = SimulatedEvents(Phase.SUCCEEDED)
    assert simulated.run_pass(shortfalls=(shortfall("a"), shortfall("z"))) == []


passes = st.tuples(
    st.floats(0.1, 100),
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "2", "3"])), max_size=3),
    st.booleans(),
)


@given(st.lists(passes, max_size=40))
def test_events_of_one_pod_and_reason_keep_the_minimum_interval(
    history: list[tuple[float, list[tuple[str, str]], bool]],
) -> None:
    simulated = SimulatedEvents()
    for seconds, short, refused in history:
        simulated.now += seconds
        refusals = (refusal("a"), refusal("c", "")) if refused else ()
        simulated.run_pass(
            shortfalls=tuple(shortfall(uid, held=held) for uid, held in short), refusals=refusals
        )
    times: dict[tuple[str, str], list[float]] = {}
    for at, uid, reason, _ in simulated.recorded:
        times.setdefault((uid, reason), []).append(at)
    for each in times.values():
        gaps = [later - earlier for earlier, later in pairwise(each)]
        assert all(gap >= PAUSE_SECONDS for gap in gaps)


def test_cpus_that_a_pod_gets_exchanges_and_loses_are_normal_events() -> None:
    simulated = SimulatedEvents()
    assert simulated.owners(a="0-1") == []
    assert simulated.owners(a="0-1", b="2-3") == [("b", CPUS_ASSIGNED, "owns CPUs 2-3")]
    assert simulated.owners(a="0-1", b="2-5") == []
    simulated.now += LASTING_SECONDS - 1
    assert simulated.owners(a="0-1", b="4-5") == []
    simulated.now += 1
    assert simulated.owners(a="0-1", b="4-5") == [("b", CPUS_CHANGED, "owns CPUs 4-5; it had 2-3")]
    assert simulated.owners(b="4-5") == []
    simulated.now += LASTING_SECONDS
    assert simulated.owners(b="4-5") == [("a", CPUS_RELEASED, "owns no CPUs; it had 0-1")]
    assert simulated.owners(b="4-5") == []


def test_a_short_change_of_cpus_makes_no_event() -> None:
    simulated = SimulatedEvents()
    simulated.owners(a="0-1")
    simulated.owners(a="0-3")
    simulated.now += LASTING_SECONDS - 1
    assert simulated.owners(a="0-1") == []
    simulated.now += LASTING_SECONDS
    assert simulated.owners(a="0-3") == []


def test_the_end_of_an_owner_makes_no_event() -> None:
    simulated = SimulatedEvents(Phase.SUCCEEDED)
    simulated.owners(a="0-1", ended="2-3")
    simulated.now += LASTING_SECONDS
    assert simulated.owners() == []
    simulated.now += LASTING_SECONDS
    assert simulated.owners() == []


def test_an_owner_whose_cpus_are_all_offline_owns_none_and_may_end() -> None:
    simulated = SimulatedEvents()
    assert simulated.owners(a="0-1", b="") == []
    for _ in range(2):
        assert simulated.owners(a="", b="", c="") == []
        simulated.now += LASTING_SECONDS / 2
    assert simulated.owners(a="", b="", c="") == [("a", CPUS_RELEASED, "owns no CPUs; it had 0-1")]
    simulated.known = {}
    assert simulated.owners() == []


def test_an_owner_gets_its_event_once_the_api_server_reports_its_pod() -> None:
    simulated = SimulatedEvents()
    simulated.owners()
    known, simulated.known = simulated.known, {}
    assert simulated.owners(a="0-1") == []
    simulated.known = known
    assert simulated.owners(a="0-1") == [("a", CPUS_ASSIGNED, "owns CPUs 0-1")]


ABOUT = Regarding("", "n", "uid-n", "Node")
NONE = KubeletConfiguration("kubelet 1")
STATIC = KubeletConfiguration("kubelet 1", cpu_manager_policy="static")


def test_a_node_without_faults_has_no_notes() -> None:
    healthy = Device("gpu", "GPU-1", 0, {})
    assert node_faults((), {}, (), DeviceFaults([healthy])) == {}


def test_each_fault_of_a_node_has_its_reason() -> None:
    lost = Condition("Healthy", "False", "NotEnumerated", "the driver does not list the card", "")
    sources = {
        SourceName.NODE_OBJECT: ("node n: label a",),
        SourceName.KUBELET_COMBINATION: ("both would write cpuset.mems",),
        SourceName.JOURNAL: ("a line is damaged",),
        SourceName.CPU_MANAGER_STATE: ("its checksum is wrong",),
    }
    devices = DeviceFaults(
        [Device("gpu", "GPU-1", 3, {}, healthy=False, conditions=(lost,))], ["0000:01:00.0"], "nvml"
    )
    assert node_faults(["label a: x"], sources, ["pod a/b runs on CPUs 1 of pod c/d"], devices) == {
        INVALID_NODE: "label a: x",
        KUBELET_INCOMPATIBLE: "both would write cpuset.mems",
        SOURCE_UNREADABLE: "cpu-manager-state: its checksum is wrong; journal: a line is damaged",
        CPU_OVERLAP: "pod a/b runs on CPUs 1 of pod c/d",
        DEVICE_UNHEALTHY: "gpu 3 (GPU-1) is not healthy: the driver does not list the card; "
        "the driver does not list the GPU at 0000:01:00.0; the GPU driver can't be read: nvml",
    }


def test_a_note_names_the_first_faults_and_the_number_of_the_others() -> None:
    note = node_faults((), {}, [f"overlap {each}" for each in range(20)], DeviceFaults())[
        CPU_OVERLAP
    ]
    assert note.endswith("overlap 7; and 12 more")


def test_another_policy_of_the_kubelet_and_other_cpus_are_changes() -> None:
    before, after = node_state(machine(2, 2), NONE), node_state(machine(2, 2, offline="3"), STATIC)
    found = node_changes(before, after)
    assert found[NODE_CPUS_CHANGED].startswith("CPUs 0-1 on NUMA node 0, 2 on NUMA node 1")
    assert "before: CPUs 0-1 on NUMA node 0, 2-3 on NUMA node 1" in found[NODE_CPUS_CHANGED]
    assert found[KUBELET_POLICY_CHANGED].startswith("cpuManagerPolicy static,")
    assert "before: cpuManagerPolicy none," in found[KUBELET_POLICY_CHANGED]


def test_a_configuration_that_becomes_known_is_not_a_change() -> None:
    assert node_changes(node_state(machine(2, 2), None), node_state(machine(2, 2), STATIC)) == {}
    assert node_changes(node_state(machine(2, 2), STATIC), node_state(machine(2, 2), None)) == {}
    assert node_changes({}, node_state(machine(2, 2), STATIC)) == {}


def test_changes_of_a_node_are_normal_events_one_for_all_within_a_minute() -> None:
    recorded, now = Recorded(), [0.0]
    events = PodEvents(recorded, lambda: now[0])

    def run_pass(at: float, kubelet: KubeletConfiguration | None, offline: str = "") -> list[str]:
        now[0] = at
        recorded.normal.clear()
        state = node_state(machine(2, 2, offline=offline), kubelet)
        events.record((), (), (), (), {}, node=NodeNotes("n", "uid-n", {}, state))
        assert all(about == ABOUT for about, _, _ in recorded.normal)
        return [reason for _, reason, _ in recorded.normal]

    assert run_pass(0, NONE) == []
    assert run_pass(1, STATIC) == [KUBELET_POLICY_CHANGED]
    assert run_pass(2, None) == []
    assert run_pass(3, STATIC, "3") == [NODE_CPUS_CHANGED]
    assert run_pass(4, STATIC, "2-3") == []
    assert run_pass(5, STATIC, "3") == [], "the state is that of the last Event"
    assert run_pass(6, STATIC) == []
    assert run_pass(3 + PAUSE_SECONDS, STATIC) == [NODE_CPUS_CHANGED]
    assert run_pass(4 + PAUSE_SECONDS, STATIC) == []
    assert recorded.events == []


def test_a_change_before_the_node_is_known_is_recorded_when_it_is() -> None:
    recorded = Recorded()
    events = PodEvents(recorded, lambda: 0.0)
    notes = {DEVICE_UNHEALTHY: "gpu 0"}
    for kubelet, uid in ((NONE, ""), (STATIC, ""), (STATIC, "uid-n"), (STATIC, "uid-n")):
        node = NodeNotes("n", uid, notes, node_state(machine(2, 2), kubelet))
        events.record((), (), (), (), {}, node=node)
    ((about, reason, _),) = recorded.normal
    assert (about, reason) == (ABOUT, KUBELET_POLICY_CHANGED)
    assert recorded.events == [], "the fault is too recent"


def test_a_pass_that_fails_for_a_while_is_reported_and_leaves_other_causes() -> None:
    recorded, now = Recorded(), [0.0]
    events = PodEvents(recorded, lambda: now[0])
    invalid = NodeNotes("n", "uid-n", {INVALID_NODE: "label a"})
    failed = NodeNotes("n", "uid-n", {AGENT_NOT_READY: "No space left on device"})
    events.record((), (), (), (), {}, node=invalid)
    for now[0] in (1.0, 5.0, 12.0, 14.0):
        events.failed(failed)
    now[0] = 15.0
    events.record((), (), (), (), {}, node=invalid)
    assert [reason for _, reason, _ in recorded.events] == [INVALID_NODE, AGENT_NOT_READY]
    assert recorded.events[1] == (ABOUT, AGENT_NOT_READY, "No space left on device")
    PodEvents(None).failed(failed)


@given(st.lists(st.sets(st.sampled_from([1, 2, 3])), min_size=1, max_size=20))
def test_the_last_event_of_a_node_has_its_state(offline: list[set[int]]) -> None:
    """After any sequence of changes, the Events of a pass a minute later are up to date."""
    recorded, now = Recorded(), [0.0]
    events = PodEvents(recorded, lambda: now[0])
    states = [node_state(machine(2, 2, offline=str(CpuSet(each))), STATIC) for each in offline]
    for each in [*states, states[-1], states[-1]]:
        events.record((), (), (), (), {}, node=NodeNotes("n", "uid-n", {}, each))
        now[0] += PAUSE_SECONDS / 3
    now[0] += PAUSE_SECONDS
    events.record((), (), (), (), {}, node=NodeNotes("n", "uid-n", {}, states[-1]))
    if recorded.normal:
        assert recorded.normal[-1][2].startswith(states[-1][NODE_CPUS_CHANGED] + "; before")
    else:
        assert states[-1] == states[0]


def test_every_reason_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    for reason in (*DELAY_SECONDS, NODE_CPUS_CHANGED, KUBELET_POLICY_CHANGED):
        assert f"| `{reason}` |" in page
