"""Burstable pods with devices of a device plugin run near to them from their first line on, beside
the owners of a static kubelet whose topology manager has the policy none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.fixtures import near_devices
from tests.integration.kubelet.plugin import RESOURCE, DevicePlugin
from tests.integration.kubelet.standalone import START_SECONDS, container
from tests.vm.guest import FAR_NODE, NODES
from tests.vm.static.workload import Spec, Workload
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(1800)

NEAR = CpuSet.parse(NODES[FAR_NODE])


@pytest.fixture
def plugin(workload: Workload) -> Iterator[DevicePlugin]:
    """Two replicas of one card, which other pods may share. A kubelet's folder of device plugins is
    the default one whatever its root directory is; the agent of the test reads the latter."""
    folder = workload.kubelet.shared / "device-plugins"
    (workload.kubelet.root / "device-plugins").symlink_to(folder)
    plugin = DevicePlugin(folder)
    plugin.start({"card::0": (FAR_NODE,), "card::1": (FAR_NODE,)})
    eventually(
        "the kubelet can allocate the card",
        lambda: len(workload.kubelet.client.allocatable().devices) == 2,
        START_SECONDS,
    )
    yield plugin
    plugin.stop()


def run_with_card(workload: Workload, name: str) -> None:
    main = container("main", "", command=["sh", "-c", near_devices.COMMAND])
    main["resources"] = {"requests": {"cpu": "100m"}, "limits": {RESOURCE: "1"}}
    workload.specs = {**workload.specs, name: Spec(name)}
    workload.kubelet.run(name, [main])
    workload.wait_for(name)


def first_lines(workload: Workload, name: str) -> list[str]:
    """What the container wrote, without the runtime's times."""
    logs = Path(workload.kubelet.folder / "logs").glob(f"default_{name}-node-a_*/main/0.log")
    return [line.split(" ", 3)[3] for log in logs for line in log.read_text().splitlines()]


def test_pods_that_share_a_card_run_near_to_it(workload: Workload, plugin: DevicePlugin) -> None:
    with workload.pods(Spec("ls", "LS"), Spec("plain-2", cpus=2)):
        before = workload.current_cpus()
        seen: set[tuple[str, CpuSet]] = set()
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.update(workload.current_cpus().items())

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            for name in ("card", "sharer"):
                run_with_card(workload, name)
                eventually(
                    f"{name} writes", lambda name=name: len(first_lines(workload, name)) == 2
                )
                assert near_devices.start(first_lines(workload, name)) == (NEAR, str(FAR_NODE)), (
                    workload.node.log("agent")
                )
                numa_maps = Path(f"/proc/{workload.pids()[name]}/numa_maps").read_text()
                assert near_devices.memory_nodes(numa_maps) == {FAR_NODE}
            # The agent is killed, and the plugin names its devices anew.
            workload.node.kill_agent()
            plugin.report({"renamed": (FAR_NODE,)})
            workload.node.start_agent(workload.kubelet_dir)
            generation = workload.node.metric("topolet_snapshot_generation")
            run_with_card(workload, "next")
            eventually(
                "the agent has decided about the next pod",
                lambda: workload.node.metric("topolet_snapshot_generation") > generation,
            )
        finally:
            done.set()
            watching.join()
        assert {cpus for name, cpus in seen if name in ("card", "sharer", "next")} == {NEAR}
        assert {name: cpus for name, cpus in workload.current_cpus().items() if name in before} == (
            before
        ), "owners keep the kubelet's CPUs, and the pool is as before"
        assert workload.node.metric("topolet_containers_far_from_devices") == 0
    snapshot = json.loads((workload.node.folder / "state" / "snapshot.json").read_text())
    assert not snapshot["owners"]
