"""Agent, proxy, containerd and runc in an emulated machine with cgroup v2 and four NUMA nodes."""

import pathlib
import shutil
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
"""The limit with two starts of the kubelet and a dozen pods, or with 500 pods twice."""
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


PARTITIONS = ["tests/vm/inside/test_partitions.py"]
SUITES: dict[str, tuple[float, list[str]]] = {
    "proxy, devices and cgroups": (
        LIMIT_SECONDS,
        [
            "tests/vm/inside/test_devices.py",
            "tests/vm/inside/test_locality.py",
            "tests/vm/inside/test_network_devices.py",
            "tests/vm/inside/test_proxy.py",
            f"--deselect={KILL_TEST}",
            "tests/vm/inside/test_quiet_interrupts.py",
            "tests/vm/inside/test_topology.py",
            "tests/cgroup/test_writer_kernel.py",
            "tests/cgroup/test_limits_values_kernel.py",
        ],
    ),
    "limits, kills and an agent alone": (
        LIMIT_SECONDS,
        [
            "tests/vm/inside/test_limits.py",
            "tests/vm/inside/test_local.py",
            "tests/vm/inside/test_reconciler.py",
            "tests/benchmarks/test_nodelocal.py",
            KILL_TEST,
            "tests/cgroup/test_kernel.py",
        ],
    ),
    "usage, waits and colocation": (
        LIMIT_SECONDS,
        [
            "tests/vm/inside/test_cpu_suppression.py",
            "tests/vm/inside/test_host_slices.py",
            "tests/vm/inside/test_memory_qos.py",
            "tests/vm/inside/test_pressure_evictions.py",
            "tests/vm/inside/test_systemd_slices.py",
            "tests/vm/inside/test_usage.py",
            "tests/node/colocation/test_cpu_burst.py",
            "tests/node/colocation/test_cpu_priority.py",
            "tests/node/colocation/test_disk_qos.py",
            "tests/node/colocation/test_koordlet.py",
            "tests/node/colocation/test_oom_scores.py",
            "tests/node/colocation/test_writer.py",
            "tests/node/quiet/test_host_slices_kernel.py",
            "tests/node/quiet/test_workqueues.py",
            "tests/cgroup/test_oom_scores.py",
            "tests/node/test_contention.py",
            "tests/node/test_usage.py",
        ],
    ),
    "a kubelet's pod resources": (
        KUBELET_LIMIT_SECONDS,
        ["tests/vm/kubelet/test_podresources.py"],
    ),
    "a kubelet's topology manager": (
        KUBELET_LIMIT_SECONDS,
        ["tests/vm/kubelet/test_topology_manager.py"],
    ),
    "owners with a static kubelet": (STATIC_LIMIT_SECONDS, ["tests/vm/static"]),
    "partitions in a chain": (STATIC_LIMIT_SECONDS, PARTITIONS),
    "remote partitions": (
        STATIC_LIMIT_SECONDS,
        [
            *PARTITIONS,
            "tests/vm/inside/test_isolated_pods.py",
            "tests/vm/inside/test_quiet_removal.py",
        ],
    ),
}
"""By what they show on four NUMA nodes with cgroup v2: the limit of a guest, and the tests that run
in it."""


BOOTS = ("tests/vm/reboot/test_before.py", "tests/vm/reboot/test_later.py")
"""What runs in two boots of one machine."""


@pytest.mark.long
@pytest.mark.timeout(STATIC_LIMIT_SECONDS + LOCK_SECONDS)
@pytest.mark.parametrize("suite", SUITES)
def test_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, record_property: Callable[[str, object], None], suite: str
) -> None:
    """Also the guest's tests that skip themselves must have run."""
    if "kubelet" in suite and isinstance(kubelet := tools.kubernetes("kubelet"), str):
        pytest.skip(kubelet)
    version = guest.REMOTE_KERNEL if suite == "remote partitions" else guest.CHAIN_KERNEL
    if reasons := guest.lacking(version):
        pytest.skip("; ".join(reasons))
    limit_seconds, paths = SUITES[suite]
    run_in_guest(share, record_property, paths, limit_seconds, version)


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_SECONDS + LOCK_SECONDS)
def test_nothing_of_quiet_cpus_outlives_a_boot(
    share: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    """The state folder does; an agent has it again in the second boot."""
    if reasons := guest.lacking(guest.REMOTE_KERNEL):
        pytest.skip("; ".join(reasons))
    for path in BOOTS:
        run_in_guest(share, record_property, [path], LIMIT_SECONDS, guest.REMOTE_KERNEL)
        for name in ("code", "junit.xml", "output.txt"):
            (share / name).unlink()


def run_in_guest(
    share: pathlib.Path,
    record_property: Callable[[str, object], None],
    paths: list[str],
    limit_seconds: float,
    version: str,
) -> None:
    """Fails with the guest's output unless all tests passed, and those of guests did run."""
    with guest.guest_lock():
        begin = time.monotonic()
        code, cases = guest.run(share, paths, limit_seconds, version)
    lines = [f"in the guest ({time.monotonic() - begin:.0f} s with its boot):"]
    lines += [f"  {each.seconds:6.1f} s  {each.outcome:7}  {each.name}" for each in cases]
    record_property("summary", "\n".join(lines))
    assert code == 0, (share / "output.txt").read_text()
    outcomes = {
        each.outcome for each in cases if each.name.startswith(("tests.vm.", "tests.node."))
    }
    assert outcomes == {"passed"}
