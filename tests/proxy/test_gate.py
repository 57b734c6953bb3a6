"""The proxy's gate from the bytes of a request to the verdict, with a snapshot file and a
notification socket."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from agent.hooks.cpuset import CpuGrant
from agent.model.cpu.pools import Pool
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.notifications import (
    Created,
    PodAnnounced,
    PodFailed,
    SnapshotRequest,
)
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.settings.failure_policy import CREATE, RUN, UPDATE
from agent.model.snapshot import PodWanted, Snapshot, Wanted
from agent.model.verdict import Code, Refuse, Wait
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import METHODS, CpusetGate
from agent.relay.gate import FORWARD, Call, GateVerdict, Replace
from tests.proxy.harness import EMPTY, OWNED, WITH_DEVICES, GateHarness, sandbox

CREATE_PATH = b"/runtime.v1.RuntimeService/CreateContainer"


def cpus_of(verdict: GateVerdict) -> str:
    assert isinstance(verdict, Replace)
    request = pb.CreateContainerRequest.FromString(verdict.message)
    assert request.config.linux.resources.cpu_shares == 512
    return request.config.linux.resources.cpuset_cpus


def test_sandbox_is_announced_and_passes(harness: GateHarness) -> None:
    call, verdict = harness.run("p", "LSE", "1")
    assert verdict == FORWARD
    (notification,) = harness.notifications()
    assert isinstance(notification, PodAnnounced)
    assert (notification.uid, notification.labels) == ("p", {QOS_LABEL: "LSE"})
    assert list(notification.annotations.values()) == ['{"cpuset": "1"}']
    harness.gate.reply(call, pb.RunPodSandboxResponse(pod_sandbox_id="s").SerializeToString())
    assert harness.notifications() == [SnapshotRequest(waits=False, sandbox_uid="p")]


@pytest.mark.parametrize("reply", [None, b"", b"\xff garbage"])
def test_failed_sandbox_withdraws_its_announcement(
    harness: GateHarness, reply: bytes | None
) -> None:
    call, _ = harness.run("p")
    harness.notifications()
    harness.gate.reply(call, reply)
    assert harness.notifications() == [PodFailed("p")]


def test_sandbox_waits_until_its_pod_has_no_cpu_of_an_owner(harness: GateHarness) -> None:
    harness.publish(OWNED)
    call, verdict = harness.run("p", "LS")
    assert verdict == Wait()
    harness.publish(OWNED)
    assert harness.retry(call) == Wait(), "this pass began before the notification"
    harness.publish(msgspec.structs.replace(OWNED, announced=("p",)))
    assert harness.retry(call) == FORWARD
    assert len(harness.notifications()) == 1
    assert not harness.admission.outcomes.failed_open


@pytest.mark.parametrize(
    ("snapshot", "uid"),
    [
        (None, "p"),
        (EMPTY, "p"),
        (OWNED, "own"),
    ],
    ids=["no-snapshot", "no-owner", "owner-itself"],
)
def test_sandbox_waits_only_for_other_pods_that_own_cpus(
    harness: GateHarness, snapshot: Snapshot | None, uid: str
) -> None:
    if snapshot:
        harness.publish(snapshot)
    assert harness.run(uid)[1] == FORWARD


def test_sandbox_waits_for_at_most_50_ms(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under a policy that fails its hook, and with a longer hold time for other calls."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    harness.publish(OWNED)
    call, _ = harness.run("p", "LS")
    now += 0.049
    assert harness.retry(call) == Wait()
    now += 0.002
    assert harness.retry(call) == FORWARD
    assert harness.admission.outcomes.failed_open == {(RUN, "LS", "timeout"): 1}
    assert len(harness.notifications()) == 1


def test_sandbox_does_not_wait_for_an_agent_that_does_not_run(tmp_path: Path) -> None:
    harness = GateHarness(tmp_path)
    harness.publish(OWNED)
    (tmp_path / "doorbell.sock").unlink()
    assert harness.run("p")[1] == FORWARD
    harness.close()


def test_cancelled_sandbox_withdraws_its_announcement(harness: GateHarness) -> None:
    harness.publish(OWNED)
    call, _ = harness.run("p")
    harness.notifications()
    harness.gate.abandoned(call)
    assert harness.notifications() == [PodFailed("p")]


@pytest.mark.parametrize(
    ("snapshot", "qos", "claim", "cpuset_", "cpus"),
    [
        (OWNED, "LS", "", "", "0,2-3"),
        (OWNED, "BE", "", "0-3", "0,2-3"),
        (OWNED, "LS", "", "0,2-3", None),
        (None, "LS", "", "0-3", None),
    ],
)
def test_sharing_pod_is_created_at_once(
    harness: GateHarness,
    snapshot: Snapshot | None,
    qos: str,
    claim: str,
    cpuset_: str,
    cpus: str | None,
) -> None:
    if snapshot:
        harness.publish(snapshot)
    _, verdict = harness.create("p", qos, claim, cpuset_)
    if cpus is None:
        assert verdict == FORWARD
    else:
        assert cpus_of(verdict) == cpus


def test_owner_is_held_until_the_agent_has_decided(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    harness.publish(EMPTY)
    call, verdict = harness.create("own", "LSE", "1")
    assert verdict == Wait()
    assert [type(notification) for notification in harness.notifications()] == [PodAnnounced]
    assert harness.retry(call) == Wait()
    assert harness.notifications() == [], "the next notification is sent after a while"
    harness.publish(OWNED)
    assert cpus_of(harness.retry(call)) == "1"
    harness.created(call, "c1")
    kept = ("mems", "shares", "quota", "memory_limit_bytes")
    assert harness.notifications() == [Created("c1", LinuxResources(shares=512), kept)]
    assert not harness.admission.outcomes.failed_open
    assert not harness.admission.outcomes.failed


def test_held_call_notifies_the_agent_again(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    call, _ = harness.create("own", "LSE", "1")
    now += 0.05
    harness.retry(call)
    assert len(harness.notifications()) == 1
    now += 0.06
    harness.retry(call)
    assert len(harness.notifications()) == 1


def test_at_the_deadline_an_owner_is_refused_with_its_pod(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    call, _ = harness.create("own", "LSE", "1")
    now += 59.9
    assert harness.retry(call) == Wait()
    now += 0.2
    assert harness.retry(call) == Refuse(
        Code.UNAVAILABLE, "pod ns/own: no CPUs after 60 s: the agent has written no snapshot"
    )
    assert harness.admission.outcomes.failed == {("CreateContainer", "LSE", "timeout"): 1}


def test_at_the_deadline_a_sharing_pod_with_a_claim_shares(no_hold: GateHarness) -> None:
    no_hold.publish(OWNED)
    _, verdict = no_hold.create("new", "LS", "2")
    assert cpus_of(verdict) == "0,2-3"
    assert no_hold.admission.outcomes.failed_open == {("CreateContainer", "LS", "timeout"): 1}


def test_blocked_owner_is_refused_with_the_reason(no_hold: GateHarness) -> None:
    blocked = {
        "own": PodWanted(
            "ns/own",
            QoS.LSE,
            Wanted(
                LinuxResources("1", quota=NO_QUOTA),
                exclusive=True,
                blocked="pod ns/x still holds CPUs 1",
            ),
        )
    }
    no_hold.publish(msgspec.structs.replace(OWNED, pods=blocked))
    _, verdict = no_hold.create("own", "LSE", "1")
    assert isinstance(verdict, Refuse)
    assert verdict.message.endswith("pod ns/x still holds CPUs 1")


def sharer_then_owner(harness: GateHarness) -> tuple[Call, Call]:
    harness.publish(EMPTY)
    sharer, verdict = harness.create("ls", "LS")
    assert cpus_of(verdict) == "0-3"
    harness.publish(OWNED)
    owner, verdict = harness.create("own", "LSE", "1")
    assert verdict == Wait(), "the container that shares may be created on CPU 1"
    return sharer, owner


def test_owner_waits_for_a_creation_in_progress_until_the_agent_has_seen_it(
    harness: GateHarness,
) -> None:
    sharer, owner = sharer_then_owner(harness)
    harness.publish(OWNED)
    assert harness.retry(owner) == Wait(), "the pass began before the sharing container existed"
    harness.created(sharer, "c-ls")
    assert harness.retry(owner) == Wait()
    harness.publish(OWNED)
    assert cpus_of(harness.retry(owner)) == "1"


@pytest.mark.parametrize("reply", [None, b"", b"\xff garbage"])
def test_owner_does_not_wait_forever_for_a_failed_creation(
    harness: GateHarness, reply: bytes | None
) -> None:
    sharer, owner = sharer_then_owner(harness)
    harness.gate.reply(sharer, reply)
    harness.publish(OWNED)
    assert cpus_of(harness.retry(owner)) == "1"


def test_started_proxy_waits_for_one_pass_before_an_owner(tmp_path: Path) -> None:
    before = GateHarness(tmp_path)
    before.publish(OWNED)
    before.close()
    (tmp_path / "doorbell.sock").unlink()
    after = GateHarness(tmp_path)
    call, verdict = after.create("own", "LSE", "1")
    assert verdict == Wait()
    after.publish(OWNED)
    assert cpus_of(after.retry(call)) == "1"
    after.close()


@pytest.mark.parametrize(
    ("container", "cpuset_", "cpus"),
    [
        ("c-own", "0-3", "1"),
        ("c-own", "", "1"),
        ("c-kubelet", "0-1", None),
        ("unknown", "", None),
    ],
)
def test_cpus_of_an_update(
    harness: GateHarness, container: str, cpuset_: str, cpus: str | None
) -> None:
    harness.publish(OWNED)
    _, verdict = harness.update(container, cpuset_)
    if cpus is None:
        assert verdict == FORWARD
        return
    assert isinstance(verdict, Replace)
    request = pb.UpdateContainerResourcesRequest.FromString(verdict.message)
    quota = -1 if container == "c-own" else 5
    assert (request.linux.cpuset_cpus, request.linux.cpu_quota) == (cpus, quota)


def test_update_of_a_new_container_gets_the_granted_cpus(harness: GateHarness) -> None:
    harness.publish(OWNED)
    call, _ = harness.create("ls", "LS")
    harness.created(call, "c-ls")
    _, verdict = harness.update("c-ls", "0-3")
    assert isinstance(verdict, Replace)
    request = pb.UpdateContainerResourcesRequest.FromString(verdict.message)
    assert request.linux.cpuset_cpus == "0,2-3"


def test_update_of_an_unknown_container_waits_and_then_loses_owned_cpus(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    harness.publish(OWNED)
    call, verdict = harness.update("unknown", "0-1")
    assert verdict == Wait()
    assert harness.notifications() == [SnapshotRequest()]
    now += 61
    verdict = harness.retry(call)
    assert isinstance(verdict, Replace)
    request = pb.UpdateContainerResourcesRequest.FromString(verdict.message)
    assert request.linux.cpuset_cpus == "0"
    assert harness.admission.outcomes.failed_open == {
        ("UpdateContainerResources", "", "timeout"): 1
    }


def test_absent_agent_is_counted(tmp_path: Path) -> None:
    harness = GateHarness(tmp_path)
    (tmp_path / "doorbell.sock").unlink()
    assert harness.run("p")[1] == FORWARD
    assert (harness.notifier.sent, harness.notifier.undelivered) == (1, 1)
    harness.close()


def test_an_invalid_protobuf_passes_by_policy(harness: GateHarness) -> None:
    for path in CpusetGate.methods:
        if METHODS[path] in (RUN, CREATE, UPDATE):
            assert harness.gate.request(Call(path, 0.0), b"\xff garbage") == FORWARD
            assert harness.admission.outcomes.failed_open[METHODS[path], "", "malformed"]


UNREAD = {
    "too_large": Code.RESOURCE_EXHAUSTED,
    "compressed": Code.INTERNAL,
    "malformed": Code.INVALID_ARGUMENT,
    "internal_error": Code.INTERNAL,
}


@pytest.mark.parametrize(("reason", "code"), UNREAD.items())
@pytest.mark.parametrize(
    ("snapshot", "owned"),
    [(OWNED, "CPUs 1 of pod ns/own"), (WITH_DEVICES, "device GPU-other")],
    ids=["owners", "devices"],
)
def test_an_unread_request_fails_if_it_could_take_cpus_or_devices_of_a_pod(
    tmp_path: Path, reason: str, code: Code, snapshot: Snapshot, owned: str
) -> None:
    """Under any policy: only calls that assign nothing continue."""
    fail_open = GateHarness(tmp_path, policy="*=ignore")
    for published, continues in ((EMPTY, True), (snapshot, False)):
        fail_open.publish(published)
        for path, method in METHODS.items():
            verdict = fail_open.gate.unhooked(Call(path, 0.0), reason, "why")
            assert (verdict == FORWARD) is (continues or method not in (CREATE, UPDATE)), method
    verdict = fail_open.gate.unhooked(Call(CREATE_PATH, 0.0), reason, "why")
    title = "CreateContainer: a container whose request could not be read"
    assert verdict == Refuse(code, f"{title}: why; it could take {owned}")
    assert fail_open.admission.outcomes.failed[CREATE, "", reason] == 3
    fail_open.close()


def test_the_policy_applies_to_a_call_that_was_read_even_with_owners(tmp_path: Path) -> None:
    fail_open = GateHarness(tmp_path, policy="*=ignore")
    fail_open.publish(OWNED)
    assert fail_open.gate.unhooked(Call(CREATE_PATH, 0.0), "timeout", "the proxy ends") == FORWARD
    fail_open.close()


def test_claim_that_overloads_a_parser_is_an_invalid_claim(harness: GateHarness) -> None:
    harness.publish(OWNED)
    _, verdict = harness.create("p", "LS", '{"x":' + "[" * 100_000)
    assert cpus_of(verdict) == "0,2-3"


def test_every_version_of_the_cri_is_hooked(harness: GateHarness) -> None:
    harness.publish(OWNED)
    request = pb.CreateContainerRequest(sandbox_config=sandbox("own", "LSE", "1"))
    request.config.linux.resources.cpu_shares = 512
    _, verdict = harness.request(CREATE, request, "runtime.v1alpha2.RuntimeService")
    assert cpus_of(verdict) == "1"


POLICY = "CreateContainer=fail,CreateContainer/LS=ignore"


@pytest.mark.parametrize(
    ("qos", "refused"), [("LS", False), ("LSE", True), ("BE", True)], ids=["LS", "LSE", "BE"]
)
def test_the_policy_of_the_class_applies_at_the_deadline(
    tmp_path: Path, qos: str, refused: bool
) -> None:
    fail_closed = GateHarness(tmp_path, hold_seconds=0, policy=POLICY)
    fail_closed.publish(OWNED)
    _, verdict = fail_closed.create("new", qos, "2" if qos != "BE" else "")
    if qos == "BE":
        assert cpus_of(verdict) == "0,2-3", "a BE pod waits for no decision"
    elif refused:
        assert isinstance(verdict, Refuse)
        assert verdict.code == Code.UNAVAILABLE
    else:
        assert cpus_of(verdict) == "0,2-3"
    fail_closed.close()


def test_policy_may_allow_an_lse_pod_without_its_cpus(tmp_path: Path) -> None:
    fail_open = GateHarness(tmp_path, hold_seconds=0, policy="*=ignore")
    fail_open.publish(OWNED)
    _, verdict = fail_open.create("new", "LSE", "2")
    assert cpus_of(verdict) == "0,2-3"
    assert fail_open.admission.outcomes.failed_open == {(CREATE, "LSE", "timeout"): 1}
    fail_open.publish(msgspec.structs.replace(OWNED, pools={"ls": (Pool(0, 0, "1"),)}))
    _, verdict = fail_open.create("new", "LSE", "2")
    assert isinstance(verdict, Refuse), "no policy gives it the CPU of another pod"
    assert verdict.message == "pod ns/new: no CPUs after 0 s: its pool has no CPU"
    assert fail_open.admission.outcomes.failed == {(CREATE, "LSE", "no_cpu"): 1}
    fail_open.close()


def test_an_update_fails_under_the_policy_fail(tmp_path: Path) -> None:
    fail_closed = GateHarness(tmp_path, hold_seconds=0, policy="UpdateContainerResources=fail")
    fail_closed.publish(OWNED)
    _, verdict = fail_closed.update("unknown", "0-1")
    assert verdict == Refuse(
        Code.UNAVAILABLE, "container unknown: the agent does not know this container"
    )
    fail_closed.close()


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_owners_wait_for_a_creation_that_passed_unhooked(harness: GateHarness, read: bool) -> None:
    harness.publish(EMPTY)
    if read:
        unhooked, _ = harness.create("p", "LS", "")
    else:
        unhooked = Call(CREATE_PATH, 0.0)
    assert harness.gate.unhooked(unhooked, "too_large", "9 bytes") == FORWARD
    harness.publish(msgspec.structs.replace(OWNED, listed_at=0))
    assert harness.create("own", "LSE", "1")[1] == Wait()
    harness.created(unhooked, "c")
    harness.publish(OWNED)
    assert cpus_of(harness.create("own", "LSE", "1")[1]) == "1"
    assert sum(harness.admission.outcomes.failed_open.values()) == 1


def test_an_unreadable_request_fails_by_policy(tmp_path: Path) -> None:
    fail_closed = GateHarness(tmp_path, policy="CreateContainer=fail")
    unread = Call(b"/runtime.v1.RuntimeService/CreateContainer", 0.0)
    verdict = fail_closed.gate.unhooked(unread, "compressed", "not gzip")
    assert verdict == Refuse(
        Code.INTERNAL, "CreateContainer: a container whose request could not be read: not gzip"
    )
    other = Call(b"/runtime.v1.RuntimeService/StopContainer", 0.0)
    assert fail_closed.gate.unhooked(other, "malformed", "no message") == FORWARD
    assert fail_closed.admission.outcomes.failed == {(CREATE, "", "compressed"): 1}
    fail_closed.close()


def start(harness: GateHarness) -> Call:
    call, verdict = harness.request("StartContainer", pb.StartContainerRequest(container_id="c1"))
    assert verdict == FORWARD
    return call


def publish_pass(harness: GateHarness, snapshot: Snapshot) -> None:
    """The agent publishes this snapshot after a pass that begins now."""
    harness.publish(msgspec.structs.replace(snapshot, listed_at=time.monotonic_ns()))


@pytest.mark.parametrize("reply", [b"", None], ids=["started", "failed"])
def test_an_owner_waits_for_a_start_that_began_before_its_snapshot(
    harness: GateHarness, reply: bytes | None
) -> None:
    publish_pass(harness, EMPTY)
    starting = start(harness)
    publish_pass(harness, OWNED)
    assert harness.create("own", "LSE", "1")[1] == Wait()
    harness.notifications()
    harness.gate.reply(starting, reply)
    assert harness.notifications() == [SnapshotRequest(waits=False)], (
        "the agent may have read it before"
    )
    assert harness.create("own", "LSE", "1")[1] == Wait()
    publish_pass(harness, OWNED)
    assert cpus_of(harness.create("own", "LSE", "1")[1]) == "1"


def test_an_owner_does_not_wait_for_a_start_with_the_values_of_its_snapshot(
    harness: GateHarness,
) -> None:
    publish_pass(harness, OWNED)
    starting = start(harness)
    assert cpus_of(harness.create("own", "LSE", "1")[1]) == "1"
    harness.notifications()
    harness.gate.reply(starting, b"")
    assert harness.notifications() == []


def test_no_other_pod_waits_for_a_start(harness: GateHarness) -> None:
    publish_pass(harness, EMPTY)
    start(harness)
    publish_pass(harness, OWNED)
    assert cpus_of(harness.create("sharer", "LS")[1]) == "0,2-3"


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "stopped"])
def test_a_removed_container_does_not_delay_owners(harness: GateHarness, removed: bool) -> None:
    harness.publish(OWNED)
    grant = CpuGrant("p", "p", None)
    harness.grants.answered(harness.grants.open(grant), "c1")
    request = pb.RemoveContainerRequest(container_id="c1")
    call, verdict = harness.request("RemoveContainer" if removed else "StopContainer", request)
    assert verdict == FORWARD
    assert harness.notifications() == []
    harness.gate.reply(call, b"")
    assert harness.notifications() == [SnapshotRequest(waits=False)]
    waits = harness.create("own", "LSE", "1")[1] == Wait()
    assert waits is not removed
