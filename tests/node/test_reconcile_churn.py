"""Pods that start, end, change and have false annotations, a kubelet that assigns CPUs, and an
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
from agent.model.notifications import (
    Created,
    Notification,
    PodAnnounced,
    RequestedResources,
    SnapshotRequest,
)
from agent.model.pod.annotations import RESOURCE_STATUS, SHARED_CONTAINERS
from agent.model.pod.pods import ContainerState
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.snapshot import Snapshot, Wanted
from agent.node.enforcement import Enforcement
from agent.node.reconcile import ReconcileError, Reconciler
from agent.node.runtime_view import CgroupLocator, RuntimeView
from tests.cgroup.kernel import Kernel, ModelHierarchy
from tests.fixtures import trees
from tests.node.world import Kubelet, ListedRuntime, Objects, reconciler, with_resources

CPUS = CpuSet(range(6))
PARENTS = {
    "LSE": "/kubepods/burstable",
    "LSR": "/kubepods/burstable",
    "LS": "/kubepods/burstable",
    "BE": "/kubepods/besteffort",
    "": "/kubepods",
}
"""By QoS label; a pod without one is Guaranteed here, so that the kubelet may give it CPUs."""


class Died(BaseException):
    """The agent's end in the middle of a pass; no code catches it."""


class WatchedKernel(Kernel):
    """Records the value of every group after each write, and ends the agent at a chosen one."""

    def __init__(self, version: int, cpus: dict[str, CpuSet], journal: Path) -> None:
        super().__init__(version, cpus)
        self.journal = journal
        self.trace: list[tuple[str, CpuSet, dict[str, CpuSet]]] = []
        self.dies_at: int | None = None
        self.refusing = ""

    def write(self, group: str, text: str) -> None:
        if self.dies_at is not None:
            if self.dies_at == 0:
                raise Died
            self.dies_at -= 1
        if group == self.refusing:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        inherits = self.version == 2 and not self.processes and "/pod" in group
        assert CpuSet.parse(text) or inherits, f"an empty cpuset for {group}"
        assert group in Journal(self.journal).originals, f"{group} is not journalled"
        gained = CpuSet.parse(text) - self.effective(group)
        super().write(group, text)
        self.trace.append((group, gained, {each: self.effective(each) for each in self.cpus}))

    def by_runtime(self, group: str, cpus: CpuSet) -> None:
        """A write of another process."""
        super().write(group, str(cpus))


class Runtime(ListedRuntime):
    """Changes the values with which a created container will start, as a runtime does."""

    def update(self, container_id: str, wanted: Wanted) -> None:
        status = self.statuses[container_id]
        cpuset = wanted.cpuset or status.resources.cpuset
        self.statuses[container_id] = with_resources(status, cpuset=cpuset)


