"""Pods that start, end, change and have invalid annotations, a kubelet that assigns CPUs, and an
agent that restarts or is killed at any write: real passes on a model kernel, with the invariants
checked at every write.

The runtime is simulated as it behaves behind the proxy: a container starts on the CPUs that the
snapshot has for its pod, and not while the snapshot blocks it.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.cri.client import RuntimeContainer, Sandbox, VerboseStatus
from agent.kube.store import EmbeddedStore
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.notifications import (
    Created,
    Notification,
    PodAnnounced,
    SnapshotRequest,
)
from agent.model.pod.annotations import MIXED_CONTAINERS, RESOURCE_STATUS, SHARED_CONTAINERS
from agent.model.pod.pods import ContainerState
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.snapshot import Snapshot
from agent.node.enforcement import Enforcement
from agent.node.reconcile import ReconcileError, Reconciler
from agent.node.runtime_view import CgroupLocator, RuntimeView
from tests.cgroup.kernel import Kernel, ModelHierarchy
from tests.fixtures import trees
from tests.node.world import Kubelet, ListedRuntime, Objects, reconciler

CPUS = CpuSet(range(6))
PARENTS = {
    "LSE": "/kubepods/burstable",
    "LSR": "/kubepods/burstable",
    "LS": "/kubepods/burstable",
    "BE": "/kubepods/besteffort",
    "": "/kubepods",
}
"""By QoS label; a pod without one is Guaranteed here, so that the kubelet may give it CPUs."""


class AgentKilled(BaseException):
    """The agent is killed in the middle of a pass; no code catches it."""


class WatchedKernel(Kernel):
    """Records the value of every group after each write; kills the agent at a chosen write."""

    def __init__(self, version: int, cpus: dict[str, CpuSet], journal: Path) -> None:
        super().__init__(version, cpus)
        self.journal = journal
        self.trace: list[tuple[str, CpuSet, dict[str, CpuSet]]] = []
        self.killed_at_write: int | None = None
        self.refusing = ""

    def write(self, group: str, text: str) -> None:
        if self.killed_at_write is not None:
            if self.killed_at_write == 0:
                raise AgentKilled
            self.killed_at_write -= 1
        if group == self.refusing:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        inherits = self.version == 2 and not self.processes and "/pod" in group
        assert CpuSet.parse(text) or inherits, f"an empty cpuset for {group}"
        assert group in Journal(self.journal).originals, f"{group} is not journalled"
        gained = CpuSet.parse(text) - self.effective(group)
        super().write(group, text)
        self.trace.append((group, gained, {each: self.effective(each) for each in self.cpus}))

    def write_by_runtime(self, group: str, cpus: CpuSet) -> None:
        """A write of another process."""
        super().write(group, str(cpus))


class Runtime(ListedRuntime):
    """Changes the values with which a created container will start, as a runtime does."""

    def update(self, container_id: str, resources: LinuxResources) -> None:
        if resources.cpuset:
            self.set_resources(container_id, cpuset=resources.cpuset)


class Host:
    """What an agent's restart does not change: kernel, runtime, kubelet and state folder."""

    def __init__(self, version: int, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        parents = ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort")
        initial = CPUS if version == 1 else EMPTY
        self.kernel = WatchedKernel(
            version, {"/": CPUS} | dict.fromkeys(parents, initial), self.state / "journal"
        )
        self.runtime = Runtime()
        self.root = trees.write(str(folder / "machine"), trees.machine(2, 1, 1, 3, 1))
        (folder / "machine" / "proc").mkdir(exist_ok=True)
        self.kubelet: dict[str, CpuSet] = {}
        self.classes: dict[str, QoS] = {}
        """By pod uid; of removed pods too: an announced pod owns CPUs until it is forgotten."""
        self.static = False

    def clone(self, folder: Path) -> Host:
        """A copy of the host."""
        other = copy.copy(self)
        other.folder = folder
        other.state = folder / "state"
        shutil.copytree(self.state, other.state)
        other.kernel = copy.deepcopy(self.kernel)
        other.kernel.journal = other.state / "journal"
        other.runtime = copy.copy(self.runtime)
        other.runtime.statuses = dict(self.runtime.statuses)
        other.write_kubelet()
        return other

    def agent(self) -> Reconciler:
        hierarchy = ModelHierarchy(self.kernel)
        store = EmbeddedStore(str(self.state / "objects"))
        runtime = RuntimeView(self.runtime, CgroupLocator(hierarchy))
        journal = Journal(self.state / "journal")
        enforcement = Enforcement(hierarchy, Controllers(str(self.folder)), journal, self.runtime)
        return reconciler(
            self.root,
            self.state,
            self.folder,
            runtime,
            Objects(store),
            Kubelet(),
            enforcement,
            store,
        )

    def snapshot(self) -> Snapshot | None:
        path = self.state / "snapshot.json"
        return snapshots.decode(path.read_bytes()) if path.exists() else None

    def write_kubelet(self) -> None:
        entries = {
            uid: dict.fromkeys(("n0", "n1"), str(cpus)) for uid, cpus in self.kubelet.items()
        }
        body = {"policyName": "static" if self.static else "none", "entries": entries}
        (self.folder / "cpu_manager_state").write_text(json.dumps(body))

    def make_group(self, group: str, cpus: CpuSet = EMPTY) -> None:
        """Creates a group as a runtime does: on v1 first with the CPUs of its parent."""
        self.kernel.make(group)
        parent_cpus = self.kernel.cpus[group.rpartition("/")[0]]
        if self.kernel.version == 1:
            self.kernel.write_by_runtime(group, parent_cpus)
        if cpus:
            self.kernel.write_by_runtime(group, cpus)

    def sandbox_of(self, uid: str) -> Sandbox:
        return next(each for each in self.runtime.listed_sandboxes if each.uid == uid)

    def pod_group(self, uid: str) -> str:
        return self.runtime.statuses[f"s-{uid}"].cgroup_parent

    def containers(self, state: ContainerState) -> list[RuntimeContainer]:
        return [each for each in self.runtime.listed_containers if each.state is state]

    def running(self) -> dict[str, str]:
        """Pod uid by group."""
        return {group: uid for group, (uid, _) in self.running_containers().items()}

    def running_containers(self) -> dict[str, tuple[str, str]]:
        """Pod uid and container name by group."""
        return {
            self.runtime.statuses[each.id].cgroups_path: (
                each.sandbox_id.removeprefix("s-"),
                each.name,
            )
            for each in self.containers(ContainerState.RUNNING)
        }

    def shared(
        self, effective: dict[str, CpuSet], owned: dict[str, CpuSet]
    ) -> set[tuple[str, str]]:
        """Pairs of a container's group and the group of an owner's container that share owned CPUs.
        `owned`: by pod uid. A BE pod may share the CPUs of every class except LSE; CPUs that
        the kubelet assigned only those of an LSR pod."""
        running = self.running()
        return {
            (group, other)
            for other, owner in running.items()
            for group, uid in running.items()
            if owner in owned
            and uid != owner
            and not (self.classes[uid] is QoS.BE and self.shares_with_be(owner))
            and effective[group] & effective[other] & owned[owner]
        }

    def shares_with_be(self, owner: str) -> bool:
        qos = self.classes[owner]
        return qos is QoS.LSR if owner in self.kubelet else qos is not QoS.LSE


claims = st.one_of(
    st.just(""),
    st.sets(st.integers(0, 5), min_size=1, max_size=2).map(lambda cpus: str(CpuSet(cpus))),
    st.sets(st.integers(0, 5), min_size=1, max_size=2).map(lambda cpus: str(CpuSet(cpus))),
    st.sampled_from(["0-5", "0-4", "5-99", "99", "x"]),
)


class Churn(RuleBasedStateMachine):
    version = 1

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(
            tempfile.mkdtemp(prefix="topolet-churn-", dir=memory if memory.is_dir() else None)
        )
        self.host = Host(self.version, self.folder / "host")
        self.agent = self.host.agent()
        self.pod_number = 0
        self.container_number = 0
        self.announced: set[str] = set()
        self.settled = False

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def some(self, data: st.DataObject, uids: list[str]) -> str:
        return data.draw(st.sampled_from(uids))

    def uids(self) -> list[str]:
        return [each.uid for each in self.host.runtime.listed_sandboxes]

    @initialize(classes=st.lists(st.sampled_from(["LSE", "LSR", "LS", "LS", "BE"]), max_size=4))
    def start_node(self, classes: list[str]) -> None:
        """A node with a few pods of one running container each. CPU 5 is never exclusive."""
        self.reconcile()
        for number, qos in enumerate(classes):
            self.create_pod(qos, str(number) if qos in ("LSE", "LSR") else "", False)
            self.create_container(f"p{self.pod_number}", start=True)

    @rule(
        qos=st.sampled_from(["LSE", "LSR", "LS", "BE", ""]),
        claim=claims,
        notified=st.booleans(),
        sidecar=st.booleans(),
        mixed=st.booleans(),
    )
    def create_pod(
        self,
        qos: str,
        claim: str,
        notified: bool,
        sidecar: bool = False,
        guaranteed: bool = False,
        mixed: bool = False,
    ) -> None:
        """`sidecar`: the second container of the pod is a sidecar, which shares the pool.
        `mixed`: the first one runs on the pool beside its own CPUs."""
        self.pod_number += 1
        uid = f"p{self.pod_number}"
        self.host.classes[uid] = QoS(qos or "LS")
        parent = f"{PARENTS['' if guaranteed else qos]}/pod{uid}"
        labels = {QOS_LABEL: qos} if qos else {}
        annotations = {RESOURCE_STATUS: f'{{"cpuset": "{claim}"}}'} if claim else {}
        if sidecar:
            annotations[SHARED_CONTAINERS] = "n1"
        if mixed:
            annotations[MIXED_CONTAINERS] = "n0"
        self.host.make_group(parent)
        if notified:
            self.announced.add(uid)
            self.reconcile(PodAnnounced(uid, "ns", uid, labels, annotations, parent))
        sandbox = Sandbox(f"s-{uid}", uid, "ns", uid, True, self.pod_number, labels, annotations)
        self.host.runtime.listed_sandboxes.append(sandbox)
        group = f"{parent}/{sandbox.id}"
        self.host.runtime.statuses[sandbox.id] = VerboseStatus(
            cgroup_parent=parent, cgroups_path=group
        )
        self.host.make_group(group)
        first = self.host.kernel.effective(group)
        for owner in self.owned() if notified and self.has_cpus(uid) else ():
            if owner != uid and not (qos == "BE" and self.host.shares_with_be(owner)):
                assert not first & self.owned()[owner], f"{uid} starts on CPUs of {owner}"
        self.settled = False

    def has_cpus(self, uid: str) -> bool:
        """Whether the pod owns CPUs or its pool has some: others may own all of them."""
        snapshot = self.host.snapshot()
        assert snapshot is not None
        return bool(snapshot.pods[uid].each.cpuset)

    @precondition(lambda self: self.uids())
    @rule(data=st.data(), start=st.booleans())
    def create_container_of_a_pod(self, data: st.DataObject, start: bool) -> None:
        self.create_container(self.some(data, self.uids()), start=start)

    def create_container(self, uid: str, *, start: bool) -> None:
        self.reconcile(SnapshotRequest())
        snapshot = self.host.snapshot()
        assert snapshot is not None
        runtime = self.host.runtime
        names = {each.name for each in runtime.listed_containers if each.sandbox_id == f"s-{uid}"}
        name = next((name for name in ("n0", "n1") if name not in names), None)
        if name is None:
            return
        wanted = snapshot.pods[uid].of(name)
        if wanted.blocked:
            return
        self.container_number += 1
        container = RuntimeContainer(
            f"c-{uid}-{self.container_number}",
            f"s-{uid}",
            name,
            ContainerState.CREATED,
        )
        runtime.listed_containers.append(container)
        runtime.statuses[container.id] = VerboseStatus(
            cgroups_path=f"{self.host.pod_group(uid)}/{container.id}",
            resources=LinuxResources(str(self.host.kubelet.get(uid, wanted.cpuset))),
        )
        self.agent.notified([Created(container.id, NO_RESOURCES)])
        self.settled = False
        if start:
            self.start_container(container)

    @precondition(lambda self: self.host.containers(ContainerState.CREATED))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.reconcile(SnapshotRequest())
        self.start_container(
            data.draw(st.sampled_from(self.host.containers(ContainerState.CREATED)))
        )

    def start_container(self, container: RuntimeContainer) -> None:
        host = self.host
        status = host.runtime.statuses[container.id]
        listed = host.runtime.listed_containers
        listed[listed.index(container)] = msgspec.structs.replace(
            container, state=ContainerState.RUNNING
        )
        effective = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        host.make_group(status.cgroups_path, CpuSet.parse(status.resources.cpuset or ""))
        effective[status.cgroups_path] = host.kernel.effective(status.cgroups_path)
        owned = self.owned()
        conflicts = [pair for pair in host.shared(effective, owned) if status.cgroups_path in pair]
        assert not conflicts, (
            f"{container.id} started on CPUs that are not its own: {conflicts} {owned}"
        )
        self.settled = False

    def owned(self) -> dict[str, CpuSet]:
        snapshot = self.host.snapshot()
        return {each.uid: each.cpus for each in snapshot.owners} if snapshot else {}

    @precondition(lambda self: self.host.runtime.listed_containers)
    @rule(data=st.data())
    def end_container(self, data: st.DataObject) -> None:
        self.remove_container(data.draw(st.sampled_from(self.host.runtime.listed_containers)))

    def remove_container(self, container: RuntimeContainer) -> None:
        self.host.runtime.listed_containers.remove(container)
        status = self.host.runtime.statuses.pop(container.id)
        if container.state is ContainerState.RUNNING:
            self.host.kernel.remove(status.cgroups_path)
        self.settled = False

    @precondition(lambda self: self.uids())
    @rule(data=st.data())
    def delete_pod(self, data: st.DataObject) -> None:
        self.remove_pod(self.some(data, self.uids()))

    def remove_pod(self, uid: str) -> None:
        for each in [
            each for each in self.host.runtime.listed_containers if each.sandbox_id == f"s-{uid}"
        ]:
            self.remove_container(each)
        self.host.runtime.listed_sandboxes.remove(self.host.sandbox_of(uid))
        status = self.host.runtime.statuses.pop(f"s-{uid}")
        self.host.kernel.remove(status.cgroups_path)
        self.host.kernel.remove(status.cgroup_parent)
        self.host.kubelet.pop(uid, None)
        self.host.write_kubelet()
        self.settled = False

    @precondition(lambda self: self.uids())
    @rule(data=st.data(), claim=claims)
    def change_claim(self, data: st.DataObject, claim: str) -> None:
        uid = self.some(data, self.uids())
        sandbox = self.host.sandbox_of(uid)
        annotations = dict(sandbox.annotations)
        annotations[RESOURCE_STATUS] = f'{{"cpuset": "{claim}"}}' if claim else ""
        listed = self.host.runtime.listed_sandboxes
        listed[listed.index(sandbox)] = msgspec.structs.replace(sandbox, annotations=annotations)
        self.settled = False

    @precondition(lambda self: self.owned().keys() & set(self.uids()))
    @rule(data=st.data(), cpu=st.integers(0, 4))
    def add_cpu_to_an_owner(self, data: st.DataObject, cpu: int) -> None:
        """An owner claims one more CPU."""
        self.add_cpu(self.some(data, sorted(self.owned().keys() & set(self.uids()))), cpu)

    def add_cpu(self, uid: str, cpu: int) -> None:
        claim = str(self.owned()[uid] | CpuSet([cpu]))
        sandbox, listed = self.host.sandbox_of(uid), self.host.runtime.listed_sandboxes
        annotations = sandbox.annotations | {RESOURCE_STATUS: f'{{"cpuset": "{claim}"}}'}
        listed[listed.index(sandbox)] = msgspec.structs.replace(sandbox, annotations=annotations)
        self.settled = False
        self.reconcile()

    @rule(cpu=st.integers(0, 4), notified=st.booleans())
    def start_owner(self, cpu: int, notified: bool) -> None:
        """An owner with a running container, if the snapshot allows it."""
        self.create_pod("LSE", str(cpu), notified)
        self.create_container(f"p{self.pod_number}", start=True)

    @precondition(lambda self: self.host.running())
    @rule(data=st.data())
    def kernel_refuses(self, data: st.DataObject) -> None:
        """The kernel refuses every write to one group until `kernel_accepts`."""
        self.host.kernel.refusing = data.draw(st.sampled_from(sorted(self.host.running())))

    @rule()
    def kernel_accepts(self) -> None:
        self.host.kernel.refusing = ""

    @precondition(lambda self: [uid for uid in self.uids() if self.unlabelled(uid)])
    @rule(data=st.data(), cpus=st.sets(st.integers(0, 5), max_size=2).map(CpuSet))
    def kubelet_assigns_cpus(self, data: st.DataObject, cpus: CpuSet) -> None:
        """The kubelet assigns CPUs that neither it nor Topolet has assigned to another pod."""
        host = self.host
        uid = self.some(data, [uid for uid in self.uids() if self.unlabelled(uid)])
        self.reconcile()
        cpus -= union(self.owned().values())
        cpus -= union(each for other, each in host.kubelet.items() if other != uid)
        host.static = True
        host.kubelet.pop(uid, None)
        if cpus:
            host.kubelet[uid] = cpus
            for group, of in host.running().items():
                if of == uid:
                    host.kernel.write_by_runtime(group, cpus)
        host.write_kubelet()
        self.settled = False

    @rule(
        qos=st.sampled_from(["LSE", "LSR", ""]),
        claim=claims,
        wanted=st.lists(st.integers(1, 5), min_size=1, max_size=2),
        start=st.booleans(),
        mixed=st.booleans(),
    )
    def kubelet_admits_pod(
        self, qos: str, claim: str, wanted: list[int], start: bool, mixed: bool = False
    ) -> None:
        """The kubelet assigns CPUs to a pod before its sandbox is created, also CPUs that another
        pod claims: it knows only its own assignments, and reserves CPU 0."""
        host = self.host
        taken = union(host.kubelet.values())
        free = CpuSet(wanted) - taken
        if not free or not CPUS - taken - free:
            return
        host.static = True
        host.kubelet[f"p{self.pod_number + 1}"] = free
        host.write_kubelet()
        self.create_pod(qos, claim, notified=True, guaranteed=True, mixed=mixed)
        self.create_container(f"p{self.pod_number}", start=start)

    def unlabelled(self, uid: str) -> bool:
        """Whether the kubelet may assign CPUs to the pod, and no other source has."""
        sandbox = self.host.sandbox_of(uid)
        return not sandbox.labels and not sandbox.annotations

    @rule()
    def run_pass(self) -> None:
        self.reconcile()

    def reconcile(self, *notifications: Notification) -> None:
        """A pass; every write of it is checked."""
        host = self.host
        self.agent.notified(list(notifications))
        before = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        owned_before = self.owned()
        shared_before = host.shared(before, owned_before)
        host.kernel.trace.clear()
        failed = False
        try:
            self.agent.reconcile()
        except ReconcileError:
            assert host.kernel.refusing
            failed = True
        self.announced -= set(self.uids())
        self.check_writes(before, owned_before, shared_before)
        self.check_decision(failed=failed)
        self.settled = not failed

    def check_writes(
        self,
        before: dict[str, CpuSet],
        owned_before: dict[str, CpuSet],
        shared_before: set[tuple[str, str]],
    ) -> None:
        host = self.host
        after = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        now = self.owned()  # an owner without a claim loses its CPUs
        owned_before = {uid: cpus & now.get(uid, EMPTY) for uid, cpus in owned_before.items()}
        swaps = any(not before[group] & after[group] for group in host.running())
        for group, gained, effective in host.kernel.trace:
            for each, cpus in effective.items():
                assert cpus, f"{each} has no CPU"
                assert each == "/" or cpus <= effective[each.rpartition("/")[0] or "/"]
            if swaps:
                continue
            newly_shared = host.shared(effective, owned_before) - shared_before
            assert not newly_shared, f"after {group}: {newly_shared} share CPUs of {owned_before}"
            new = {pair for pair in host.shared(effective, self.owned()) if group in pair}
            new -= host.shared(after, self.owned())
            assert not gained or not {
                pair for pair in new if effective[pair[0]] & effective[pair[1]] & gained
            }, f"{group} gained {gained} too early: {new}"

    def check_decision(self, *, failed: bool = False) -> None:
        host = self.host
        snapshot = host.snapshot()
        assert snapshot is not None
        taken = EMPTY
        ls = union(each.cpus for each in snapshot.pools["ls"])
        be = union(each.cpus for each in snapshot.pools["be"])
        for owner in snapshot.owners:
            assert owner.cpus, f"{owner.title} owns no CPUs"
            assert not owner.cpus & taken, f"{owner.title} owns {owner.cpus & taken} of another"
            assert owner.kubelet == (owner.uid in host.kubelet)
            assert not owner.kubelet or owner.cpus == host.kubelet[owner.uid]
            taken |= owner.cpus
            assert not owner.cpus & ls
            assert owner.qos is not QoS.LSE or not owner.cpus & be
        if failed:
            return
        for uid, each in snapshot.pods.items():
            of_pod = each.each
            assert of_pod.exclusive or not of_pod.blocked or of_pod.cpuset is None, (
                f"{uid}: {of_pod}"
            )
        for group, (uid, name) in host.running_containers().items():
            wanted = snapshot.pods[uid].of(name).cpuset
            assert wanted, f"{uid} has no CPU: {snapshot}"
            assert host.kernel.cpus[group] == CpuSet.parse(wanted)
            if uid in host.kubelet:
                assert snapshot.pods[uid].of(name).own == host.kubelet[uid]
        owned = {each.uid: each.cpus for each in snapshot.owners}
        effective = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        assert not host.shared(effective, owned)

    @precondition(lambda self: self.settled and not self.announced)
    @rule()
    def agent_restarts(self) -> None:
        """A restart writes and decides nothing. (Announcements are lost: their pods are announced
        again before each container.)"""
        before = self.host.snapshot()
        self.agent = self.host.agent()
        self.reconcile()
        assert not self.host.kernel.trace
        after = self.host.snapshot()
        assert before is not None
        assert after is not None
        assert _enforced(before) == _enforced(after)

    @precondition(lambda self: not self.host.kernel.refusing)
    @rule(writes=st.integers(0, 6))
    def agent_is_killed(self, writes: int) -> None:
        """The agent is killed at a write; the next one reaches the state that the first would have
        reached."""
        self.announced.clear()
        host = self.host
        other = host.clone(self.folder / "clone")
        other.agent().reconcile()
        before = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        owned_before = self.owned()
        shared_before = host.shared(before, owned_before)
        host.kernel.trace.clear()
        host.kernel.killed_at_write = writes
        with contextlib.suppress(AgentKilled):
            host.agent().reconcile()
        host.kernel.killed_at_write = None
        self.agent = host.agent()
        self.agent.reconcile()
        self.check_writes(before, owned_before, shared_before)
        self.check_decision()
        self.settled = True
        assert host.kernel.cpus == other.kernel.cpus
        actual, expected = host.snapshot(), other.snapshot()
        assert actual is not None
        assert expected is not None
        assert _enforced(actual) == _enforced(expected)
        shutil.rmtree(other.folder)


def _enforced(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, generation=0, listed_at=0)


class Churn2(Churn):
    version = 2


_SETTINGS = settings(
    max_examples=150,
    stateful_step_count=14,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

TestChurnOnV1 = Churn.TestCase
TestChurnOnV1.settings = _SETTINGS
TestChurnOnV2 = Churn2.TestCase
TestChurnOnV2.settings = _SETTINGS


@pytest.mark.parametrize("machine", [Churn, Churn2])
def test_a_created_owner_does_not_get_a_cpu_that_another_container_still_has(
    machine: type[Churn],
) -> None:
    state = machine()
    state.start_node([])
    state.create_pod("LSE", "0", False)
    state.create_pod("LSE", "2", False)
    state.create_container("p2", start=False)
    state.start_owner(0, False)
    (state.host.kernel.refusing,) = state.host.running()
    state.add_cpu("p2", 1)
    state.reconcile(SnapshotRequest())
    (created,) = state.host.containers(ContainerState.CREATED)
    assert state.host.runtime.statuses[created.id].resources.cpuset == "2"
    state.kernel_accepts()
    state.reconcile(SnapshotRequest())
    state.reconcile(SnapshotRequest())
    assert state.host.runtime.statuses[created.id].resources.cpuset == "1-2"
    state.start_container(created)
    state.teardown()


@pytest.mark.parametrize("machine", [Churn, Churn2])
def test_created_owners_that_change_cpus_with_each_other_start_on_their_own(
    machine: type[Churn],
) -> None:
    state = machine()
    state.start_node(["LSE", "LS", "LSE"])
    state.kubelet_admits_pod(qos="", claim="", wanted=[2], start=False)
    state.create_container("p3", start=False)
    state.host.kubelet["p4"] = CpuSet([1])
    state.host.write_kubelet()
    state.reconcile(SnapshotRequest())
    first, second = state.host.containers(ContainerState.CREATED)
    assert [state.host.runtime.statuses[each.id].resources.cpuset for each in (first, second)] == [
        "1",
        "2",
    ]
    state.start_container(first)
    state.start_container(second)
    state.teardown()


@pytest.mark.parametrize("machine", [Churn, Churn2])
def test_a_pod_may_begin_while_a_removed_one_is_still_announced(machine: type[Churn]) -> None:
    state = machine()
    state.start_node([])
    state.create_pod("LSE", "0", True)
    state.remove_pod("p1")
    state.create_pod("BE", "", True)
    assert state.owned() == {"p1": CpuSet([0])}
    state.teardown()
