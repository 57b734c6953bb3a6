"""Whole exchanges: request bytes, snapshot file, notification socket."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from agent.hooks.cpuset import CpuGrant
from agent.model.notifications import (
    Created,
    PodAnnounced,
    PodFailed,
    RequestedResources,
    SnapshotRequest,
)
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.settings.failure_policy import CREATE, RUN, UPDATE
from agent.model.snapshot import PodWanted, Pool, Snapshot, Wanted
from agent.model.verdict import Code, Refuse, Wait
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import METHODS, CpusetGate
from agent.relay.gate import FORWARD, Call, GateVerdict, Replace
from tests.proxy.exchanges import EMPTY, OWNED, SHOWN, Exchange, sandbox

CREATE_PATH = b"/runtime.v1.RuntimeService/CreateContainer"


def given_cpus(verdict: GateVerdict) -> str:
    assert isinstance(verdict, Replace)
    request = pb.CreateContainerRequest.FromString(verdict.message)
    assert request.config.linux.resources.cpu_shares == 512
    return request.config.linux.resources.cpuset_cpus


def test_sandbox_is_announced_and_passes(exchange: Exchange) -> None:
    call, verdict = exchange.run("p", "LSE", "1")
    assert verdict == FORWARD
    (notification,) = exchange.notifications()
    assert isinstance(notification, PodAnnounced)
    assert (notification.uid, notification.labels) == ("p", {QOS_LABEL: "LSE"})
    assert list(notification.annotations.values()) == ['{"cpuset": "1"}']
    exchange.gate.reply(call, pb.RunPodSandboxResponse(pod_sandbox_id="s").SerializeToString())
    assert exchange.notifications() == [SnapshotRequest(waits=False, sandbox_uid="p")]


@pytest.mark.parametrize("reply", [None, b"", b"\xff garbage"])
def test_failed_sandbox_withdraws_its_announcement(exchange: Exchange, reply: bytes | None) -> None:
    call, _ = exchange.run("p")
    exchange.notifications()
    exchange.gate.reply(call, reply)
    assert exchange.notifications() == [PodFailed("p")]


def test_sandbox_waits_until_its_pod_has_no_cpu_of_an_owner(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    call, verdict = exchange.run("p", "LS")
    assert verdict == Wait()
    exchange.publish(OWNED)
    assert exchange.again(call) == Wait(), "this pass began without the notification"
    exchange.publish(msgspec.structs.replace(OWNED, announced=("p",)))
    assert exchange.again(call) == FORWARD
    assert len(exchange.notifications()) == 1
    assert not exchange.admission.outcomes.failed_open


@pytest.mark.parametrize(
    ("snapshot", "uid"),
    [
        (None, "p"),
        (msgspec.structs.replace(EMPTY, announced=()), "p"),
        (OWNED, "own"),
        (msgspec.structs.replace(OWNED, announced=None), "p"),
    ],
    ids=["no-snapshot", "no-owner", "owner-itself", "agent-of-the-last-version"],
)
def test_sandbox_waits_for_no_owner_but_others(
    exchange: Exchange, snapshot: Snapshot | None, uid: str
) -> None:
    if snapshot:
        exchange.publish(snapshot)
    assert exchange.run(uid)[1] == FORWARD


def test_sandbox_waits_for_at_most_50_ms(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under a policy that fails its hook, and with a longer time for others."""
    moment = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    exchange.publish(OWNED)
    call, _ = exchange.run("p", "LS")
    moment += 0.049
    assert exchange.again(call) == Wait()
    moment += 0.002
    assert exchange.again(call) == FORWARD
    assert exchange.admission.outcomes.failed_open == {(RUN, "LS", "timeout"): 1}
    assert len(exchange.notifications()) == 1


