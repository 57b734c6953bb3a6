"""The answers of admission to requests as values, the outcomes and what the agent hears."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from agent.hooks import admission
from agent.hooks.carriers import Carried
from agent.hooks.cpuset import AssumedContainer
from agent.hooks.requests import (
    UNCHANGED,
    CarriedNode,
    Changes,
    ContainerName,
    CreateContainer,
    Creation,
    Unread,
    Update,
    Verdict,
)
from agent.model.devices.visibility import VISIBLE_DEVICES, Mount, NodeDevice, NodeVisibility
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    ContainerFailed,
    Created,
    PodFailed,
    Resized,
    SnapshotRequest,
)
from agent.model.pod.qos import QoS
from agent.model.settings.frontends import CREATE, RUN, UPDATE
from agent.model.snapshot import CpuPolicy, Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Code, Refuse, Wait
from tests.hooks.admission_harness import (
    DEFAULT_POLICY,
    HOLD_SECONDS,
    IGNORE,
    AdmissionHarness,
    container,
    pod,
)
from tests.hooks.snapshots import EMPTY, OWNED, WITH_DEVICES, pools

LATE = HOLD_SECONDS + 0.1
POOL = Changes(LinuxResources("0,2-3"))
OWN = container("own", "LSE", "1")
"""The container of the pod that owns CPU 1 in OWNED."""
TWO_OWNERS = msgspec.structs.replace(
    OWNED, owners=(*OWNED.owners, Owner("p", "ns/p", QoS.LSE, "2"))
)
CPU_1 = Changes(LinuxResources("1"))
LIMITS = ("mems", "shares", "quota", "memory_limit_bytes", "hugepages")
CHANGE = SnapshotRequest(waits=False)
"""The notification of a change for which no call waits."""


@pytest.mark.parametrize(
    ("snapshot", "uid", "delivered", "waits"),
    [
        (None, "p", True, False),
        (EMPTY, "p", True, False),
        (OWNED, "own", True, False),
        (OWNED, "p", True, True),
        (OWNED, "p", False, False),
        (TWO_OWNERS, "p", True, True),
        (msgspec.structs.replace(OWNED, announced=("x", "p")), "p", True, False),
    ],
    ids=["no snapshot", "no owner", "the owner", "waits", "no agent", "an owner", "after a pass"],
)
def test_a_sandbox_waits_only_while_its_cgroup_may_have_cpus_of_another_pod(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    snapshot: Snapshot | None,
    uid: str,
    delivered: bool,
    waits: bool,
) -> None:
    """At the deadline it is created also under a policy that fails its hook."""
    harness = AdmissionHarness(monkeypatch, "*=fail")
    harness.publish(snapshot)
    harness.notifier.delivers = delivered
    sandbox = harness.sandbox(pod(uid))
    for _ in range(2):
        assert harness.admission.create_sandbox(sandbox) == (Wait() if waits else UNCHANGED)
    assert harness.notifications() == [pod(uid)] * delivered, "the agent is notified once"
    harness.wait(LATE)
    assert harness.admission.create_sandbox(sandbox) == UNCHANGED
    assert harness.outcomes.failed_open == ({(RUN, "LS", "timeout"): 1} if waits else {})
    assert ("pod ns/p: its cgroup may have CPUs of other pods" in caplog.text) is waits
    harness.admission.pod_created(sandbox.pod, made=waits)
    end = SnapshotRequest(waits=False, sandbox_uid=uid) if waits else PodFailed(uid)
    assert harness.notifications() == [end] * delivered


UNDECIDED = "the agent has not decided about this pod"
BLOCKED_CPU = Wanted(LinuxResources("1"), exclusive=True, blocked="pod ns/x holds CPUs 1")
BLOCKED = msgspec.structs.replace(OWNED, pods={"own": PodWanted("ns/own", QoS.LSE, BLOCKED_CPU)})
LS_CLAIM, LSE_CLAIM = container("p", "LS", "2"), container("p", "LSE", "2")


@pytest.mark.parametrize(
    ("policy", "snapshot", "request_", "answer"),
    [
        (DEFAULT_POLICY, None, OWN, "the agent has written no snapshot"),
        (DEFAULT_POLICY, EMPTY, OWN, UNDECIDED),
        (DEFAULT_POLICY, OWNED, container("p", "LSR", "2"), UNDECIDED),
        (DEFAULT_POLICY, OWNED, LS_CLAIM, POOL),
        (DEFAULT_POLICY, BLOCKED, OWN, "pod ns/x holds CPUs 1"),
        (IGNORE, None, OWN, UNCHANGED),
        (IGNORE, OWNED, LSE_CLAIM, POOL),
        ("CreateContainer=fail,CreateContainer/LSE=ignore", OWNED, LS_CLAIM, UNDECIDED),
        ("CreateContainer=fail,CreateContainer/LS=ignore", OWNED, LS_CLAIM, POOL),
    ],
)
def test_at_the_deadline_of_a_creation_the_policy_of_the_class_decides(
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    snapshot: Snapshot | None,
    request_: CreateContainer,
    answer: Changes | str,
) -> None:
    """`answer`: the changes, or the end of the refusal."""
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(snapshot)
    creation = harness.creation(request_)
    harness.wait(HOLD_SECONDS - 0.1)
    assert harness.create(creation) == Wait()
    harness.wait(0.2)
    count = {(CREATE, creation.qos, "timeout"): 1}
    if isinstance(answer, str):
        why = f"{creation.pod_title}: no CPUs after 60 s: {answer}"
        assert harness.create(creation) == Refuse(Code.UNAVAILABLE, why)
        assert (harness.outcomes.failed, harness.outcomes.failed_open) == (count, {})
        assert creation.assumed is None, "a refused creation holds nothing"
    else:
        assert harness.create(creation) == answer
        assert (harness.outcomes.failed, harness.outcomes.failed_open) == ({}, count)


def test_no_policy_gives_a_container_the_cpu_of_another_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = AdmissionHarness(monkeypatch, IGNORE)
    harness.publish(msgspec.structs.replace(OWNED, pools=pools("1")))
    creation = harness.creation(LSE_CLAIM)
    harness.wait(LATE)
    why = "pod ns/p: no CPUs after 60 s: its pool has no CPU"
    assert harness.create(creation) == Refuse(Code.UNAVAILABLE, why)
    assert harness.outcomes.failed == {(CREATE, "LSE", "no_cpu"): 1}


def test_a_creation_that_needs_no_decision_is_not_held(harness: AdmissionHarness) -> None:
    """As with a claim that can't be read."""
    for snapshot, changes in ((None, UNCHANGED), (OWNED, POOL)):
        harness.publish(snapshot)
        assert (
            harness.create(harness.creation(container("p", "LS", '{"x":' + "[" * 100_000)))
            == changes
        )
    assert harness.notifications() == []
    assert not harness.outcomes.failed_open


