"""Guaranteed pods start, fail, end, restart, are resized and deleted, with agents that restart."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.cri.client import RuntimeContainer, Sandbox
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    ContainerFailed,
    Created,
    PodAnnounced,
    Resized,
)
from agent.model.snapshot import CpuPolicy
from agent.node.node_local import NodeLocalCpus
from tests.node.world import World

ALL = CpuSet.parse("0-7")
CPUS = st.integers(1, 4)


class Churn(RuleBasedStateMachine):
    """A node with two NUMA nodes of four CPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name), cores=4, nodes=2)
        self.numbers = itertools.count(1)
        self.pods: dict[str, Sandbox] = {}
        self.requests: dict[str, int] = {}
        self.running: dict[str, RuntimeContainer] = {}
        self.ended: dict[str, RuntimeContainer] = {}

    @initialize(policy=st.sampled_from(["static", "dynamic"]), reserved=st.booleans())
    def start_node(self, policy: CpuPolicy, reserved: bool) -> None:
        self.local = NodeLocalCpus(policy, reserved=CpuSet([0]) if reserved else CpuSet())
        self.reserved = CpuSet([0]) if reserved else CpuSet()
        self.static = policy == "static"
        self.agent = self.world.agent(self.local)
        self.world.container(self.world.sandbox("ls", "LS"))
        self.reconcile()

    def reconcile(self) -> None:
        self.agent.reconcile()
        for _ in range(20):
            if not self.agent.again:
                return
            self.agent.reconcile()
        raise AssertionError("the moves do not end")

    def exclusive(self) -> dict[str, str]:
        """The CPUs of containers that own CPUs, by pod uid."""
        snapshot = self.world.snapshot()
        return {
            uid: self.effective(uid)
            for uid in self.running
            if (wanted := snapshot.pods[uid].containers.get("main")) and wanted.exclusive
        }

    def effective(self, uid: str) -> str:
        return self.world.cpus(f"kubepods/pod{uid}/{self.running[uid].id}")

    def request_container(self, uid: str, *, is_created: bool) -> None:
        """The kubelet requests a container; with `is_created` False its creation fails."""
        cpus = self.requests[uid]
        pod = PodAnnounced(uid, "ns", uid, {}, {}, f"/kubepods/pod{uid}")
        self.agent.notified([ContainerAnnounced(pod, "main", LinuxResources(shares=1024 * cpus))])
        before = None if not self.static else self.exclusive()
        self.agent.reconcile()
        if before is not None:
            assert self.exclusive() == before, "a container moved for a new one"
        wanted = self.world.snapshot().pods[uid].containers["main"]
        if wanted.blocked or not is_created:
            assert wanted.blocked or wanted.exclusive
            self.agent.notified([ContainerFailed(uid, "main")])
        else:
            chosen = CpuSet.parse(wanted.cpuset or "")
            assert len(chosen) == cpus
            self.ended.pop(uid, None)
            self.running[uid] = self.world.container(
                self.pods[uid], cpus=cpus, cpuset=str(chosen), created_at=next(self.numbers)
            )
            self.agent.notified([Created(self.running[uid].id, LinuxResources(shares=1024 * cpus))])
        self.reconcile()

    @rule(cpus=CPUS, is_created=st.booleans())
    def announce_pod(self, cpus: int, is_created: bool) -> None:
        uid = f"p{next(self.numbers)}"
        sandbox = self.world.sandbox(uid, parent=f"/kubepods/pod{uid}", created_at=0)
        self.world.group(f"kubepods/pod{uid}/{sandbox.id}", "0-7")
        self.pods[uid] = sandbox
        self.requests[uid] = cpus
        self.request_container(uid, is_created=is_created)

    @rule(data=st.data(), is_created=st.booleans())
    def restart_container(self, data: Any, is_created: bool) -> None:
        waiting = sorted(self.pods.keys() - self.running.keys())
        if waiting:
            self.request_container(data.draw(st.sampled_from(waiting)), is_created=is_created)

    @rule(data=st.data())
    def end_container_of_a_pod(self, data: Any) -> None:
        if self.running:
            uid = data.draw(st.sampled_from(sorted(self.running)))
            container = self.running.pop(uid)
            self.world.end_container(container, still_listed=True)
            self.ended[uid] = container
            self.reconcile()

    @rule(data=st.data())
    def delete_pod(self, data: Any) -> None:
        if not self.pods:
            return
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        sandbox = self.pods.pop(uid)
        if uid in self.running:
            self.world.end_container(self.running.pop(uid))
        self.ended.pop(uid, None)
        self.world.runtime.delete(sandbox)
        self.reconcile()

    @rule(data=st.data(), cpus=CPUS)
    def resize_container(self, data: Any, cpus: int) -> None:
        owners = self.exclusive()
        if not owners:
            return
        uid = data.draw(st.sampled_from(sorted(owners)))
        before = CpuSet.parse(owners[uid])
        container = self.running[uid]
        self.world.runtime.set_resources(container.id, shares=1024 * cpus)
        self.requests[uid] = cpus
        self.agent.notified([Resized(container.id, LinuxResources(shares=1024 * cpus))])
        self.agent.reconcile()
        if self.static:
            after = CpuSet.parse(self.effective(uid))
            assert after <= before or before <= after
        self.reconcile()

    @rule(with_snapshot=st.booleans())
    def restart_agent(self, with_snapshot: bool) -> None:
        before = self.exclusive()
        if not with_snapshot:
            (self.world.state / "snapshot.json").unlink()
        self.agent = self.world.agent(self.local)
        self.agent.reconcile()
        after = self.exclusive()
        if self.static:
            assert {uid: after.get(uid) for uid in before} == before
        self.reconcile()

    @invariant()
    def only_the_owner_runs_on_its_cpus(self) -> None:
        snapshot = self.world.snapshot()
        pool = union(each.cpus for each in snapshot.pools["ls"])
        assert pool
        assert self.reserved <= pool
        owned = [owner.cpus for owner in snapshot.owners]
        assert sum(map(len, owned)) == len(union(owned)), "a CPU has two owners"
        assert union(owned) == ALL - pool
        assert self.world.cpus("kubepods/burstable/podls/c-ls-main") == str(pool)
        for uid in self.running:
            wanted = snapshot.pods[uid].containers["main"]
            assert self.effective(uid) == wanted.cpuset
            if wanted.exclusive and not wanted.blocked:
                assert len(CpuSet.parse(self.effective(uid))) == self.requests[uid]
            if not wanted.exclusive:
                assert wanted.cpuset == str(pool)

    @invariant()
    def files_of_containers_have_their_cpus(self) -> None:
        folder = self.world.state / "containers"
        written = {each.name for each in folder.iterdir()} if folder.exists() else set()
        assert written <= self.pods.keys()
        if self.static:
            assert not written
            return
        for uid, cpus in self.exclusive().items():
            text = (folder / uid / "main" / "cpus").read_text()
            assert f'"cpus":"{cpus}"' in text

    def teardown(self) -> None:
        self.folder.cleanup()


TestChurn = Churn.TestCase
TestChurn.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
