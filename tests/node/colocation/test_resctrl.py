"""Classes and pods in groups of resctrl: real threads in real cgroups, and the rules of the
kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.allocate.colocation import resctrl as groups
from agent.allocate.colocation.resctrl import CacheWays, MemoryBandwidth, ResctrlMachine
from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers, Handles, Hierarchy, mounted
from agent.cgroup.journal import Journal
from agent.cgroup.resctrl import FOLDER, ControlGroups
from agent.cri.client import Cri
from agent.host.files import Tree
from agent.model.node_slo import NodeSlo, QosClass, ResctrlQos, ResourceQos
from agent.model.pod.annotations import RESCTRL
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import KubeClass
from agent.model.settings.agent import RestoreSettings
from agent.model.snapshot import PodWanted, Wanted
from agent.node import originals
from agent.node.colocation.koordlet import KoordletTakeover
from agent.node.colocation.resctrl import RETRY_SECONDS, CacheAndBandwidth, machine
from agent.node.enforcement import Enforcement, Freed
from agent.node.features import CHECK_SECONDS
from agent.node.runtime_view import RuntimeState
from agent.usage import COLOCATION_FILE
from agent.usage.strategies import Strategies
from agent.view import colocation
from tests.builders import machine as machine_of
from tests.cgroup.real_groups import RealGroups
from tests.cgroup.resctrl_kernel import INTEL, OF_INTEL, MountedResctrl, ResctrlKernel
from tests.node.colocation.colocated import ColocatedNode

ROOT: Final = "/sys/fs/cgroup"
BATCH: Final = ResctrlQos(enable=True, cat_range_end_percent=30, mba_percent=35)
PART: Final = "L3:0=f;1=f MB:0=40;1=40"
OWN: Final = {RESCTRL: '{"llc": {"schemata": {"range": [0, 50]}}, "mb": {"schemata": {}}}'}
OF_OWN: Final = "L3:0=3f;1=3f MB:0=100;1=100"


def strategies(**classes: ResctrlQos) -> Strategies:
    of_classes = {name: QosClass(resctrl_qos=qos) for name, qos in classes.items()}
    return Strategies(NodeSlo(resource_qos_strategy=ResourceQos(**of_classes)))


class ResctrlNode(ColocatedNode):
    """Pods with a process in the cgroup of each container and sandbox."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        (folder / FOLDER).mkdir(parents=True)
        self.kernel = ResctrlKernel(OF_INTEL, INTEL)
        self.mount = MountedResctrl(folder / FOLDER, self.kernel)
        self.real = groups
        resctrl = ControlGroups(self.mount.path, Hierarchy(ROOT))
        super().__init__(
            folder, groups, Controllers(ROOT, others={"resctrl": lambda: resctrl}), resctrl
        )
        self.strategies = strategies(be_class=BATCH)

    def busy(self, name: str, kube_class: KubeClass = "besteffort", **of_api: Any) -> list[int]:
        """The processes of a new pod."""
        group = self.run(name, kube_class, **of_api)
        sandbox = self.groups.make(f"{group.removeprefix(self.real.top)}/sandbox")
        pod = self.pods[name]
        pause = Container(f"{name} pause", "", ContainerState.RUNNING, sandbox)
        self.pods = {**self.pods, name: msgspec.structs.replace(pod, sandboxes=(pause,))}
        groups = [*(each.group or "" for each in pod.containers), sandbox]
        return [self.real.process(group).pid for group in groups]

    def step(self) -> str:
        """Returns the problems of the feature and its writes."""
        self.colocation.step()
        state = self.colocation.state
        return "; ".join((state.wanted[CacheAndBandwidth.name].problem, *state.failed)).strip("; ")

    def parts(self) -> Mapping[str, str]:
        """The present parts of groups, by name."""
        return {
            name: self.value(f"/{name}", limits.SCHEMATA) for name in self.kernel.schemata if name
        }

    def member(self, pids: list[int]) -> set[str]:
        return {self.kernel.tasks.get(pid, "") for pid in pids}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ResctrlNode]:
    mounts = {} if os.geteuid() else {each: mounted(ROOT, each) for each in ("cpu", "cpuset")}
    real = {each: mount for each, mount in mounts.items() if mount is not None}
    if "cpuset" not in real:
        pytest.skip("no cgroups of the cpuset controller can be made here")
    groups = RealGroups(real)
    try:
        node = ResctrlNode(tmp_path, groups)
    except OSError as error:
        groups.close()
        pytest.skip(f"FUSE can't be mounted here: {error}")
    yield node
    node.mount.close()
    groups.close()