def test_a_creation_is_held_until_the_agent_has_decided(harness: AdmissionHarness) -> None:
    harness.publish(EMPTY)
    creation = harness.creation(OWN)
    assert harness.create(creation) == Wait()
    assert harness.notifications() == [OWN.pod]
    harness.publish(OWNED)
    assert harness.create(creation) == CPU_1
    harness.admission.created(creation, "c1")
    assert harness.notifications() == [Created("c1", LinuxResources(shares=512), LIMITS)]
    assert not harness.outcomes.failed_open
    assert not harness.outcomes.failed


def test_a_held_creation_notifies_the_agent_again_after_a_while(harness: AdmissionHarness) -> None:
    creation = harness.creation(OWN)
    for seconds, notified in ((0.0, 1), (0.05, 0), (0.06, 1), (0.09, 0), (0.02, 1)):
        harness.wait(seconds)
        assert harness.create(creation) == Wait()
        assert len(harness.notifications()) == notified, seconds


def test_the_values_that_a_creation_replaces_are_reported(harness: AdmissionHarness) -> None:
    wanted = Wanted(LinuxResources("0,2-3", quota=CpuQuota(20_000), shares=77))
    batch = {"p": PodWanted("ns/p", QoS.BE, wanted)}
    harness.publish(msgspec.structs.replace(OWNED, pods=batch))
    creation = harness.creation(container("p", "BE", cpus="0-1"))
    harness.create(creation)
    harness.admission.created(creation, "c1")
    (notification,) = harness.notifications()
    assert notification == Created(
        "c1", LinuxResources("0-1", shares=512), ("mems", "memory_limit_bytes", "hugepages")
    )


def creation(harness: AdmissionHarness) -> Callable[[str], None]:
    """A container that shares all CPUs is being created. Returns what ends that."""
    creation = harness.creation(container("ls", "LS"))
    assert harness.create(creation) == Changes(LinuxResources("0-3"))
    return partial(harness.admission.created, creation)


def unhooked(harness: AdmissionHarness, *, read: bool) -> Callable[[str], None]:
    creation = harness.creation(container("ls", "LS")) if read else None
    if creation is not None:
        harness.create(creation)
    answer = harness.admission.unhooked(CREATE, creation, "too_large", "9 bytes")
    assert isinstance(answer, Unread)
    assert harness.outcomes.failed_open == {(CREATE, "LS" if read else "", "too_large"): 1}
    return partial(harness.admission.created, answer)


