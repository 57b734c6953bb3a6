"""A scheduler's CPUs in the state file of a stopped kubelet, without a runtime."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup.hierarchy import Hierarchy
from agent.kubelet import cpu_manager_state
from agent.kubelet.configuration import ConfigurationError
from agent.kubelet.cpu_manager_state import CpuManagerState, decode, encode
from agent.kubelet.statefile import Checked, StateFileError
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.pod.pods import Pod
from agent.model.settings.agent import KubeletStateSettings
from agent.model.snapshot import NOTHING
from agent.node import takeover
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.takeover import TakeoverError, with_chosen
from tests.node.procfs import POD, process
from tests.node.world import World

STATE = CpuManagerState(
    "static", CpuSet([0, 2, 3]), {"the-kubelets": {"main": CpuSet([1])}}, version=2
)


@pytest.fixture
def file(world: World) -> Path:
    path = world.kubelet / "cpu_manager_state"
    path.write_bytes(cpu_manager_state.encode(STATE))
    return path


def settings(world: World) -> KubeletStateSettings:
    return KubeletStateSettings(
        state_dir=str(world.state),
        kubelet_dir=str(world.kubelet),
        root=world.root,
        cgroup_root=str(world.cpuset.parent),
        runtime_endpoint="unix:///nowhere.sock",
    )


def pods(world: World) -> tuple[Pod, ...]:
    hierarchy = Hierarchy(str(world.cpuset.parent))
    return RuntimeView(world.runtime, CgroupLocator(hierarchy)).observe().pods


def test_containers_with_their_claimed_cpus_are_taken_over(world: World, file: Path) -> None:
    lse = world.sandbox("lse", "LSE", "3", created_at=1)
    for name in ("main", "side"):
        world.container(lse, name)
    world.container(world.sandbox("ls", "LS"))
    world.container(world.sandbox("refused", "LSE", "3", created_at=2))
    world.container(world.sandbox("the-kubelets", parent="/kubepods/podthe-kubelets"))
    world.container(world.sandbox("in-a-vm", "LSE", "0", handler="kata"))
    world.agent().reconcile()
    world.container(lse, "new")
    snapshot = world.snapshot()
    assert takeover.chosen(snapshot, pods(world)) == {
        "lse": {"main": CpuSet([3]), "side": CpuSet([3])},
        "in-a-vm": {"main": CpuSet([0])},
    }
    for excluded_ids in ("c-lse-main", "c-in-a-vm-main"):
        snapshot.containers[excluded_ids] = NOTHING
    assert takeover.chosen(snapshot, pods(world)) == {"lse": {"side": CpuSet([3])}}


def test_old_files_are_kept_as_backups_and_never_overwritten(file: Path) -> None:
    file.chmod(0o640)
    contents = [file.read_bytes()]
    backups = []
    for cpu in (1, 2, 3):
        entries = {"lse": {"main": CpuSet([cpu])}}
        state = msgspec.structs.replace(STATE, entries=entries)
        backups.append(takeover.write(str(file), state))
        contents.append(file.read_bytes())
        assert cpu_manager_state.read(str(file)).checked is Checked.VERIFIED
    name = f"{file}.topolet-backup"
    assert backups == [name, f"{name}.1", f"{name}.2"]
    assert [Path(each).read_bytes() for each in backups] == contents[:3]
    assert {os.stat(each).st_mode & 0o777 for each in (*backups, file)} == {0o640}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of others")
def test_owner_of_the_file_is_kept(file: Path) -> None:
    os.chown(file, 1234, 4321)
    takeover.write(str(file), STATE)
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)


@pytest.mark.parametrize("present", [True, False])
def test_nothing_is_written_for_a_kubelet_with_policy_none(world: World, present: bool) -> None:
    path = world.kubelet / "cpu_manager_state"
    if present:
        path.write_bytes(cpu_manager_state.encode(CpuManagerState(version=2)))
    taken = takeover.take_over(settings(world))
    assert "policy is none" in taken.nothing
    assert (taken.backup, path.exists()) == ("", present)


@pytest.mark.parametrize(
    "command_line",
    [
        ("kubelet", "--x"),
        ("/usr/bin/k3s", "server"),
        ("/usr/bin/k3s agent", ""),
        ("/snap/kubelite",),
    ],
)
def test_running_kubelet_is_not_written_over(
    world: World, file: Path, command_line: tuple[str, ...]
) -> None:
    process(Path(world.root), 77, *command_line)
    before = file.read_bytes()
    with pytest.raises(TakeoverError, match=r"(kubelet|k3s|kubelite) runs \(process 77\)"):
        takeover.take_over(settings(world))
    assert [each.read_bytes() for each in world.kubelet.iterdir()] == [before]


@pytest.mark.parametrize(
    ("command_line", "written"),
    [
        (("kubelet", "--root-dir=/other"), True),
        (("kubelet", "--root-dir", "/var/lib/kubelet"), False),
        (("kubelet", "--root-dir=/link"), False),
        (("kubelet", "--root-dir=other"), False),
        (("kubelet", "--root-dir=/absent"), False),
        (("/usr/bin/k3s", "server", "--kubelet-arg=root-dir=/other"), False),
    ],
)
def test_kubelet_of_another_folder_does_not_prevent_the_write(
    world: World, file: Path, command_line: tuple[str, ...], written: bool
) -> None:
    folder = process(Path(world.root), 77, *command_line)
    (folder / "root/other").mkdir(parents=True)
    (folder / "root/var/lib").mkdir(parents=True)
    (folder / "root/var/lib/kubelet").symlink_to(world.kubelet)
    (folder / "root/link").symlink_to(world.kubelet)
    # The next check fails because no agent runs.
    why = "the agent's decisions can't be read" if written else r"runs \(process 77\)"
    with pytest.raises(TakeoverError, match=why):
        takeover.take_over(settings(world))


def test_only_a_process_of_the_host_that_may_be_a_kubelet_prevents_the_write(
    world: World, file: Path
) -> None:
    folder = process(Path(world.root), 77, "kubelet")
    (folder / "cgroup").write_text("")
    with pytest.raises(TakeoverError, match="a kubelet may run and would write over it: process"):
        takeover.take_over(settings(world))
    process(Path(world.root), 77, "kubelet", groups=POD)
    with pytest.raises(TakeoverError, match="the agent's decisions can't be read"):
        takeover.take_over(settings(world))


def test_without_decisions_nothing_is_written(world: World, file: Path) -> None:
    with pytest.raises(
        TakeoverError, match=r"the agent's decisions can't be read: .*snapshot.json"
    ):
        takeover.take_over(settings(world))
    world.agent().reconcile()
    with pytest.raises(TakeoverError, match="older than the last boot"):
        takeover.take_over(settings(world))
    snapshot = msgspec.structs.replace(world.snapshot(), boot_id="another")
    (world.state / "snapshot.json").write_bytes(snapshots.encode(snapshot))
    with pytest.raises(TakeoverError, match="older than the last boot"):
        takeover.take_over(settings(world))


def test_torn_file_is_an_error(world: World, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StateFileError, match=str(file)):
        takeover.take_over(settings(world))


@pytest.mark.parametrize(
    ("text", "reserved"),
    [
        ("{cpuManagerPolicy: static, reservedSystemCPUs: '2'}", "2"),
        ("{reservedSystemCPUs: '2'}", "2"),
        ("{cpuManagerPolicy: static, kubeReserved: {cpu: 1500m}}", "0-1"),
        ("{}", ""),
    ],
)
def test_cpus_that_the_kubelet_reserves(world: World, text: str, reserved: str) -> None:
    (world.kubelet / "config.yaml").write_text(text)
    assert takeover.reserved(settings(world)) == (CpuSet.parse(reserved), ())


def test_absent_or_invalid_configuration(world: World) -> None:
    found, (warning,) = takeover.reserved(settings(world))
    assert (found, "config.yaml does not exist" in warning) == (CpuSet(), True)
    (world.kubelet / "config.yaml").write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.yaml"):
        takeover.reserved(settings(world))


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


EIGHT_CPUS = CpuManagerState(
    policy="static",
    default=cpus("0,4-7"),
    entries={"u": {"a": cpus("1-2")}, "v": {"a": cpus("3")}},
    version=2,
    checked=Checked.VERIFIED,
)


def test_chosen_cpus_replace_the_kubelets_own() -> None:
    after = with_chosen(EIGHT_CPUS, {"u": {"a": cpus("4-5")}, "w": {"b": cpus("1")}})
    assert after.entries == {
        "u": {"a": cpus("4-5")},
        "v": {"a": cpus("3")},
        "w": {"b": cpus("1")},
    }
    assert after.default == cpus("0,2,6-7")
    assert decode(encode(after)) == after
    assert EIGHT_CPUS.entries["u"] == {"a": cpus("1-2")}


def test_containers_of_one_pod_may_share() -> None:
    after = with_chosen(EIGHT_CPUS, {"u": {"a": cpus("4-5"), "b": cpus("4-5")}})
    assert after.default == cpus("0-2,6-7")


def changed(**fields: object) -> CpuManagerState:
    return msgspec.structs.replace(EIGHT_CPUS, **fields)


@pytest.mark.parametrize(
    ("state", "chosen", "reason"),
    [
        (EIGHT_CPUS, {"u": {"a": cpus("3-4")}}, "pod v, container a: CPUs 3 also belong to pod u"),
        (
            EIGHT_CPUS,
            {"w": {"x": cpus("4")}, "x": {"y": cpus("4-5")}},
            "pod x, container y: CPUs 4 also belong to pod w",
        ),
        (
            EIGHT_CPUS,
            {"u": {"a": cpus("7-9")}},
            "pod u, container a: the kubelet's state does not have CPUs 8-9",
        ),
        (EIGHT_CPUS, {"u": {"a": EMPTY}}, "pod u, container a: no CPUs"),
        (EIGHT_CPUS, {"u": {"a": cpus("6-7")}}, "pod u, container a: the kubelet reserves CPUs 6"),
        (EIGHT_CPUS, {"u": {"a": cpus("0-2,4-7")}}, "reserves CPUs 0,6"),
        (
            changed(version=3, pods={"w": cpus("8-9")}),
            {"w": {"a": cpus("8")}},
            "pod w, container a: the kubelet gave CPUs 8-9 to the pod",
        ),
        (
            changed(version=3, pods={"w": cpus("8-9")}),
            {"u": {"a": cpus("8")}},
            "pod u, container a: CPUs 8 also belong to pod w",
        ),
        (changed(policy="none"), {}, "policy is none"),
        (changed(version=1), {}, "version 1 is not"),
        (changed(version=None), {}, "version unknown is not"),
        (changed(checked=Checked.MISMATCH), {}, "checksum"),
        (changed(problems=("entries.u.b: bad",)), {}, "entries.u.b"),
        (changed(version=4, originals={"u": {}}), {}, "pod u has been resized"),
    ],
)
def test_states_that_are_not_written(
    state: CpuManagerState, chosen: dict[str, dict[str, CpuSet]], reason: str
) -> None:
    with pytest.raises(TakeoverError, match=reason):
        with_chosen(state, chosen, reserved=cpus("0,6"))


def test_the_last_shared_cpu_is_kept() -> None:
    with pytest.raises(TakeoverError, match="no CPU of 0-7 would be left"):
        with_chosen(EIGHT_CPUS, {"w": {"a": cpus("0,4-7")}})


SETS = st.frozensets(st.integers(0, 9), max_size=4).map(CpuSet)


@given(
    chosen=st.dictionaries(
        st.sampled_from("uvwx"), st.dictionaries(st.sampled_from("ab"), SETS), max_size=4
    )
)
def test_no_cpu_is_lost_or_assigned_twice(chosen: dict[str, dict[str, CpuSet]]) -> None:
    try:
        after = with_chosen(EIGHT_CPUS, chosen)
    except TakeoverError:
        return
    parts = [after.default, *after.by_uid.values()]
    assert union(parts) == cpus("0-7")
    assert sum(map(len, parts)) == 8
    for uid, containers in chosen.items():
        assert containers.items() <= after.entries.get(uid, {}).items()