class Host:
    """The parts that survive an agent: kernel, runtime, kubelet and the files of the state
    folder."""

    def __init__(self, version: int, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        parents = ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort")
        own = CPUS if version == 1 else EMPTY
        self.kernel = WatchedKernel(
            version, {"/": CPUS} | dict.fromkeys(parents, own), self.state / "journal"
        )
        self.runtime = Runtime()
        self.root = trees.write(str(folder / "machine"), trees.machine(2, 1, 1, 3, 1))
        (folder / "machine" / "proc").mkdir(exist_ok=True)
        self.kubelet: dict[str, CpuSet] = {}
        self.classes: dict[str, QoS] = {}
        """By pod uid; of removed pods too: an announced pod owns CPUs until it is forgotten."""
        self.static = False

    def twin(self, folder: Path) -> Host:
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

    def make(self, group: str, cpus: CpuSet = EMPTY) -> None:
        """As runtimes do: on v1 with the CPUs of its ancestors first."""
        self.kernel.make(group)
        above = self.kernel.cpus[group.rpartition("/")[0]]
        if self.kernel.version == 1:
            self.kernel.by_runtime(group, above)
        if cpus:
            self.kernel.by_runtime(group, cpus)

    def sandbox_of(self, uid: str) -> Sandbox:
        return next(each for each in self.runtime.listed_sandboxes if each.uid == uid)

    def pod_group(self, uid: str) -> str:
        return self.runtime.statuses[f"s-{uid}"].cgroup_parent

    def containers(self, state: ContainerState) -> list[RuntimeContainer]:
        return [each for each in self.runtime.listed_containers if each.state is state]

    def running(self) -> dict[str, str]:
        """Group to pod uid."""
        return {group: uid for group, (uid, _) in self.running_containers().items()}

    def running_containers(self) -> dict[str, tuple[str, str]]:
        """Group to pod uid and container's name."""
        return {
            self.runtime.statuses[each.id].cgroups_path: (
                each.sandbox_id.removeprefix("s-"),
                each.name,
            )
            for each in self.containers(ContainerState.RUNNING)
        }

    def shared(self, held: dict[str, CpuSet], owned: dict[str, CpuSet]) -> set[tuple[str, str]]:
        """A container's group and the group of an owner's container on whose CPUs it is; an owner
        by pod uid. BE may be on those of every class except LSE, and on the kubelet's only for
        LSR."""
        running = self.running()
        return {
            (group, other)
            for other, owner in running.items()
            for group, uid in running.items()
            if owner in owned
            and uid != owner
            and not (self.classes[uid] is QoS.BE and self.with_be(owner))
            and held[group] & held[other] & owned[owner]
        }

    def with_be(self, owner: str) -> bool:
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
        self.pods = 0
        self.made = 0
        self.announced: set[str] = set()
        self.settled = False

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def some(self, data: st.DataObject, uids: list[str]) -> str:
        return data.draw(st.sampled_from(uids))

    def uids(self) -> list[str]:
        return [each.uid for each in self.host.runtime.listed_sandboxes]

    @initialize(classes=st.lists(st.sampled_from(["LSE", "LSR", "LS", "LS", "BE"]), max_size=4))
    def begins(self, classes: list[str]) -> None:
        """A node with a running container in each of a few pods. CPU 5 is never exclusive."""
        self.reconcile()
        for number, qos in enumerate(classes):
            self.create_pod(qos, str(number) if qos in ("LSE", "LSR") else "", False)
            self.create(f"p{self.pods}", starts=True)

    @rule(
        qos=st.sampled_from(["LSE", "LSR", "LS", "BE", ""]),
        claim=claims,
        notified=st.booleans(),
        aside=st.booleans(),
    )
    def create_pod(
        self, qos: str, claim: str, notified: bool, aside: bool = False, guaranteed: bool = False
    ) -> None:
        """`aside`: its second container is a sidecar that stays on the pool."""
        self.pods += 1
        uid = f"p{self.pods}"
        self.host.classes[uid] = QoS(qos or "LS")
        parent = f"{PARENTS['' if guaranteed else qos]}/pod{uid}"
        labels = {QOS_LABEL: qos} if qos else {}
        notes = {RESOURCE_STATUS: f'{{"cpuset": "{claim}"}}'} if claim else {}
        if aside:
            notes[SHARED_CONTAINERS] = "n1"
        self.host.make(parent)
        if notified:
            self.announced.add(uid)
            self.reconcile(PodAnnounced(uid, "ns", uid, labels, notes, parent))
        sandbox = Sandbox(f"s-{uid}", uid, "ns", uid, True, self.pods, labels, notes)
        self.host.runtime.listed_sandboxes.append(sandbox)
        group = f"{parent}/{sandbox.id}"
        self.host.runtime.statuses[sandbox.id] = VerboseStatus(
            cgroup_parent=parent, cgroups_path=group
        )
        self.host.make(group)
        first = self.host.kernel.effective(group)
        for owner in self.owned() if notified and self.has_cpus(uid) else ():
            if owner != uid and not (qos == "BE" and self.host.with_be(owner)):
                assert not first & self.owned()[owner], f"{uid} begins on CPUs of {owner}"
        self.settled = False

    def has_cpus(self, uid: str) -> bool:
        """Whether the pod owns CPUs or its pool has some: others may own all of them."""
        snapshot = self.host.snapshot()
        assert snapshot is not None
        return bool(snapshot.pods[uid].each.cpuset)

    @precondition(lambda self: self.uids())
    @rule(data=st.data(), starts=st.booleans())
    def creates(self, data: st.DataObject, starts: bool) -> None:
        self.create(self.some(data, self.uids()), starts=starts)

    def create(self, uid: str, *, starts: bool) -> None:
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
        self.made += 1
        container = RuntimeContainer(
            f"c-{uid}-{self.made}",
            f"s-{uid}",
            name,
            ContainerState.CREATED,
        )
        runtime.listed_containers.append(container)
        runtime.statuses[container.id] = VerboseStatus(
            cgroups_path=f"{self.host.pod_group(uid)}/{container.id}",
            resources=RequestedResources(str(self.host.kubelet.get(uid, wanted.cpuset))),
        )
        self.agent.notified([Created(container.id, RequestedResources())])
        self.settled = False
        if starts:
            self.started(container)

    @precondition(lambda self: self.host.containers(ContainerState.CREATED))
    @rule(data=st.data())
    def starts(self, data: st.DataObject) -> None:
        self.reconcile(SnapshotRequest())
        self.started(data.draw(st.sampled_from(self.host.containers(ContainerState.CREATED))))

    def started(self, container: RuntimeContainer) -> None:
        host = self.host
        status = host.runtime.statuses[container.id]
        listed = host.runtime.listed_containers
        listed[listed.index(container)] = msgspec.structs.replace(
            container, state=ContainerState.RUNNING
        )
        held = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        host.make(status.cgroups_path, CpuSet.parse(status.resources.cpuset))
        held[status.cgroups_path] = host.kernel.effective(status.cgroups_path)
        owned = self.owned()
        bad = [pair for pair in host.shared(held, owned) if status.cgroups_path in pair]
        assert not bad, f"{container.id} started on CPUs that are not its own: {bad} {owned}"
        self.settled = False

    def owned(self) -> dict[str, CpuSet]:
        snapshot = self.host.snapshot()
        return {each.uid: each.cpus for each in snapshot.owners} if snapshot else {}

    @precondition(lambda self: self.host.runtime.listed_containers)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(self.host.runtime.listed_containers)))

    def remove(self, container: RuntimeContainer) -> None:
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
            self.remove(each)
        self.host.runtime.listed_sandboxes.remove(self.host.sandbox_of(uid))
        status = self.host.runtime.statuses.pop(f"s-{uid}")
        self.host.kernel.remove(status.cgroups_path)
        self.host.kernel.remove(status.cgroup_parent)
        self.host.kubelet.pop(uid, None)
        self.host.write_kubelet()
        self.settled = False

    @precondition(lambda self: self.uids())
    @rule(data=st.data(), claim=claims)
    def claims_anew(self, data: st.DataObject, claim: str) -> None:
        uid = self.some(data, self.uids())
        sandbox = self.host.sandbox_of(uid)
        notes = dict(sandbox.annotations)
        notes[RESOURCE_STATUS] = f'{{"cpuset": "{claim}"}}' if claim else ""
        listed = self.host.runtime.listed_sandboxes
        listed[listed.index(sandbox)] = msgspec.structs.replace(sandbox, annotations=notes)
        self.settled = False

    @precondition(lambda self: self.owned().keys() & set(self.uids()))
    @rule(data=st.data(), cpu=st.integers(0, 4))
    def widens(self, data: st.DataObject, cpu: int) -> None:
        """An owner claims one more CPU."""
        self.widen(self.some(data, sorted(self.owned().keys() & set(self.uids()))), cpu)

    def widen(self, uid: str, cpu: int) -> None:
        claim = str(self.owned()[uid] | CpuSet([cpu]))
        sandbox, listed = self.host.sandbox_of(uid), self.host.runtime.listed_sandboxes
        notes = sandbox.annotations | {RESOURCE_STATUS: f'{{"cpuset": "{claim}"}}'}
        listed[listed.index(sandbox)] = msgspec.structs.replace(sandbox, annotations=notes)
        self.settled = False
        self.reconcile()

    @rule(cpu=st.integers(0, 4), notified=st.booleans())
    def owner_comes(self, cpu: int, notified: bool) -> None:
        """With a container, if the snapshot allows it."""
        self.create_pod("LSE", str(cpu), notified)
        self.create(f"p{self.pods}", starts=True)

    @precondition(lambda self: self.host.running())
    @rule(data=st.data())
    def kernel_refuses(self, data: st.DataObject) -> None:
        """Refuses every write to one group, until `kernel_relents`."""
        self.host.kernel.refusing = data.draw(st.sampled_from(sorted(self.host.running())))

    @rule()
    def kernel_relents(self) -> None:
        self.host.kernel.refusing = ""

    @precondition(lambda self: [uid for uid in self.uids() if self.unlabelled(uid)])
    @rule(data=st.data(), cpus=st.sets(st.integers(0, 5), max_size=2).map(CpuSet))
    def kubelet_gives(self, data: st.DataObject, cpus: CpuSet) -> None:
        """Of the CPUs that it does not know to be assigned, the kubelet takes those that Topolet's
        owners leave."""
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
                    host.kernel.by_runtime(group, cpus)
        host.write_kubelet()
        self.settled = False

    @rule(
        qos=st.sampled_from(["LSE", "LSR", ""]),
        claim=claims,
        wanted=st.lists(st.integers(1, 5), min_size=1, max_size=2),
        starts=st.booleans(),
    )
    def admitted(self, qos: str, claim: str, wanted: list[int], starts: bool) -> None:
        """A kubelet assigns CPUs to a pod before its sandbox is created, whichever pod claims them:
        it knows only its own assignments, and reserves CPU 0."""
        host = self.host
        taken = union(host.kubelet.values())
        free = CpuSet(wanted) - taken
        if not free or not CPUS - taken - free:
            return
        host.static = True
        host.kubelet[f"p{self.pods + 1}"] = free
        host.write_kubelet()
        self.create_pod(qos, claim, notified=True, guaranteed=True)
        self.create(f"p{self.pods}", starts=starts)

    def unlabelled(self, uid: str) -> bool:
        """Whether the kubelet may assign CPUs to it, and no other source has."""
        sandbox = self.host.sandbox_of(uid)
        return not sandbox.labels and not sandbox.annotations

    # The agent.

    @rule()
    def run_pass(self) -> None:
        self.reconcile()

    def reconcile(self, *notifications: Notification) -> None:
        """A pass, with every write of it checked."""
        host = self.host
        self.agent.notified(list(notifications))
        before = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        granted = self.owned()
        bad = host.shared(before, granted)
        host.kernel.trace.clear()
        failed = False
        try:
            self.agent.reconcile()
        except ReconcileError:
            assert host.kernel.refusing
            failed = True
        self.announced -= set(self.uids())
        self.check_writes(before, granted, bad)
        self.check_decision(failed=failed)
        self.settled = not failed

    def check_writes(
        self, before: dict[str, CpuSet], granted: dict[str, CpuSet], bad: set[tuple[str, str]]
    ) -> None:
        host = self.host
        after = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        now = self.owned()  # an owner that claims nothing any more has nothing to lose
        granted = {uid: cpus & now.get(uid, EMPTY) for uid, cpus in granted.items()}
        circles = any(not before[group] & after[group] for group in host.running())
        for group, gained, held in host.kernel.trace:
            for each, cpus in held.items():
                assert cpus, f"{each} has no CPU"
                assert each == "/" or cpus <= held[each.rpartition("/")[0] or "/"]
            if circles:
                continue
            fresh = host.shared(held, granted) - bad
            assert not fresh, f"after {group}: {fresh} share CPUs of {granted}"
            new = {pair for pair in host.shared(held, self.owned()) if group in pair}
            new -= host.shared(after, self.owned())
            assert not gained or not {
                pair for pair in new if held[pair[0]] & held[pair[1]] & gained
            }, f"{group} gained {gained} too early: {new}"

    def check_decision(self, *, failed: bool = False) -> None:
        host = self.host
        snapshot = host.snapshot()
        assert snapshot is not None
        taken = EMPTY
        ls = union(each.cpus for each in snapshot.ls_pools)
        be = union(each.cpus for each in snapshot.be_pools)
        for owner in snapshot.owners:
            assert owner.cpus, f"{owner.title} owns nothing"
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
                assert CpuSet.parse(wanted) == host.kubelet[uid]
        owned = {each.uid: each.cpus for each in snapshot.owners}
        held = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        assert not host.shared(held, owned)

    @precondition(lambda self: self.settled and not self.announced)
    @rule()
    def restarts(self) -> None:
        """Nothing is written or decided. (Announcements are lost: their pods are announced again
        before each container.)"""
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
    def dies(self, writes: int) -> None:
        """At a write; the next agent reaches the state that the first would have reached."""
        self.announced.clear()
        host = self.host
        other = host.twin(self.folder / "twin")
        other.agent().reconcile()
        before = {group: host.kernel.effective(group) for group in host.kernel.cpus}
        granted = self.owned()
        bad = host.shared(before, granted)
        host.kernel.trace.clear()
        host.kernel.dies_at = writes
        with contextlib.suppress(Died):
            host.agent().reconcile()
        host.kernel.dies_at = None
        self.agent = host.agent()
        self.agent.reconcile()
        self.check_writes(before, granted, bad)
        self.check_decision()
        self.settled = True
        assert host.kernel.cpus == other.kernel.cpus
        mine, its = host.snapshot(), other.snapshot()
        assert mine is not None
        assert its is not None
        assert _enforced(mine) == _enforced(its)
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
    state.begins([])
    state.create_pod("LSE", "0", False)
    state.create_pod("LSE", "2", False)
    state.create("p2", starts=False)
    state.owner_comes(0, False)
    (state.host.kernel.refusing,) = state.host.running()
    state.widen("p2", 1)
    state.reconcile(SnapshotRequest())
    (created,) = state.host.containers(ContainerState.CREATED)
    assert state.host.runtime.statuses[created.id].resources.cpuset == "2"
    state.kernel_relents()
    state.reconcile(SnapshotRequest())
    state.reconcile(SnapshotRequest())
    assert state.host.runtime.statuses[created.id].resources.cpuset == "1-2"
    state.started(created)
    state.teardown()


@pytest.mark.parametrize("machine", [Churn, Churn2])
def test_created_owners_that_change_cpus_with_each_other_start_on_their_own(
    machine: type[Churn],
) -> None:
    state = machine()
    state.begins(["LSE", "LS", "LSE"])
    state.admitted(qos="", claim="", wanted=[2], starts=False)
    state.create("p3", starts=False)
    state.host.kubelet["p4"] = CpuSet([1])
    state.host.write_kubelet()
    state.reconcile(SnapshotRequest())
    first, second = state.host.containers(ContainerState.CREATED)
    assert [state.host.runtime.statuses[each.id].resources.cpuset for each in (first, second)] == [
        "1",
        "2",
    ]
    state.started(first)
    state.started(second)
    state.teardown()


@pytest.mark.parametrize("machine", [Churn, Churn2])
def test_a_pod_may_begin_while_a_removed_one_is_still_announced(machine: type[Churn]) -> None:
    state = machine()
    state.begins([])
    state.create_pod("LSE", "0", True)
    state.remove_pod("p1")
    state.create_pod("BE", "", True)
    assert state.owned() == {"p1": CpuSet([0])}
    state.teardown()