def start(harness: AdmissionHarness) -> Callable[[str], None]:
    number = harness.admission.start()
    return lambda _: harness.admission.started(number)


@pytest.mark.parametrize(
    ("begin", "container_id", "notification"),
    [
        (creation, "c-ls", Created("c-ls", LinuxResources(shares=512), LIMITS)),
        (creation, "", SnapshotRequest()),
        (partial(unhooked, read=False), "c-ls", SnapshotRequest()),
        (partial(unhooked, read=True), "c-ls", SnapshotRequest()),
        (start, "", CHANGE),
    ],
    ids=["creation", "failed creation", "unread creation", "unhooked creation", "start"],
)
def test_an_owner_waits_while_another_container_may_get_its_cpus(
    harness: AdmissionHarness,
    begin: Callable[[AdmissionHarness], Callable[[str], None]],
    container_id: str,
    notification: object,
) -> None:
    """It waits for a pass that begins after the end."""
    harness.publish(EMPTY)
    end = begin(harness)
    for _ in range(2):
        harness.publish(OWNED)
        owner, sharer = harness.creation(OWN), harness.creation(container("p", "LS"))
        assert harness.create(owner) == Wait()
        assert harness.create(sharer) == POOL, "no other pod waits for it"
    harness.notifications()
    end(container_id)
    assert harness.notifications() == [notification]
    assert harness.create(owner) == Wait(), "the agent may have read it before"
    harness.publish(OWNED)
    assert harness.create(owner) == CPU_1, "nor for a creation on other CPUs"


def test_an_owner_does_not_wait_for_a_removed_container(harness: AdmissionHarness) -> None:
    harness.publish(EMPTY)
    creation(harness)("c-ls")
    harness.publish_earlier(OWNED)
    owner = harness.creation(OWN)
    harness.admission.removed("another")
    assert harness.create(owner) == Wait()
    harness.admission.removed("c-ls")
    assert harness.create(owner) == CPU_1


def test_the_refusal_of_an_owner_names_the_creation(harness: AdmissionHarness) -> None:
    harness.publish(EMPTY)
    creation(harness)
    harness.publish(OWNED)
    owner = harness.creation(OWN)
    harness.wait(LATE)
    answer = harness.create(owner)
    assert isinstance(answer, Refuse)
    assert "a new container of pod ns/ls may hold one of CPUs 1" in answer.message


def test_an_owner_waits_for_a_pass_after_creations_that_the_frontend_missed(
    harness: AdmissionHarness,
) -> None:
    """Before its start, or while it was not called."""
    owner = harness.creation(OWN)
    harness.publish_earlier(OWNED)
    assert harness.create(owner) == Wait()
    harness.publish(OWNED)
    assert harness.create(harness.creation(OWN)) == CPU_1
    harness.notifications()
    harness.admission.creations_missed()
    assert harness.notifications() == [SnapshotRequest()]
    assert harness.create(owner) == Wait()
    assert harness.assumed.all(None)[-1].title == "a container that was created without a hook"
    harness.publish(OWNED)
    assert harness.create(owner) == CPU_1


def test_an_owner_does_not_wait_for_a_start_with_the_values_of_its_snapshot(
    harness: AdmissionHarness,
) -> None:
    harness.publish(OWNED)
    end = start(harness)
    assert harness.create(harness.creation(OWN)) == CPU_1
    end("")
    assert harness.notifications() == []