def test_a_class_has_its_group_until_it_is_switched_off(node: ResctrlNode) -> None:
    batch, service = node.busy("batch"), node.busy("service", "burstable")
    before = node.kernel.state()
    assert not node.step()
    assert node.parts() == {"BE": PART}
    assert (node.member(batch), node.member(service)) == ({"BE"}, {""})
    node.strategies = Strategies()
    assert not node.step()
    assert node.kernel.state() == before
    assert not node.journal.values


def test_a_pod_has_a_group_of_its_own_until_it_goes(node: ResctrlNode) -> None:
    own, batch = node.busy("own", annotations=OWN), node.busy("batch")
    assert not node.step()
    assert node.parts() == {"BE": PART, "koordlet-own": OF_OWN}
    assert (node.member(own), node.member(batch)) == ({"koordlet-own"}, {"BE"})
    node.api_pods = {
        **node.api_pods,
        "own": msgspec.structs.replace(node.api_pods["own"], annotations={}),
    }
    assert not node.step()
    assert (node.parts(), node.member(own)) == ({"BE": PART}, {"BE"})


def test_a_container_that_starts_later_is_moved_in_the_next_second(node: ResctrlNode) -> None:
    node.busy("batch")
    node.step()
    pod = node.pods["batch"]
    group = node.groups.make("/kubepods/besteffort/podbatch/late")
    late = node.real.process(group).pid
    container = Container("late", "late", ContainerState.RUNNING, group)
    grown = msgspec.structs.replace(pod, containers=(*pod.containers, container))
    node.pods = {**node.pods, "batch": grown}
    assert not node.step()
    assert node.member([late]) == {"BE"}


def test_a_process_that_was_started_from_outside_is_moved_within_seconds(node: ResctrlNode) -> None:
    node.busy("batch")
    node.step()
    executed = node.real.process(node.pods["batch"].containers[0].group or "").pid
    node.now += CHECK_SECONDS
    assert not node.step()
    assert node.member([executed]) == {"BE"}


def test_groups_that_koordlet_left_are_adopted_and_given_back(node: ResctrlNode) -> None:
    batch, own, service = (
        node.busy("batch"),
        node.busy("own", annotations=OWN),
        node.busy("service", "burstable"),
    )
    for name in ("LSR", "LS", "BE", "koordlet-own"):
        node.kernel.make(name)
    node.kernel.write("BE", "schemata", "L3:0=3;1=3")
    node.kernel.tasks |= {batch[0]: "BE", own[0]: "koordlet-own", service[0]: "LS"}
    before = node.kernel.state()
    assert not node.step()
    assert node.parts()["BE"] == PART
    assert (node.member(batch), node.member(own)) == ({"BE"}, {"koordlet-own"})
    assert node.member(service[:1]) == {"LS"}, "no strategy is about it"
    node.strategies = Strategies()
    node.pods = {name: pod for name, pod in node.pods.items() if name != "own"}
    assert not node.step()
    assert node.kernel.state() == before


def test_groups_that_koordlet_left_and_no_strategy_wants_are_removed(node: ResctrlNode) -> None:
    batch, service = node.busy("batch"), node.busy("service", "burstable")
    for name in ("LSR", "LS", "BE", "koordlet-ended", "gold"):
        node.kernel.make(name)
    node.kernel.tasks |= dict.fromkeys(batch, "BE") | dict.fromkeys(service, "LS")
    node.takeover = lambda journal: KoordletTakeover(
        Hierarchy(ROOT),
        Controllers(ROOT, Handles(0)),
        journal,
        str(node.folder),
        lambda: None,
        lambda container: None,
        node.resctrl,
    )
    node.start().follow(machine_of(1, 2), Decision((), {}, (), {}))
    assert not node.step()
    assert node.parts() == {"BE": PART, "gold": "L3:0=7ff;1=7ff MB:0=100;1=100"}
    assert (node.member(batch), node.member(service)) == ({"BE"}, {""})
    node.strategies = Strategies()
    assert not node.step()
    assert set(node.parts()) == {"gold"}


def test_what_another_program_has_placed_stays_and_is_said(node: ResctrlNode) -> None:
    gold, batch = node.busy("gold"), node.busy("batch")
    node.kernel.make("gold")
    node.kernel.tasks[gold[0]] = "gold"
    assert node.step() == "Pod ns/gold stays in the group gold, which another program has made."
    assert (node.member(gold), node.member(batch)) == ({"gold", ""}, {"BE"})