def test_sandbox_does_not_wait_for_an_agent_that_does_not_run(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.publish(OWNED)
    (tmp_path / "bell").unlink()
    assert exchange.run("p")[1] == FORWARD
    exchange.close()


def test_cancelled_sandbox_withdraws_its_announcement(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    call, _ = exchange.run("p")
    exchange.notifications()
    exchange.gate.abandoned(call)
    assert exchange.notifications() == [PodFailed("p")]


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
    exchange: Exchange,
    snapshot: Snapshot | None,
    qos: str,
    claim: str,
    cpuset_: str,
    cpus: str | None,
) -> None:
    if snapshot:
        exchange.publish(snapshot)
    _, verdict = exchange.create("p", qos, claim, cpuset_)
    if cpus is None:
        assert verdict == FORWARD
    else:
        assert given_cpus(verdict) == cpus


def test_owner_is_held_until_the_agent_has_decided(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    exchange.publish(EMPTY)
    call, verdict = exchange.create("own", "LSE", "1")
    assert verdict == Wait()
    assert [type(notification) for notification in exchange.notifications()] == [PodAnnounced]
    assert exchange.again(call) == Wait()
    assert exchange.notifications() == [], "rings again only after a while"
    exchange.publish(OWNED)
    assert given_cpus(exchange.again(call)) == "1"
    exchange.created(call, "c1")
    kept = ("mems", "shares", "quota_microseconds", "memory_limit_bytes")
    assert exchange.notifications() == [Created("c1", RequestedResources(shares=512), kept)]
    assert not exchange.admission.outcomes.failed_open
    assert not exchange.admission.outcomes.failed


def test_held_call_notifies_the_agent_again(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    call, _ = exchange.create("own", "LSE", "1")
    moment += 0.05
    exchange.again(call)
    assert len(exchange.notifications()) == 1
    moment += 0.06
    exchange.again(call)
    assert len(exchange.notifications()) == 1


def test_at_the_deadline_an_owner_is_refused_with_its_pod(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    call, _ = exchange.create("own", "LSE", "1")
    moment += 59.9
    assert exchange.again(call) == Wait()
    moment += 0.2
    assert exchange.again(call) == Refuse(
        Code.UNAVAILABLE, "pod ns/own: no CPUs after 60 s: the agent has written no snapshot"
    )
    assert exchange.admission.outcomes.failed == {("CreateContainer", "LSE", "timeout"): 1}


def test_at_the_deadline_a_sharing_pod_with_a_claim_shares(hasty: Exchange) -> None:
    hasty.publish(OWNED)
    _, verdict = hasty.create("new", "LS", "2")
    assert given_cpus(verdict) == "0,2-3"
    assert hasty.admission.outcomes.failed_open == {("CreateContainer", "LS", "timeout"): 1}


def test_blocked_owner_is_refused_with_the_reason(hasty: Exchange) -> None:
    blocked = {
        "own": PodWanted(
            "ns/own", QoS.LSE, Wanted("1", exclusive=True, blocked="pod ns/x still holds CPUs 1")
        )
    }
    hasty.publish(msgspec.structs.replace(OWNED, pods=blocked))
    _, verdict = hasty.create("own", "LSE", "1")
    assert isinstance(verdict, Refuse)
    assert verdict.message.endswith("pod ns/x still holds CPUs 1")


def shared_before_the_owner_came(exchange: Exchange) -> tuple[Call, Call]:
    exchange.publish(EMPTY)
    sharer, verdict = exchange.create("ls", "LS")
    assert given_cpus(verdict) == "0-3"
    exchange.publish(OWNED)
    owner, verdict = exchange.create("own", "LSE", "1")
    assert verdict == Wait(), "the sharer may be created on CPU 1"
    return sharer, owner


def test_owner_waits_for_a_creation_in_progress_until_the_agent_has_seen_it(
    exchange: Exchange,
) -> None:
    sharer, owner = shared_before_the_owner_came(exchange)
    exchange.publish(OWNED)
    assert exchange.again(owner) == Wait(), "the pass began before the sharing container existed"
    exchange.created(sharer, "c-ls")
    assert exchange.again(owner) == Wait()
    exchange.publish(OWNED)
    assert given_cpus(exchange.again(owner)) == "1"


@pytest.mark.parametrize("reply", [None, b"", b"\xff garbage"])
def test_owner_does_not_wait_forever_for_a_failed_creation(
    exchange: Exchange, reply: bytes | None
) -> None:
    sharer, owner = shared_before_the_owner_came(exchange)
    exchange.gate.reply(sharer, reply)
    exchange.publish(OWNED)
    assert given_cpus(exchange.again(owner)) == "1"


def test_started_proxy_waits_for_one_pass_before_an_owner(tmp_path: Path) -> None:
    before = Exchange(tmp_path)
    before.publish(OWNED)
    before.close()
    (tmp_path / "bell").unlink()
    after = Exchange(tmp_path)
    call, verdict = after.create("own", "LSE", "1")
    assert verdict == Wait()
    after.publish(OWNED)
    assert given_cpus(after.again(call)) == "1"
    after.close()


@pytest.mark.parametrize(
    ("container", "cpuset_", "cpus"),
    [
        ("c-own", "0-3", "1"),
        ("c-own", "", "1"),
        ("c-kubelet", "0-1", None),
        ("stranger", "", None),
    ],
)
def test_update(exchange: Exchange, container: str, cpuset_: str, cpus: str | None) -> None:
    exchange.publish(OWNED)
    _, verdict = exchange.update(container, cpuset_)
    if cpus is None:
        assert verdict == FORWARD
        return
    assert isinstance(verdict, Replace)
    request = pb.UpdateContainerResourcesRequest.FromString(verdict.message)
    quota = -1 if container == "c-own" else 5
    assert (request.linux.cpuset_cpus, request.linux.cpu_quota) == (cpus, quota)


def test_update_of_a_new_container_gets_the_granted_cpus(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    call, _ = exchange.create("ls", "LS")
    exchange.created(call, "c-ls")
    _, verdict = exchange.update("c-ls", "0-3")
    assert isinstance(verdict, Replace)
    request = pb.UpdateContainerResourcesRequest.FromString(verdict.message)
    assert request.linux.cpuset_cpus == "0,2-3"


def test_update_of_an_unknown_container_waits_and_then_loses_owned_cpus(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    exchange.publish(OWNED)
    call, verdict = exchange.update("stranger", "0-1")
    assert verdict == Wait()
    assert exchange.notifications() == [SnapshotRequest()]
    moment += 61
    verdict = exchange.again(call)
    assert isinstance(verdict, Replace)
    request = pb.UpdateContainerResourcesRequest.FromString(verdict.message)
    assert request.linux.cpuset_cpus == "0"
    assert exchange.admission.outcomes.failed_open == {
        ("UpdateContainerResources", "", "timeout"): 1
    }


def test_absent_agent_is_counted(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    (tmp_path / "bell").unlink()
    assert exchange.run("p")[1] == FORWARD
    assert (exchange.notifier.sent, exchange.notifier.undelivered) == (1, 1)
    exchange.close()


def test_an_invalid_protobuf_passes_by_policy(exchange: Exchange) -> None:
    for path in CpusetGate.methods:
        if METHODS[path] in (RUN, CREATE, UPDATE):
            assert exchange.gate.request(Call(path, 0.0), b"\xff garbage") == FORWARD
            assert exchange.admission.outcomes.failed_open[METHODS[path], "", "malformed"]


UNREAD = {
    "too_large": Code.RESOURCE_EXHAUSTED,
    "compressed": Code.INTERNAL,
    "malformed": Code.INVALID_ARGUMENT,
    "internal_error": Code.INTERNAL,
}


@pytest.mark.parametrize(("reason", "code"), UNREAD.items())
@pytest.mark.parametrize(
    ("snapshot", "owned"),
    [(OWNED, "CPUs 1 of pod ns/own"), (SHOWN, "device GPU-other")],
    ids=["owners", "devices"],
)
def test_an_unread_request_fails_if_it_could_take_an_owners_cpus(
    tmp_path: Path, reason: str, code: Code, snapshot: Snapshot, owned: str
) -> None:
    """Whatever the policy is: only calls that assign nothing continue."""
    lax = Exchange(tmp_path, policy="*=ignore")
    for published, passes in ((EMPTY, True), (snapshot, False)):
        lax.publish(published)
        for path, method in METHODS.items():
            verdict = lax.gate.unhooked(Call(path, 0.0), reason, "why")
            assert (verdict == FORWARD) is (passes or method not in (CREATE, UPDATE)), method
    verdict = lax.gate.unhooked(Call(CREATE_PATH, 0.0), reason, "why")
    title = "CreateContainer: a container whose request could not be read"
    assert verdict == Refuse(code, f"{title}: why; it could take {owned}")
    assert lax.admission.outcomes.failed[CREATE, "", reason] == 3
    lax.close()


def test_a_call_that_was_read_is_left_to_the_policy_with_owners_too(tmp_path: Path) -> None:
    """Its request was read."""
    lax = Exchange(tmp_path, policy="*=ignore")
    lax.publish(OWNED)
    assert lax.gate.unhooked(Call(CREATE_PATH, 0.0), "timeout", "the proxy ends") == FORWARD
    lax.close()


def test_claim_that_overloads_a_parser_is_an_invalid_claim(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    _, verdict = exchange.create("p", "LS", '{"x":' + "[" * 100_000)
    assert given_cpus(verdict) == "0,2-3"


def test_every_version_of_the_cri_is_hooked(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    request = pb.CreateContainerRequest(sandbox_config=sandbox("own", "LSE", "1"))
    request.config.linux.resources.cpu_shares = 512
    _, verdict = exchange.ask(CREATE, request, "runtime.v1alpha2.RuntimeService")
    assert given_cpus(verdict) == "1"


POLICY = "CreateContainer=fail,CreateContainer/LS=ignore"


@pytest.mark.parametrize(
    ("qos", "refused"), [("LS", False), ("LSE", True), ("BE", True)], ids=["LS", "LSE", "BE"]
)
def test_the_policy_of_the_class_applies_at_the_deadline(
    tmp_path: Path, qos: str, refused: bool
) -> None:
    strict = Exchange(tmp_path, hold_seconds=0, policy=POLICY)
    strict.publish(OWNED)
    _, verdict = strict.create("new", qos, "2" if qos != "BE" else "")
    if qos == "BE":
        assert given_cpus(verdict) == "0,2-3", "nothing to wait for"
    elif refused:
        assert isinstance(verdict, Refuse)
        assert verdict.code == Code.UNAVAILABLE
    else:
        assert given_cpus(verdict) == "0,2-3"
    strict.close()


def test_policy_may_allow_an_lse_pod_without_its_cpus(tmp_path: Path) -> None:
    lax = Exchange(tmp_path, hold_seconds=0, policy="*=ignore")
    lax.publish(OWNED)
    _, verdict = lax.create("new", "LSE", "2")
    assert given_cpus(verdict) == "0,2-3"
    assert lax.admission.outcomes.failed_open == {(CREATE, "LSE", "timeout"): 1}
    lax.publish(msgspec.structs.replace(OWNED, ls_pools=(Pool(0, 0, "1"),)))
    _, verdict = lax.create("new", "LSE", "2")
    assert isinstance(verdict, Refuse), "not on the CPU of another, whatever the policy"
    assert verdict.message == "pod ns/new: no CPUs after 0 s: its pool has no CPU"
    assert lax.admission.outcomes.failed == {(CREATE, "LSE", "no_cpu"): 1}
    lax.close()


def test_an_update_fails_under_the_policy_fail(tmp_path: Path) -> None:
    strict = Exchange(tmp_path, hold_seconds=0, policy="UpdateContainerResources=fail")
    strict.publish(OWNED)
    _, verdict = strict.update("stranger", "0-1")
    assert verdict == Refuse(
        Code.UNAVAILABLE, "container stranger: the agent does not know this container"
    )
    strict.close()


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_owners_wait_for_a_creation_that_passed_unhooked(exchange: Exchange, read: bool) -> None:
    exchange.publish(EMPTY)
    if read:
        stray, _ = exchange.create("p", "LS", "")
    else:
        stray = Call(CREATE_PATH, 0.0)
    assert exchange.gate.unhooked(stray, "too_large", "9 bytes") == FORWARD
    exchange.publish(msgspec.structs.replace(OWNED, listed_at=0))
    assert exchange.create("own", "LSE", "1")[1] == Wait()
    exchange.created(stray, "c")
    exchange.publish(OWNED)
    assert given_cpus(exchange.create("own", "LSE", "1")[1]) == "1"
    assert sum(exchange.admission.outcomes.failed_open.values()) == 1


def test_an_unreadable_request_fails_by_policy(tmp_path: Path) -> None:
    strict = Exchange(tmp_path, policy="CreateContainer=fail")
    unread = Call(b"/runtime.v1.RuntimeService/CreateContainer", 0.0)
    verdict = strict.gate.unhooked(unread, "compressed", "not gzip")
    assert verdict == Refuse(
        Code.INTERNAL, "CreateContainer: a container whose request could not be read: not gzip"
    )
    other = Call(b"/runtime.v1.RuntimeService/StopContainer", 0.0)
    assert strict.gate.unhooked(other, "malformed", "no message") == FORWARD
    assert strict.admission.outcomes.failed == {(CREATE, "", "compressed"): 1}
    strict.close()


def start(exchange: Exchange) -> Call:
    call, verdict = exchange.ask("StartContainer", pb.StartContainerRequest(container_id="c1"))
    assert verdict == FORWARD
    return call


def publish_pass(exchange: Exchange, snapshot: Snapshot) -> None:
    """The agent publishes this snapshot after a pass that begins now."""
    exchange.publish(msgspec.structs.replace(snapshot, listed_at=time.monotonic_ns()))


@pytest.mark.parametrize("reply", [b"", None], ids=["started", "failed"])
def test_an_owner_waits_for_a_start_that_began_before_its_snapshot(
    exchange: Exchange, reply: bytes | None
) -> None:
    publish_pass(exchange, EMPTY)
    starting = start(exchange)
    publish_pass(exchange, OWNED)
    assert exchange.create("own", "LSE", "1")[1] == Wait()
    exchange.notifications()
    exchange.gate.reply(starting, reply)
    assert exchange.notifications() == [SnapshotRequest(waits=False)], (
        "the agent may have read it before"
    )
    assert exchange.create("own", "LSE", "1")[1] == Wait()
    publish_pass(exchange, OWNED)
    assert given_cpus(exchange.create("own", "LSE", "1")[1]) == "1"


def test_an_owner_does_not_wait_for_a_start_with_the_values_of_its_snapshot(
    exchange: Exchange,
) -> None:
    publish_pass(exchange, OWNED)
    starting = start(exchange)
    assert given_cpus(exchange.create("own", "LSE", "1")[1]) == "1"
    exchange.notifications()
    exchange.gate.reply(starting, b"")
    assert exchange.notifications() == []


def test_no_other_pod_waits_for_a_start(exchange: Exchange) -> None:
    publish_pass(exchange, EMPTY)
    start(exchange)
    publish_pass(exchange, OWNED)
    assert given_cpus(exchange.create("shares", "LS")[1]) == "0,2-3"


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "stopped"])
def test_a_removed_container_does_not_delay_owners(exchange: Exchange, removed: bool) -> None:
    exchange.publish(OWNED)
    held = CpuGrant("p", "p", None)
    exchange.grants.answered(exchange.grants.open(held), "c1")
    request = pb.RemoveContainerRequest(container_id="c1")
    call, verdict = exchange.ask("RemoveContainer" if removed else "StopContainer", request)
    assert verdict == FORWARD
    assert exchange.notifications() == []
    exchange.gate.reply(call, b"")
    assert exchange.notifications() == [SnapshotRequest(waits=False)]
    waits = exchange.create("own", "LSE", "1")[1] == Wait()
    assert waits is not removed