def test_an_update_of_a_new_container_gets_the_assumed_cpus(harness: AdmissionHarness) -> None:
    harness.publish(OWNED)
    harness.created(container("ls", "LS"), "c-ls")
    assert harness.update("c-ls", "0-3") == POOL


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        (IGNORE, Changes(LinuxResources("0"))),
        (
            "UpdateContainerResources=fail",
            Refuse(Code.UNAVAILABLE, "container unknown: the agent does not know this container"),
        ),
    ],
)
def test_an_update_of_an_unknown_container_waits_and_then_loses_owned_cpus_or_fails(
    monkeypatch: pytest.MonkeyPatch, policy: str, answer: object
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(OWNED)
    update = harness.update_of("unknown", "0-1")
    assert harness.admission.update(update) == Wait()
    assert harness.admission.update(update) == Wait()
    assert harness.notifications() == [SnapshotRequest()]
    harness.wait(LATE)
    assert harness.admission.update(update) == answer
    counts = [harness.outcomes.failed_open, harness.outcomes.failed]
    assert counts[policy != IGNORE] == {(UPDATE, "", "timeout"): 1}
    assert not counts[policy == IGNORE]


@pytest.mark.parametrize(
    ("policy", "shares", "may_be_of_agent", "resized"),
    [
        ("static", 2048, False, True),
        ("dynamic", 2048, False, True),
        ("none", 2048, False, False),
        ("static", 0, False, False),
        ("static", 512, False, True),
        ("static", 512, True, False),
        ("static", 300, True, True),
    ],
)
def test_a_resize_is_reported_unless_it_may_be_the_agents(
    harness: AdmissionHarness,
    policy: CpuPolicy,
    shares: int,
    may_be_of_agent: bool,
    resized: bool,
) -> None:
    """The agent wants 512 shares."""
    wanted = Wanted(LinuxResources("1", shares=512))
    harness.publish(msgspec.structs.replace(OWNED, cpu_policy=policy, containers={"c": wanted}))
    update = harness.update_of("c", shares=shares)
    harness.admission.updated(update, may_be_of_agent=may_be_of_agent)
    assert harness.notifications() == [Resized("c", LinuxResources(shares=shares))] * resized


UNREAD = {
    "too_large": Code.RESOURCE_EXHAUSTED,
    "compressed": Code.INTERNAL,
    "malformed": Code.INVALID_ARGUMENT,
    "internal_error": Code.INTERNAL,
}
NO_OWNED_CPUS = msgspec.structs.replace(EMPTY, owners=(Owner("own", "ns/own", QoS.LSE, ""),))


@pytest.mark.parametrize(("reason", "code"), UNREAD.items())
@pytest.mark.parametrize(
    ("snapshot", "owned"),
    [
        pytest.param(OWNED, "CPUs 1 of pod ns/own", id="owners"),
        pytest.param(WITH_DEVICES, "device GPU-other", id="devices"),
    ],
)
def test_an_unread_request_fails_if_it_could_take_cpus_or_devices_of_a_pod(
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    code: Code,
    snapshot: Snapshot,
    owned: str,
) -> None:
    """Under any policy: only calls that assign nothing continue."""
    harness = AdmissionHarness(monkeypatch, IGNORE)
    for published in (None, EMPTY, NO_OWNED_CPUS):
        harness.publish(published)
        assert harness.admission.unhooked(UPDATE, None, reason, "why") is None
        assert isinstance(harness.admission.unhooked(CREATE, None, reason, "why"), Unread)
    harness.publish(snapshot)
    for hook in (RUN, "StopContainer"):
        assert harness.admission.unhooked(hook, None, reason, "why") is None
    title = "a container whose request could not be read"
    for hook in (CREATE, UPDATE):
        answer = harness.admission.unhooked(hook, None, reason, "why")
        assert answer == Refuse(code, f"{hook}: {title}: why; it could take {owned}")
        assert harness.outcomes.failed[hook, "", reason] == 1


@pytest.mark.parametrize(
    ("policy", "qos", "allocated", "class_", "fails"),
    [
        (IGNORE, "LSE", False, "LSE", False),
        ("*=ignore,CreateContainer/LSE=fail", "LSE", False, "LSE", True),
        ("*=ignore,CreateContainer/LSE=fail", "LS", False, "LS", False),
        ("*=ignore,CreateContainer/devices=fail", "LS", False, "LS", False),
        ("*=ignore,CreateContainer/devices=fail", "LS", True, "devices", True),
        ("*=ignore,CreateContainer/LSE=fail", "LSE", True, "LSE", True),
    ],
)
def test_the_policy_decides_about_a_request_that_was_read(
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    qos: str,
    allocated: bool,
    class_: str,
    fails: bool,
) -> None:
    """Also while pods own CPUs."""
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(OWNED)
    request = msgspec.structs.replace(container("p", qos), pod=pod("p", qos, allocated=allocated))
    creation = harness.creation(request)
    answer = harness.admission.unhooked(CREATE, creation, "timeout", "the proxy ends")
    counts = [harness.outcomes.failed_open, harness.outcomes.failed]
    assert counts[fails] == {(CREATE, class_, "timeout"): 1}
    if fails:
        why = "CreateContainer: pod ns/p: the proxy ends"
        assert answer == Refuse(Code.INTERNAL, why)
    else:
        assert isinstance(answer, Unread)


def test_a_failed_hook_ends_its_creation(harness: AdmissionHarness) -> None:
    """It is replaced by one of unknown CPUs."""
    harness.publish(EMPTY)
    creation = harness.creation(container("p", "LS"))
    harness.create(creation)
    harness.admission.unhooked(CREATE, creation, "internal_error", "broken")
    in_progress = [each for each in harness.assumed.all(None) if each.answered_at is None]
    assert in_progress == [AssumedContainer("", "pod ns/p", None)]


def records(harness: AdmissionHarness) -> list[tuple[str, ...]]:
    """The records since the last call."""
    texts = [
        (each.event, each.title, each.container, each.before or "", each.after or "", each.reason)
        for each in harness.records
    ]
    harness.records.clear()
    return texts


def test_an_admitted_container_is_recorded_once(harness: AdmissionHarness) -> None:
    harness.publish(EMPTY)
    creation = harness.creation(OWN)
    assert harness.create(creation) == Wait()
    assert harness.records == []
    harness.publish(OWNED)
    harness.create(creation)
    harness.create(harness.creation(container("web", "LS", cpus="0-3")))
    assert [each.uid for each in harness.records] == ["own", "web"]
    assert records(harness) == [
        ("ContainerAdmitted", "ns/own", "main", "", "1", ""),
        ("ContainerAdmitted", "ns/web", "main", "0-3", "0,2-3", ""),
    ]


@pytest.mark.parametrize("policy", ["*=fail", IGNORE])
def test_a_container_without_a_decision_is_recorded_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(EMPTY)
    creation = harness.creation(OWN)
    harness.wait(HOLD_SECONDS)
    answer = harness.create(creation)
    message = harness.records[0].message
    if isinstance(answer, Refuse):
        assert message == answer.message
        assert records(harness) == [("ContainerRefused", "ns/own", "main", "", "", "")]
    else:
        assert message == "the agent has not decided about this pod"
        assert records(harness) == [("ContainerAdmitted", "ns/own", "main", "", "0-3", "timeout")]


def test_the_record_names_the_device_fields_and_no_device(harness: AdmissionHarness) -> None:
    harness.publish(WITH_DEVICES)
    harness.create(harness.creation(container("own")), Carried(environment=("GPU-other",)))
    (record,) = harness.records
    assert record.message == "also changed: environment"


@pytest.mark.parametrize(
    ("hook", "snapshot", "event"),
    [
        (CREATE, EMPTY, "ContainerAdmitted"),
        (CREATE, OWNED, "ContainerRefused"),
        (UPDATE, EMPTY, "UpdateAdmitted"),
        (UPDATE, OWNED, "UpdateRefused"),
    ],
)
def test_an_unread_request_is_recorded(
    harness: AdmissionHarness, hook: str, snapshot: object, event: str
) -> None:
    harness.publish(snapshot)  # type: ignore[arg-type]
    creation = harness.creation(container("web", "LS")) if hook == CREATE else None
    harness.admission.unhooked(hook, creation, "too_large", "it has too many bytes")
    (record,) = harness.records
    title = "ns/web" if creation else ""
    assert (record.event, record.title, record.reason) == (event, title, "too_large")
    assert record.message.startswith(f"{hook}: ")
    assert "it has too many bytes" in record.message


def test_an_update_is_recorded_with_the_pod_of_its_container(harness: AdmissionHarness) -> None:
    harness.publish(OWNED)
    assert harness.update("unknown") == UNCHANGED
    assert records(harness) == [], "nothing was changed"
    harness.created(OWN, "c-own")
    harness.records.clear()
    harness.update("c-own", "0-3")
    (record,) = harness.records
    assert (record.uid, record.message) == ("own", "container c-own")
    assert records(harness) == [("UpdateAdmitted", "ns/own", "main", "0-3", "1", "")]
    harness.admission.removed("c-own")
    update = harness.update_of("c-own", "0-3")
    harness.admission.update(update)
    named = ContainerName("ns", "web", "u", "side")
    request = msgspec.structs.replace(update.request, name=named)
    harness.admission.update(Update(request, harness.waiting()))
    assert [each.title for each in harness.records] == ["", "ns/web"]


def test_a_refused_update_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = AdmissionHarness(monkeypatch, "*=fail")
    harness.publish(OWNED)
    update = harness.update_of("unknown", "0-1")
    harness.wait(HOLD_SECONDS)
    harness.admission.update(update)
    assert records(harness) == [("UpdateRefused", "", "", "", "", "timeout")]


def test_the_number_of_remembered_containers_is_bounded(
    harness: AdmissionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_NAMES", 2)
    harness.publish(OWNED)
    for number in range(3):
        harness.created(OWN, f"c-{number}")
    harness.records.clear()
    for number in range(3):
        harness.update(f"c-{number}", "0-3")
    assert [each.title for each in harness.records] == ["", "ns/own", "ns/own"]


STATIC = msgspec.structs.replace(EMPTY, cpu_policy="static")
WHOLE_CPU = msgspec.structs.replace(
    container("g", kube=""),
    requested=LinuxResources(shares=1024, hugepages={2 << 20: 4 << 20}),
)
ANNOUNCED = ContainerAnnounced(WHOLE_CPU.pod, "main", WHOLE_CPU.requested)
FAILED = ContainerFailed("g", "main")


def decided(wanted: Wanted, policy: CpuPolicy = "static") -> Snapshot:
    return msgspec.structs.replace(
        STATIC,
        cpu_policy=policy,
        owners=(Owner("g", "ns/g", QoS.LSE, "1"),),
        pods={
            "g": PodWanted(
                LinuxResources("ns/g"), QoS.LS, Wanted(LinuxResources("0,2-3")), {"main": wanted}
            )
        },
    )


EXCLUSIVE_CPU = Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)


@pytest.fixture
def held(harness: AdmissionHarness) -> Creation:
    """The container is announced, and its creation is held."""
    harness.publish(STATIC)
    creation = harness.creation(WHOLE_CPU)
    assert harness.create(creation) == Wait()
    assert harness.notifications() == [ANNOUNCED]
    return creation


@pytest.mark.parametrize(
    ("policy", "wanted", "written", "mounted"),
    [
        ("static", EXCLUSIVE_CPU, True, False),
        ("dynamic", EXCLUSIVE_CPU, True, True),
        ("dynamic", EXCLUSIVE_CPU, False, False),
        ("dynamic", Wanted(LinuxResources("0,2-3")), True, False),
        ("static", Wanted(LinuxResources("0,2-3"), numa_nodes="1"), True, True),
        ("static", Wanted(LinuxResources("0,2-3"), numa_nodes="1"), False, False),
    ],
)
def test_a_container_has_its_cpus_and_its_folder_if_they_can_change(
    tmp_path: Path,
    harness: AdmissionHarness,
    held: Creation,
    policy: CpuPolicy,
    wanted: Wanted,
    written: bool,
    mounted: bool,
) -> None:
    folder = tmp_path / "containers" / "g" / "main"
    if written:
        folder.mkdir(parents=True)
    harness.publish(decided(wanted, policy))
    changes = harness.create(held)
    assert isinstance(changes, Changes)
    assert changes.resources == LinuxResources(wanted.resources.cpuset)
    assert changes.mounts == ((Mount(str(folder), "/run/topolet"),) if mounted else ())
    harness.admission.created(held, "c")
    (created,) = harness.notifications()
    assert isinstance(created, Created)
    assert (created.container_id, created.requested) == ("c", WHOLE_CPU.requested)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (STATIC, "the agent has not decided about this container"),
        (decided(Wanted(LinuxResources("0"), blocked="no CPUs are free")), "no CPUs are free"),
    ],
)
def test_without_cpus_a_container_is_refused_and_its_announcement_withdrawn(
    harness: AdmissionHarness, held: Creation, answer: Snapshot, why: str
) -> None:
    """By the policy of the class LSR."""
    harness.publish(answer)
    harness.wait(HOLD_SECONDS)
    refusal = Refuse(Code.UNAVAILABLE, f"pod ns/g: no CPUs after 60 s: {why}")
    assert harness.create(held) == refusal
    assert harness.notifications() == [FAILED]
    assert harness.outcomes.failed == {(CREATE, "LSR", "timeout"): 1}