def test_a_pod_without_room_stays_in_the_group_of_its_class(node: ResctrlNode) -> None:
    for number in range(4):
        node.kernel.make(f"other{number}")
    own = node.busy("own", annotations=OWN)
    assert node.step() == "Pod ns/own gets no group of resctrl: the machine has room for 1."
    assert node.member(own) == {"BE"}
    node.kernel.remove("other0")
    node.now += CHECK_SECONDS
    assert not node.step()
    assert node.member(own) == {"koordlet-own"}


def test_a_kernel_that_has_no_group_left_for_other_reasons_is_asked_again(
    node: ResctrlNode,
) -> None:
    node.kernel.most = 2
    own = node.busy("own", annotations=OWN)
    assert "No space left on device" in node.step()
    node.now += CHECK_SECONDS
    assert node.step() == "Pod ns/own gets no group of resctrl: the machine has room for 1."
    assert node.member(own) == {"BE"}
    node.kernel.most = None
    node.now += RETRY_SECONDS
    assert not node.step()
    assert node.member(own) == {"koordlet-own"}


def test_an_agent_that_was_killed_gives_everything_back(node: ResctrlNode) -> None:
    batch = node.busy("batch")
    before = node.kernel.state()
    node.step()
    assert node.member(batch) == {"BE"}
    node.strategies = Strategies()
    node.start()
    assert not node.step()
    assert node.kernel.state() == before


def test_a_process_that_has_entered_a_cgroup_does_not_keep_the_others(node: ResctrlNode) -> None:
    batch = node.busy("batch")
    node.kernel.make("BE")
    before = node.kernel.state()
    node.step()
    node.real.process(node.pods["batch"].containers[0].group or "")
    node.strategies = Strategies()
    assert not node.step()
    assert node.member(batch) == {""}
    assert node.kernel.state() == before


def test_what_another_program_has_placed_since_stays(node: ResctrlNode) -> None:
    batch = node.busy("batch")
    node.step()
    node.kernel.make("gold")
    node.kernel.tasks |= dict.fromkeys(batch, "gold")
    node.now += CHECK_SECONDS
    assert "stays in the group gold" in node.step()
    assert limits.restore(node.controllers, node.journal).ok
    assert node.member(batch) == {"gold"}


def test_an_agent_without_colocation_gives_everything_back(node: ResctrlNode) -> None:
    node.busy("batch")
    before = node.kernel.state()
    node.step()
    pod = node.pods["batch"]
    decision = Decision((), {}, (), {pod.uid: PodWanted(pod.title, pod.qos, Wanted())})
    enforcement = Enforcement(
        Hierarchy(ROOT), node.controllers, Journal(node.folder / "journal"), Cri("/nowhere")
    )
    enforcement.apply(RuntimeState((pod,), {}), decision, Freed((), {}))
    assert node.kernel.state() == before


def test_the_command_restore_gives_everything_back(node: ResctrlNode) -> None:
    node.busy("batch")
    node.busy("own", annotations=OWN)
    before = node.kernel.state()
    node.step()
    assert node.kernel.state() != before
    (node.folder / "proc").symlink_to("/proc")
    restored = originals.restore(
        RestoreSettings(
            root=str(node.folder),
            cgroup_root=ROOT,
            state_dir=str(node.folder),
            runtime_endpoint="/nowhere",
        ),
        lambda records: None,
    )
    assert restored.values.ok
    assert node.kernel.state() == before


def test_resctrl_that_is_not_mounted_is_said(node: ResctrlNode, tmp_path: Path) -> None:
    node.busy("batch")
    node.resctrl = ControlGroups(str(tmp_path / "none"), Hierarchy(ROOT))
    node.start()
    assert node.step() == "resctrl is not mounted on /sys/fs/resctrl"
    node.strategies = Strategies()
    assert not node.step()


def test_observing_makes_no_group_and_people_are_told(node: ResctrlNode) -> None:
    node.busy("batch")
    node.start(acts=False).step()
    assert not node.kernel.calls
    told = colocation.read(str(node.folder / COLOCATION_FILE))
    assert f"\n    group BE has {PART}, for 1 pod\n" in colocation.as_text(told)


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(refuses_after=st.integers(0, 9), adopted=st.booleans(), off=st.booleans())
def test_a_crash_at_any_write_is_given_back(
    node: ResctrlNode, refuses_after: int, adopted: bool, off: bool
) -> None:
    if not node.pods:
        node.busy("batch")
        node.busy("own", annotations=OWN)
    if adopted:
        node.kernel.make("BE")
    before = node.kernel.state()
    node.kernel.calls.clear()
    node.kernel.refuses_after = refuses_after
    node.strategies = strategies(be_class=BATCH)
    node.start().step()
    if off:
        node.strategies = Strategies()
        node.colocation.step()
    node.kernel.refuses_after = None
    node.start()
    assert limits.restore(node.controllers, node.journal).ok
    assert node.kernel.state() == before
    assert not node.journal.values
    if adopted:
        node.kernel.remove("BE")


