"""The answers of admission to requests as values, the outcomes and what the agent hears."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from agent.hooks.cpuset import AssumedContainer
from agent.hooks.requests import (
    UNCHANGED,
    Changes,
    CreateContainer,
    Unread,
)
from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.notifications import (
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


def test_a_creation_that_its_caller_cancels_leaves_nothing(harness: AdmissionHarness) -> None:
    creation = harness.creation(OWN)
    harness.create(creation)
    harness.notifications()
    harness.admission.abandoned(creation)
    assert harness.notifications() == []


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