@pytest.mark.parametrize("end", ["cancelled", "not created", "unhooked"])
def test_a_container_that_is_not_created_withdraws_its_announcement(
    harness: AdmissionHarness, held: Creation, end: str
) -> None:
    if end == "cancelled":
        harness.admission.abandoned(held)
    elif end == "unhooked":
        harness.admission.unhooked(CREATE, held, "timeout", "the plugin ends")
    else:
        harness.publish(decided(EXCLUSIVE_CPU))
        harness.create(held)
        harness.admission.created(held, "")
    assert harness.notifications() == [FAILED]


CDI = "nvidia.com/gpu="
FREE = Carried(environment=("GPU-free",))
OTHER = Carried(environment=("GPU-other",))


def creation_with_devices(
    harness: AdmissionHarness, uid: str, name: str = "main", *, allocated: bool = True
) -> Creation:
    request = msgspec.structs.replace(
        container(uid, cpus="0-3"), pod=pod(uid, allocated=allocated), container_name=name
    )
    return harness.creation(request)


def variable(answer: Verdict, carried: Carried) -> tuple[str, ...]:
    """The values of NVIDIA_VISIBLE_DEVICES that the runtime receives."""
    assert isinstance(answer, Changes)
    values = dict(answer.environment)
    return (values[VISIBLE_DEVICES],) if VISIBLE_DEVICES in values else carried.environment