@given(
    ways=st.integers(1, 20),
    least=st.integers(1, 4),
    step=st.sampled_from((1, 5, 10)),
    ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=3),
    percents=st.lists(st.integers(0, 100), max_size=3),
)
@settings(deadline=None)
def test_the_kernel_refuses_nothing_that_is_wanted(
    ways: int, least: int, step: int, ranges: list[tuple[int, int]], percents: list[int]
) -> None:
    whole = (1 << ways) - 1
    kernel = ResctrlKernel(
        {"L3": {0: whole, 2: whole}, "MB": {0: 100, 2: 100}},
        INTEL
        | {"L3/cbm_mask": f"{whole:x}", "L3/min_cbm_bits": str(min(least, ways))}
        | {"MB/bandwidth_gran": str(step), "MB/min_bandwidth": str(2 * step)},
    )
    of_kernel = machine(_Stated(kernel))
    assert of_kernel == ResctrlMachine(
        {"L3": CacheWays((0, 2), whole, min(least, ways))},
        MemoryBandwidth((0, 2), 100, 2 * step, step),
        6,
    )
    kernel.make("BE")
    for begin, end in ranges or [(0, 100)]:
        for percent in percents or [100]:
            qos = ResctrlQos(
                enable=True,
                cat_range_start_percent=begin,
                cat_range_end_percent=end,
                mba_percent=percent,
            )
            wanted = groups.wanted(of_kernel, {"BE": qos}, ())
            for text in wanted.schemata.values():
                kernel.write("BE", "schemata", text.replace(" ", "\n"))


class _Stated(Tree):
    """What a kernel states, without its file system."""

    def __init__(self, kernel: ResctrlKernel) -> None:
        super().__init__("/none")
        self._kernel = kernel

    def text(self, path: str) -> str | None:
        if path == "schemata":
            return self._kernel.read("", path)
        return self._kernel.info.get(path.removeprefix("info/"))

    def names(self, path: str) -> list[str]:
        return sorted({each.partition("/")[0] for each in self._kernel.info})


@pytest.mark.parametrize(
    ("schemata", "info", "bandwidth"),
    [
        (
            {"MB": {0: 2048, 1: 160}},
            {"MB/delay_linear": "0", "MB/min_bandwidth": "0", "MB/bandwidth_gran": "1"},
            MemoryBandwidth((0, 1), 2048, 1, 1, 160),
        ),
        (
            {"MB": {0: 4096}},
            {"MB/delay_linear": "0", "MB/min_bandwidth": "0", "MB/bandwidth_gran": "1"},
            MemoryBandwidth((0,), 4096, 1, 1, 160),
        ),
        (
            {"MB": {0: (1 << 32) - 1}},
            {"MB/delay_linear": "1", "MB/min_bandwidth": "10", "MB/bandwidth_gran": "10"},
            MemoryBandwidth((0,), (1 << 32) - 1, 10, 10, None),
        ),
        ({"L2": {0: 0xFF}}, {}, None),
    ],
)
def test_the_unit_of_bandwidth_is_read_from_the_machine(
    schemata: Mapping[str, Mapping[int, int]],
    info: Mapping[str, str],
    bandwidth: MemoryBandwidth | None,
) -> None:
    assert machine(_Stated(ResctrlKernel(schemata, info))).bandwidth == bandwidth


def test_code_and_data_have_caches_of_their_own() -> None:
    stated = {
        f"{name}/{file}": INTEL[f"L3/{file}"]
        for name in ("L3CODE", "L3DATA")
        for file in ("cbm_mask", "min_cbm_bits", "num_closids")
    }
    kernel = ResctrlKernel({"L3CODE": {0: 0x7FF}, "L3DATA": {0: 0x7FF}}, stated)
    assert machine(_Stated(kernel)).caches == {
        "L3CODE": CacheWays((0,), 0x7FF, 2),
        "L3DATA": CacheWays((0,), 0x7FF, 2),
    }
