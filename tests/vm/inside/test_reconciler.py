"""The agent alone on four NUMA nodes, with cgroup names of both drivers."""

from tests.fixtures.cgroups import MOUNTS, remove_cgroups
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import PodSpec, remove_pod, run_pod, update_container
from tests.integration.harness import NO_FULL_PASS, TestNode, fresh_node, kernel_group
from tests.vm.inside.pods import RUNS_ON, specs
from tests.waiting import eventually

IN_SLICES = ("lse", "be", "on-node-2")


def move_to_scope(pid: int, spec: PodSpec, container_id: str) -> None:
    """Moves a container to where systemd would create it: without systemd, runc makes one flat
    group whose name is the whole `slice:prefix:id`."""
    folder = MOUNTS
    parts = (*spec.cgroup_parent().split("/"), f"cri-containerd-{container_id}.scope")
    for part in filter(None, parts):
        (folder / "cgroup.subtree_control").write_text("+cpuset")
        folder /= part
        folder.mkdir(exist_ok=True)
    (folder / "cgroup.procs").write_text(str(pid))


def test_same_end_state_without_a_proxy(containerd: Containerd) -> None:
    with fresh_node(containerd) as node:
        ids: dict[str, str] = {}
        sandboxes: dict[str, str] = {}
        for name, spec in specs(node).items():
            if name in IN_SLICES:
                spec.slices, spec.cgroup_root = True, ""
            sandboxes[name], ids[name] = run_pod(node.direct, spec)
            if name in IN_SLICES:
                for status, container in (
                    (node.direct.container_status(ids[name]), ids[name]),
                    (node.direct.sandbox_status(sandboxes[name]), sandboxes[name]),
                ):
                    move_to_scope(status.pid, spec, container)

        def cpus() -> dict[str, str]:
            return {name: node.cpus(container) for name, container in ids.items()}

        assert set(cpus().values()) == {"0-15"}
        node.start_agent()
        eventually("all containers are on their CPUs", lambda: cpus() == RUNS_ON)

        def paused() -> dict[str, str]:
            return {name: node.sandbox_cpus(sandbox) for name, sandbox in sandboxes.items()}

        eventually("pause containers follow", lambda: paused() == RUNS_ON)
        assert node.kernel_value(ids["lse"], "cpuset", "cpuset.cpus") == "4-7"
        group = kernel_group(node.direct.container_status(ids["be"]).pid, "cpuset")
        assert group.relative_to(MOUNTS).parts[:2] == (
            "kubepods.slice",
            "kubepods-besteffort.slice",
        )

        for owner in ("lse", "lsr"):
            del ids[owner]
            remove_pod(node.direct, sandboxes[owner])
        without = dict.fromkeys(ids, "0-15") | {"on-node-2": "8-11"}
        eventually("the owners' CPUs are in the pool again", lambda: cpus() == without)

        node.stop_agent()
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert cpus() == dict.fromkeys(ids, "0-15")
    remove_cgroups("/kubepods.slice")


def test_events_report_containers_before_the_full_pass(containerd: Containerd) -> None:
    """It runs in the guest, where no pod of another test triggers a pass."""
    with fresh_node(containerd) as node:
        node.start_agent(NO_FULL_PASS)
        _, ls = run_pod(node.direct, node.spec("ls", "LS"))
        eventually("the agent waits for events", lambda: waits_for_events(node))
        sandbox, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
        eventually("settled", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0,2-15"))
        assert 'topolet_reconciliation_triggers_total{trigger="cgroup"}' in node.get("/metrics")[1]
        eventually("the agent waits for events again", lambda: waits_for_events(node))
        update_container(node.direct, ls, cpuset_cpus="0-1")
        eventually("corrected", lambda: node.cpus(ls) == "0,2-15")
        remove_pod(node.direct, sandbox)
        eventually("the CPU is released", lambda: node.cpus(ls) == "0-15")


def waits_for_events(node: TestNode) -> bool:
    """Whether the agent reconciles only after an event, or in a full pass."""
    return node.metric("topolet_reconciliation_interval_seconds") == 600