@pytest.mark.parametrize(
    ("uid", "name", "allocated", "carried", "value"),
    [
        pytest.param("own", "main", True, OTHER, "GPU-own", id="the plugin's is replaced"),
        pytest.param("own", "sidecar", True, Carried(("all",)), "void", id="a sidecar has none"),
        pytest.param("new", "main", False, FREE, "GPU-free", id="a free one is kept"),
    ],
)
def test_devices_that_the_agent_decided(
    harness: AdmissionHarness, uid: str, name: str, allocated: bool, carried: Carried, value: str
) -> None:
    harness.publish(WITH_DEVICES)
    answer = harness.create(creation_with_devices(harness, uid, name, allocated=allocated), carried)
    assert variable(answer, carried) == (value,)
    assert not harness.outcomes.failed


@pytest.mark.parametrize(
    ("carried", "waits"),
    [(Carried(), False), (Carried(cdi_devices=("vendor.com/nic=1",)), True),
     (Carried(("all",)), True), (Carried(nodes=(CarriedNode("/dev/fuse", "/dev/fuse"),)), True)],
)  # fmt: skip
@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_container_with_devices_waits_for_its_place_until_the_agent_knows_pod_and_claims(
    harness: AdmissionHarness, carried: Carried, waits: bool, decides: bool, known: bool
) -> None:
    pods = {"card": PodWanted("ns/card", QoS.LS, Wanted(LinuxResources("0-3")))} if known else {}
    unplaced = ("card",) if known and decides else ()
    harness.publish(
        msgspec.structs.replace(EMPTY, pods=pods, places_devices=decides, unplaced=unplaced)
    )
    creation = creation_with_devices(harness, "card", allocated=False)
    answer = harness.create(creation, carried)
    assert isinstance(answer, Wait) is (waits and decides)
    if isinstance(answer, Wait):
        assert harness.notifications() == [creation.request.pod]
        harness.wait(HOLD_SECONDS)
        answer = harness.create(creation, carried)
    assert isinstance(answer, Changes), "no container is refused for its place"
    assert not harness.outcomes.failed
    assert not harness.outcomes.failed_open


