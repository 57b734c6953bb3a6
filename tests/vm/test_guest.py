"""Agent, proxy, containerd and runc in an emulated machine with cgroup v2 and four NUMA nodes."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from tests import tools
from tests.vm import guest

LIMIT_SECONDS = 1200.0
"""Ends a hanging guest; an idle machine takes a sixth of that."""
KUBELET_LIMIT_SECONDS = 1500.0
"""The limit with a kubelet, which starts slowly in an emulator."""

STATIC_LIMIT_SECONDS = 2400.0
"""The limit with two starts of the kubelet and a dozen pods."""
LOCK_SECONDS = 1800.0
"""The time for which a guest may wait for the lock of another one, a node of the cluster."""
KILL_TEST = "tests/vm/inside/test_proxy.py::test_kill_of_agent_and_proxy_changes_nothing"
"""A test of two minutes, which runs with the tests of limits."""


@pytest.fixture
def share() -> Iterator[pathlib.Path]:
    """A folder that this machine and the guest share."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-guest-"))
    yield folder
    shutil.rmtree(folder)


def test_hanging_guest_is_ended_and_its_output_is_quoted(
    share: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"echo booting; echo first step >{share}/output.txt; echo $$ >{share}/pid; sleep 1000"
    monkeypatch.setattr(guest, "command", lambda *_: ["sh", "-c", script])
    with pytest.raises(guest.GuestError, match=r"(?s)did not end in time.*booting.*first step"):
        guest.run(share, [], limit_seconds=0.5)
    assert not pathlib.Path("/proc", (share / "pid").read_text().strip()).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_guest_has_priority_over_other_sessions() -> None:
    show = guest.prioritized("sh", "-c", "nice; cat /proc/self/autogroup")
    shown = subprocess.run(
        show, start_new_session=True, stdout=subprocess.PIPE, text=True, check=False
    )
    priority, _, group = shown.stdout.partition("\n")
    assert int(priority) < os.nice(0)
    if group:
        assert int(group.split()[-1]) < 0


@pytest.mark.parametrize(
    ("script", "boots"), [("kill -SEGV $$", 2), ("echo started >output.txt; kill -SEGV $$", 1)]
)
def test_guest_that_ends_before_its_first_step_is_booted_once_more(
    share: pathlib.Path, monkeypatch: pytest.MonkeyPatch, script: str, boots: int
) -> None:
    script = f"cd {share}; echo >>boots; {script}"
    monkeypatch.setattr(guest, "command", lambda *_: ["sh", "-c", script])
    with pytest.raises(guest.GuestError, match="ended with code -11"):
        guest.run(share, [], limit_seconds=120)
    assert len((share / "boots").read_text().splitlines()) == boots


@pytest.mark.long
@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(LIMIT_SECONDS + LOCK_SECONDS)
def test_proxy_devices_and_cgroups_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    check_passed(
        share,
        record_property,
        [
            "tests/vm/inside/test_devices.py",
            "tests/vm/inside/test_proxy.py",
            f"--deselect={KILL_TEST}",
            "tests/vm/inside/test_topology.py",
            "tests/cgroup/test_writer_kernel.py",
            "tests/cgroup/test_values_kernel.py",
        ],
    )


@pytest.mark.long
@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(LIMIT_SECONDS + LOCK_SECONDS)
def test_limits_kills_and_an_agent_alone_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    paths = [
        "tests/vm/inside/test_limits.py",
        "tests/vm/inside/test_local.py",
        "tests/vm/inside/test_reconciler.py",
        "tests/benchmarks/test_nodelocal.py",
        KILL_TEST,
        "tests/cgroup/test_kernel.py",
    ]
    check_passed(share, record_property, paths)


@pytest.mark.long
@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(KUBELET_LIMIT_SECONDS + LOCK_SECONDS)
def test_podresources_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    kubelet = tools.kubernetes("kubelet")
    if isinstance(kubelet, str):
        pytest.skip(kubelet)
    check_passed(
        share, record_property, ["tests/vm/kubelet/test_podresources.py"], KUBELET_LIMIT_SECONDS
    )


@pytest.mark.long
@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(KUBELET_LIMIT_SECONDS + LOCK_SECONDS)
def test_a_topology_manager_admits_what_the_filter_passes_on_four_numa_nodes(
    share: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    kubelet = tools.kubernetes("kubelet")
    if isinstance(kubelet, str):
        pytest.skip(kubelet)
    path = "tests/vm/kubelet/test_topology_manager.py"
    check_passed(share, record_property, [path], KUBELET_LIMIT_SECONDS)


@pytest.mark.long
@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(STATIC_LIMIT_SECONDS + LOCK_SECONDS)
def test_owners_with_a_static_kubelet_have_the_cpus_of_its_checkpoint(
    share: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    kubelet = tools.kubernetes("kubelet")
    if isinstance(kubelet, str):
        pytest.skip(kubelet)
    check_passed(share, record_property, ["tests/vm/static"], STATIC_LIMIT_SECONDS)


def check_passed(
    share: pathlib.Path,
    record_property: Callable[[str, object], None],
    paths: list[str],
    limit_seconds: float = LIMIT_SECONDS,
) -> None:
    """Runs the tests of `paths` in the guest; fails unless all of them pass."""
    with guest.guest_lock():
        begin = time.monotonic()
        code, cases = guest.run(share, paths, limit_seconds)
    lines = [f"in the guest ({time.monotonic() - begin:.0f} s with its boot):"]
    lines += [f"  {each.seconds:6.1f} s  {each.outcome:7}  {each.name}" for each in cases]
    record_property("summary", "\n".join(lines))
    assert code == 0, (share / "output.txt").read_text()
    # pytest accepts tests that skip themselves; these must have run.
    outcomes = {each.outcome for each in cases if each.name.startswith("tests.vm.")}
    assert outcomes == {"passed"}
