from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.kube.events import Regarding
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Condition, Device
from agent.node.change_log import (
    AGENT_NOT_READY,
    CPU_OVERLAP,
    DELAY_SECONDS,
    DEVICE_UNHEALTHY,
    INVALID_NODE,
    KUBELET_INCOMPATIBLE,
    KUBELET_POLICY_CHANGED,
    NODE_CPUS_CHANGED,
    PAUSE_SECONDS,
    SOURCE_UNREADABLE,
    DeviceFaults,
    NodeNotes,
    PodEvents,
    node_changes,
    node_faults,
    node_state,
)
from agent.node.sources import SourceName
from tests.builders import machine
from tests.node.world import Recorded

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
