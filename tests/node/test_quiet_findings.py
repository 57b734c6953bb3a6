"""What doctor says about owners that ask for quiet CPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import OriginalValue
from agent.cgroup.limits import IRQBALANCE_BANNED
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QoS
from agent.model.settings.agent import RestoreSettings
from agent.model.settings.feature_modes import FeatureMode
from agent.model.snapshot import PodWanted, Snapshot, Wanted
from agent.node import quiet_findings
from agent.node.node_findings import NodeCode
from agent.node.quiet_findings import (
    balancers,
    invalid_partitions,
    of_owners,
    silent_cpus,
    wasted,
)
from agent.usage import QUIET_FILE
from agent.usage.contention import Party, PartyKind
from agent.usage.disturbers import Disturber, DisturberKind, Disturbers, LookedOwner, Remedy
from agent.view.disturbers import DisturbedOwner, shown
from agent.view.features import ShownFeature
from agent.view.quiet import ShownQuiet, ShownQuietOwner
from tests.builders import pod
from tests.cgroup.balancer import GROUP, Balancer

OWN = CpuSet.parse("2-3")
SNAPSHOT = Snapshot(1, 1, "boot", False, {}, (), {}, {})
CRON = Party(PartyKind.UNIT, "system.slice/cron.service")
DISK = Disturber(DisturberKind.INTERRUPTS, "nvme0", Remedy.INTERRUPTS, OWN, 12.0, numbers=(24,))
TASK = Disturber(DisturberKind.TASKS, CRON.name, Remedy.HOST_SLICES, OWN, 1.0, CRON, 0.1, threads=2)
TICK = Disturber(DisturberKind.TICKS, "Local timer interrupts", Remedy.TICKS, OWN, 250.0)


def disturbed() -> list[DisturbedOwner]:
    owner = LookedOwner("ns/trader", OWN, frozenset())
    seen = Disturbers(owner, 1.0, (TASK, DISK, TICK), allowed={Remedy.PARTITIONS: 7})
    return [shown(seen, None, ())]


@pytest.mark.parametrize(
    ("acting", "interrupts", "tasks"),
    [
        (["interrupts"], ["ns/trader: nvme0 (IRQ 24): 12 a second on CPUs 2-3"], []),
        (
            ["host-slices"],
            [],
            [
                "ns/trader: system.slice/cron.service, 2 threads: 100 ms of each second, 1 run a "
                "second on CPUs 2-3"
            ],
        ),
        (["partitions"], [], ["ns/trader: 7 threads of others may run on CPUs 2-3"]),
        (["c-states"], [], []),
    ],
    ids=["interrupts", "host-slices", "partitions", "none-of-these"],
)
def test_only_what_a_feature_should_have_taken_away_is_a_finding(
    acting: list[str], interrupts: list[str], tasks: list[str]
) -> None:
    features, silent = {"ns/trader": frozenset(acting)}, {"ns/trader": CpuSet([3])}
    assert of_owners(disturbed(), features, silent) == {
        NodeCode.QUIET_INTERRUPTS: interrupts,
        NodeCode.QUIET_TASKS: tasks,
    }
    assert not any(of_owners(disturbed(), {"ns/other": frozenset(acting)}, silent).values())
    on_first_core = of_owners(disturbed(), features, {"ns/trader": CpuSet([7])})
    assert not on_first_core[NodeCode.QUIET_INTERRUPTS], "the pod keeps them there"


def test_the_core_that_a_pod_keeps_for_interrupts_is_not_silent() -> None:
    quiet = ShownQuiet((), tuple(ShownQuietOwner(f"ns/{name}", "2-3", ()) for name in "ab"))
    keeping = {"main": Wanted(housekeeping="2"), "side": Wanted()}
    pods = [PodWanted("ns/a", QoS.LSE, Wanted(), keeping)]
    assert silent_cpus(quiet, pods) == {"ns/a": CpuSet([3]), "ns/b": OWN}


def test_an_irqbalance_that_does_not_know_the_cpus_of_owners(tmp_path: Path) -> None:
    assert not [*balancers(str(tmp_path), {}, OWN)]
    service = tmp_path / "sys/fs/cgroup/system.slice/irqbalance.service"
    service.mkdir(parents=True)
    [text] = balancers(str(tmp_path), {}, OWN)
    assert "unless it was started with IRQBALANCE_BANNED_CPULIST=2-3" in text
    assert not [*balancers(str(tmp_path), {}, CpuSet())], "no owner asks"


@pytest.mark.parametrize(
    ("banned", "texts"),
    [
        ("0-3", []),
        ("3", ["irqbalance 4711 may move interrupts to CPUs 2"]),
        ("", ["irqbalance 4711 may move interrupts to CPUs 2-3"]),
    ],
)
def test_what_irqbalance_bans(tmp_path: Path, banned: str, texts: list[str]) -> None:
    balancer = Balancer(tmp_path, banned)
    try:
        assert [*balancers(str(tmp_path), {}, OWN)] == texts
        told = OriginalValue(GROUP, IRQBALANCE_BANNED, "", ("2-3",))
        assert not [*balancers(str(tmp_path), {(GROUP, IRQBALANCE_BANNED): told}, OWN)]
    finally:
        balancer.close()


def test_an_invalid_partition_is_told_with_the_reason(tmp_path: Path) -> None:
    states = {
        "": "isolated invalid (Parent is not a partition root)",
        "valid": "isolated",
        "member": "member",
        "invalid": "isolated invalid (Cpu list in cpuset.cpus not exclusive)",
    }
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "cpuset.cpus.effective").write_text("0-3\n")
    for name, state in states.items():
        (tmp_path / "pod" / name).mkdir()
        (tmp_path / "pod" / name / "cpuset.cpus.partition").write_text(f"{state}\n")
    containers = tuple(
        Container(name, name, ContainerState.RUNNING, f"/pod/{name}")
        for name in ("valid", "member", "invalid", "gone")
    )
    told = invalid_partitions(Controllers(str(tmp_path)), [pod("a", containers=containers)])
    assert [*told] == [f"ns/a: {states['']}", f"ns/a invalid: {states['invalid']}"]


@pytest.mark.parametrize(
    ("isolated", "nohz_full", "texts"),
    [
        ("2-5", "(null)", ["isolcpus= covers CPUs 4-5"]),
        ("", "2-3", []),
        ("2", "1-2", ["nohz_full= covers CPUs 1"]),
        (None, None, []),
    ],
)
def test_boot_options_for_cpus_that_no_quiet_owner_has(
    tmp_path: Path, isolated: str | None, nohz_full: str | None, texts: list[str]
) -> None:
    folder = tmp_path / "sys/devices/system/cpu"
    folder.mkdir(parents=True)
    for name, text in (("isolated", isolated), ("nohz_full", nohz_full)):
        if text is not None:
            (folder / name).write_text(f"{text}\n")
    assert [*wasted(Tree(str(tmp_path)), OWN)] == texts


@pytest.mark.parametrize(
    ("mode", "owners"),
    [(FeatureMode.OBSERVE, ("interrupts",)), (FeatureMode.ACT, ())],
    ids=["observes", "nobody-asks"],
)
def test_a_node_without_quiet_owners_has_no_finding(
    tmp_path: Path, mode: FeatureMode, owners: tuple[str, ...]
) -> None:
    folder = tmp_path / "sys/devices/system/cpu"
    folder.mkdir(parents=True)
    (folder / "isolated").write_text("2-3\n")
    settings = RestoreSettings(root=str(tmp_path), state_dir=str(tmp_path))
    assert quiet_findings.find(settings, [], None) == {}
    quiet = ShownQuiet(
        (ShownFeature("interrupts", mode, 0),),
        tuple(ShownQuietOwner("ns/trader", "1", (name,)) for name in owners),
    )
    (tmp_path / QUIET_FILE).write_bytes(msgspec.json.encode(quiet))
    assert quiet_findings.find(settings, [], SNAPSHOT) == {}