CLAIM_DEVICE = Carried(cdi_devices=("cpu.topolet.io/claim=u-cpus",))


@pytest.mark.parametrize(
    ("published", "pods"),
    [
        (None, {}),
        (EMPTY, {}),
        (EMPTY, {"p": PodWanted("ns/p", QoS.LS, Wanted(LinuxResources("0-3")))}),
        (EMPTY, {"p": PodWanted("ns/p", QoS.LS, Wanted(exclusive=True, blocked="held by ns/x"))}),
    ],
    ids=["no snapshot", "unknown pod", "decided before the preparation", "not free yet"],
)
@pytest.mark.parametrize(
    ("policy", "class_"),
    [(DEFAULT_POLICY, "devices"), ("CreateContainer/LS=fail", "LS"), (IGNORE, "")],
)
def test_a_container_with_cpus_of_a_claim_does_not_run_without_them_by_default(
    monkeypatch: pytest.MonkeyPatch,
    published: Snapshot | None,
    pods: dict[str, PodWanted],
    policy: str,
    class_: str,
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    if published is not None:
        harness.publish(msgspec.structs.replace(published, pods=pods, gives_claims=True))
    creation = harness.creation(container("p", "LS"))
    assert isinstance(harness.create(creation, CLAIM_DEVICE), Wait)
    harness.wait(HOLD_SECONDS)
    answer = harness.create(creation, CLAIM_DEVICE)
    assert isinstance(answer, Refuse) is bool(class_)
    counts = harness.outcomes.failed if class_ else harness.outcomes.failed_open
    assert counts == {(CREATE, class_ or "LS", "timeout"): 1}


def test_a_creation_with_cpus_of_a_claim_fails_with_its_hook_by_the_class_of_devices(
    harness: AdmissionHarness,
) -> None:
    harness.publish(msgspec.structs.replace(EMPTY, gives_claims=True))
    creation = harness.creation(container("p", "LS"))
    harness.create(creation, CLAIM_DEVICE)
    answer = harness.admission.unhooked(CREATE, creation, "timeout", "too late")
    assert isinstance(answer, Refuse)


def test_variables_of_cpus_and_devices_are_both_set(harness: AdmissionHarness) -> None:
    own = WITH_DEVICES.pods["own"]
    near = msgspec.structs.replace(own.of("main"), numa_nodes="1")
    placed = msgspec.structs.replace(own, containers={**own.containers, "main": near})
    harness.publish(
        msgspec.structs.replace(WITH_DEVICES, pods={**WITH_DEVICES.pods, "own": placed})
    )
    answer = harness.create(creation_with_devices(harness, "own"), OTHER)
    assert isinstance(answer, Changes)
    variables = dict(answer.environment)
    assert variables == {"TOPOLET_NUMA_NODES": "1", VISIBLE_DEVICES: "GPU-own"}


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, IGNORE])
@pytest.mark.parametrize("carried", [OTHER, Carried(cdi_devices=(f"{CDI}0",))])
def test_no_pod_gets_another_pods_card(
    monkeypatch: pytest.MonkeyPatch, policy: str, carried: Carried
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(WITH_DEVICES)
    of_pod = creation_with_devices(harness, "new", allocated=False)
    answer = harness.create(of_pod, carried)
    assert isinstance(answer, Refuse)
    assert "pod ns/new" in answer.message
    assert "GPU-other" in answer.message
    assert harness.outcomes.failed == {(CREATE, "devices", "device_taken"): 1}
    assert of_pod.assumed is None, "a refused creation holds nothing"


NOT_HONORED = "pod ns/lost: gpu 7 is not on this node"


@pytest.mark.parametrize(
    ("policy", "carried", "value"),
    [
        (DEFAULT_POLICY, FREE, None),
        (IGNORE, FREE, "GPU-free"),
        (IGNORE, Carried(), "void"),
        (IGNORE, OTHER, None),
        (IGNORE, Carried(("all",)), None),
    ],
)
def test_a_policy_may_keep_the_plugins_choice_but_not_another_pods_card(
    monkeypatch: pytest.MonkeyPatch, policy: str, carried: Carried, value: str | None
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(WITH_DEVICES)
    answer = harness.create(creation_with_devices(harness, "lost"), carried)
    key = CREATE, "devices", "not_honored"
    if value is not None:
        assert variable(answer, carried) == (value,)
    else:
        assert isinstance(answer, Refuse)
    if policy == IGNORE:
        assert harness.outcomes.failed_open == {key: 1}
    else:
        assert isinstance(answer, Refuse)
        assert answer.message == NOT_HONORED
        assert harness.outcomes.failed == {key: 1}


@pytest.mark.parametrize("without", ["decision", "snapshot"])
@pytest.mark.parametrize(
    ("policy", "carried", "refused"),
    [(DEFAULT_POLICY, FREE, True), (IGNORE, FREE, False), (IGNORE, OTHER, True)],
)
def test_an_allocated_pod_waits_until_the_agent_has_decided(
    monkeypatch: pytest.MonkeyPatch, without: str, policy: str, carried: Carried, refused: bool
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    if without == "decision":
        harness.publish(msgspec.structs.replace(WITH_DEVICES, pods={}))
    of_pod = creation_with_devices(harness, "new")
    assert harness.create(of_pod, carried) == Wait()
    assert harness.notifications() == [of_pod.request.pod]
    harness.wait(HOLD_SECONDS)
    answer = harness.create(of_pod, carried)
    if without == "snapshot" and policy == IGNORE:
        assert answer == UNCHANGED, "the node may have no devices"
    elif refused:
        assert isinstance(answer, Refuse)
    else:
        assert variable(answer, carried) == carried.environment
    if policy == DEFAULT_POLICY:
        assert isinstance(answer, Refuse)
        assert "pod ns/new: no devices after 60 s: the agent has" in answer.message


@pytest.mark.parametrize(
    ("node", "inspected"),
    [
        (NodeVisibility(), False),
        (NodeVisibility((NodeDevice("GPU-other"),)), False),
        # Several processes may open its device files.
        (NodeVisibility((NodeDevice("0000:17:00.0", holders=("other",)),)), False),
        (NodeVisibility((NodeDevice("GPU-other", holders=("other",)),)), True),
        (NodeVisibility(unrequested_gpus="hide"), True),
    ],
)
def test_a_container_without_a_decision_is_inspected_if_the_node_has_devices(
    harness: AdmissionHarness, node: NodeVisibility, inspected: bool
) -> None:
    def carried() -> Carried:
        nonlocal read
        read = True
        return Carried()

    read = False
    harness.publish(msgspec.structs.replace(EMPTY, devices=node))
    harness.admission.create(creation_with_devices(harness, "new", allocated=False), carried)
    assert read is inspected


@pytest.mark.parametrize("without", ["device decisions", "an included container"])
def test_nothing_is_changed_without(harness: AdmissionHarness, without: str) -> None:
    excluding = msgspec.structs.replace(WITH_DEVICES, excluded=("ns/*/main",))
    harness.publish(EMPTY if without == "device decisions" else excluding)
    assert harness.create(creation_with_devices(harness, "new"), OTHER) == UNCHANGED


def test_a_privileged_container_is_reported(harness: AdmissionHarness) -> None:
    harness.publish(WITH_DEVICES)
    carried = Carried(("all",), privileged=True)
    assert variable(harness.create(creation_with_devices(harness, "own"), carried), carried) == (
        "GPU-own",
    )
    assert harness.outcomes.failed_open == {(CREATE, "devices", "privileged"): 1}
