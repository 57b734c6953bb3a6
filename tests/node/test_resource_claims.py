"""The agent's ledger of ResourceClaims."""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from agent.allocate.dra.groups import GroupRules
from agent.allocate.dra.offer import OfferedCpus
from agent.allocate.dra.preparation import PreparationError
from agent.allocate.reserved_cpus import KubeletCpus
from agent.dra.cdi import CdiFiles
from agent.kube.errors import (
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.model.audit import Record
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.dra import prepared_claim
from agent.model.dra.names import CLAIMS_FILE
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.pod.apiobjects import ApiPod, ClaimUse, Phase
from agent.node import resource_claims
from agent.node.reconcile import ClaimMoment
from agent.node.resource_claims import LAST_READ_SECONDS, MOST_WAITING, ResourceClaims
from tests.allocate.dra.node import ALL, FOUR_NODES
from tests.node.claimserver import ClaimsOfServer
from tests.waiting import DEADLINE_SECONDS, eventually

EVERYTHING = OfferedCpus(ALL)


@pytest.fixture
def server() -> ClaimsOfServer:
    return ClaimsOfServer()


@pytest.fixture
def start(server: ClaimsOfServer, tmp_path: Path) -> Callable[..., ResourceClaims]:
    def started(
        offered: OfferedCpus | None = EVERYTHING, wait_seconds: float = 0.0
    ) -> ResourceClaims:
        claims = ResourceClaims(
            server.read,
            "n1",
            str(tmp_path / CLAIMS_FILE),
            CdiFiles(str(tmp_path / "cdi"), str(tmp_path / "plugin")),
            GroupRules(),
            server.wake,
            wait_seconds=wait_seconds,
        )
        if offered is not None:
            claims.follow(ClaimMoment(FOUR_NODES, offered))
        return claims

    return started


Start = Callable[..., ResourceClaims]


def cpus_of(claims: ResourceClaims) -> Mapping[str, str]:
    return {claim.name: str(claim.cpus) for claim in claims.now().values()}


def cdi_files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cdi").iterdir())


def test_a_claim_keeps_its_cpus_until_it_is_unprepared(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    for name in "abc":
        server.add(name, 4)
    claims = start()
    claims.prepare("ns", "a", "u-a")
    claims.prepare("ns", "b", "u-b")
    assert cpus_of(claims) == {"a": "0-3", "b": "4-7"}
    assert server.passes == 2
    # The kubelet asks again after its own restart, also when the claim has been deleted.
    server.claims.clear()
    assert str(claims.prepare("ns", "a", "u-a").cpus) == "0-3"
    server.add("c", 4)
    with pytest.raises(PreparationError, match="ResourceClaim ns/c, request cpus: device numa-no"):
        claims.prepare("ns", "c", "u-c")
    claims.unprepare("u-a")
    claims.unprepare("u-a")
    assert str(claims.prepare("ns", "c", "u-c").cpus) == "0-3"
    assert cdi_files(tmp_path) == [
        "cpu.topolet.io-claim_u-b.json",
        "cpu.topolet.io-claim_u-c.json",
    ]


def test_a_restarted_agent_knows_the_claims(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """Also after a reboot, which empties the runtime's folder."""
    server.add("a", 4)
    start().prepare("ns", "a", "u-a")
    for name in cdi_files(tmp_path):
        os.unlink(tmp_path / "cdi" / name)
    (tmp_path / "cdi" / "cpu.topolet.io-claim_gone.json").write_text("{}")
    again = start(None)
    assert cpus_of(again) == {"a": "0-3"}
    assert cdi_files(tmp_path) == ["cpu.topolet.io-claim_u-a.json"]
    assert again.cpus() == CpuSet(range(4))


@pytest.mark.parametrize(
    ("name", "uid", "offered", "message"),
    [
        ("gone", "u", OfferedCpus(ALL), "ResourceClaim ns/gone: .*not found"),
        ("a", "other", OfferedCpus(ALL), "ResourceClaim ns/a: its uid is u-a, and not other"),
        ("a", "u-a", None, "the agent has not completed its first pass yet"),
        ("a", "u-a", OfferedCpus(reason="the kubelet has the static"), "ns/a: the kubelet has the"),
        ("a", "u-a", OfferedCpus(CpuSet((31,))), "device numa-node-0 does not exist"),
    ],
)
def test_a_claim_that_the_node_cannot_have_is_refused(
    server: ClaimsOfServer,
    start: Start,
    name: str,
    uid: str,
    offered: OfferedCpus | None,
    message: str,
) -> None:
    server.add("a", 4)
    claims = start(offered)
    with pytest.raises(PreparationError, match=message):
        claims.prepare("ns", name, uid)
    assert cpus_of(claims) == {}


@pytest.mark.parametrize("gone", ["allocation", "reservedFor"])
def test_a_claim_that_no_pod_has_is_refused(
    server: ClaimsOfServer, start: Start, gone: str
) -> None:
    """A kubelet asks again after it has unprepared the claim."""
    server.add("a", 4)
    del server.claims["ns", "a"]["status"][gone]
    with pytest.raises(PreparationError, match="ns/a: it is not allocated, or reserved for no po"):
        start().prepare("ns", "a", "u-a")


def test_a_claim_that_was_deleted_meanwhile_loses_its_cpus(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """Unless a pod that still exists uses it, or the agent does not know the pods yet."""
    for name in "abc":
        server.add(name, 2)
    claims = start()
    for name in "abc":
        claims.prepare("ns", name, f"u-{name}")
    uses = (ClaimUse("x", "b"),)
    pod = ApiPod("u-p", "ns", "p", "n1", Phase.RUNNING, {}, {}, "besteffort", 0, claims=uses)
    claims.with_claims(KubeletCpus(), [pod])
    claims.keep()
    kept = (tmp_path / CLAIMS_FILE).stat().st_ino
    claims.keep()
    assert (tmp_path / CLAIMS_FILE).stat().st_ino == kept, "it is written when it differs"
    del server.claims["ns", "b"]
    server.claims["ns", "c"]["metadata"]["uid"] = "u-new"
    again = start(None)
    again.sweep()
    assert set(cpus_of(again)) == {"a", "b", "c"}
    again.follow(ClaimMoment(FOUR_NODES, EVERYTHING, pods=frozenset({"u-p"})))
    again.sweep()
    assert set(cpus_of(again)) == {"a", "b"}
    again.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    again.sweep()
    assert set(cpus_of(again)) == {"a"}


def test_a_claim_that_cannot_be_kept_is_refused(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """A restarted agent would give its CPUs to another claim."""
    server.add("a", 4)
    claims = start()
    (tmp_path / f".{CLAIMS_FILE}.tmp").mkdir()
    with pytest.raises(PreparationError, match="ResourceClaim ns/a: the agent can't keep it: "):
        claims.prepare("ns", "a", "u-a")
    assert cpus_of(claims) == {}
    assert server.passes == 1, "a pass may have taken the CPUs from others"


def test_no_claim_is_prepared_while_a_pass_decides(server: ClaimsOfServer, start: Start) -> None:
    """A pass that has read the claims may give their CPUs to an owner."""
    server.add("a", 4)
    claims = start()
    claims.with_claims(KubeletCpus(), [])
    answers: list[PreparedClaim] = []
    call = threading.Thread(target=lambda: answers.append(claims.prepare("ns", "a", "u-a")))
    call.start()
    eventually("the claim is read", lambda: server.reads)
    left = OfferedCpus(CpuSet(range(4, 32)))
    claims.follow(ClaimMoment(FOUR_NODES, left))
    call.join()
    assert str(answers[0].cpus) == "4-7"


def test_no_claim_is_prepared_by_what_an_earlier_pass_left(
    server: ClaimsOfServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass on a machine with much load takes long, and one that fails is followed by another."""
    monkeypatch.setattr(resource_claims, "DECISION_SECONDS", 0.1)
    server.add("a", 4)
    claims = start()
    claims.with_claims(KubeletCpus(), [])
    with pytest.raises(PreparationError, match="ns/a: the agent has not decided yet which CPUs"):
        claims.prepare("ns", "a", "u-a")
    waiting = start(wait_seconds=DEADLINE_SECONDS)
    waiting.with_claims(KubeletCpus(), [])
    call = Call(server, waiting, "a")
    with pytest.raises(PreparationError, match="has not decided yet"):
        waiting.prepare("ns", "a", "u-a", DEADLINE_SECONDS)
    waiting.follow(ClaimMoment(FOUR_NODES, OfferedCpus(CpuSet(range(4, 32)))))
    assert call.ended() == "4-7"


def test_a_pass_does_not_wait_for_the_api_server(server: ClaimsOfServer, start: Start) -> None:
    server.add("a", 4)
    claims = start()
    server.read_claim = lambda: (
        claims.with_claims(KubeletCpus(), []) and claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    )
    assert str(claims.prepare("ns", "a", "u-a").cpus) == "0-3"


def test_the_audit_trail_says_which_pod_got_and_lost_the_cpus_of_a_claim(
    server: ClaimsOfServer, tmp_path: Path
) -> None:
    records: list[Record] = []
    claims = ResourceClaims(
        server.read,
        "n1",
        str(tmp_path / CLAIMS_FILE),
        CdiFiles(str(tmp_path / "cdi"), str(tmp_path / "plugin")),
        GroupRules(),
        server.wake,
        records.extend,
        wait_seconds=0.0,
    )
    uses = (ClaimUse("x", "a"),)
    pod = ApiPod("u-p", "ns", "p", "n1", Phase.PENDING, {}, {}, "besteffort", 0, claims=uses)
    claims.pods = (pod,)
    for name in "ab":
        server.add(name, 4)
        with pytest.raises(PreparationError):
            claims.prepare("ns", name, f"u-{name}")
    with pytest.raises(PreparationError):
        claims.prepare("ns", "a", "u-a")
    claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    for _ in range(2):
        claims.prepare("ns", "a", "u-a")
    for _ in range(2):
        claims.unprepare("u-a")
    assert [(each.event, each.title, each.before, each.after, each.reason) for each in records] == [
        ("ResourceClaimNotPrepared", "ns/p", None, None, "not-ready"),
        ("ResourceClaimNotPrepared", "", None, None, "not-ready"),
        ("ResourceClaimPrepared", "ns/p", None, "0-3", ""),
        ("ResourceClaimUnprepared", "ns/p", "0-3", None, ""),
    ]
    assert records[2].message == "ResourceClaim ns/a, request cpus of device numa-node-0"
    assert claims.seconds.count == 1


class Call:
    """A preparation on a thread of its own, of which a kubelet may not wait for the end."""

    def __init__(
        self,
        server: ClaimsOfServer,
        claims: ResourceClaims,
        name: str,
        waited_seconds: float = 0.0,
    ) -> None:
        self.answer = ""
        self._prepare = lambda: claims.prepare("ns", name, f"u-{name}", waited_seconds)
        self._thread = threading.Thread(target=self._run)
        before = server.reads
        self._thread.start()
        eventually("the claim is read", lambda: server.reads > before)

    def ended(self) -> str:
        """The CPUs, or the error."""
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        return self.answer

    def _run(self) -> None:
        try:
            self.answer = str(self._prepare().cpus)
        except PreparationError as error:
            self.answer = str(error)


def test_a_claim_waits_for_the_first_pass(server: ClaimsOfServer, start: Start) -> None:
    """A kubelet that is refused asks again only after more than a minute."""
    server.add("a", 4)
    claims = start(None, DEADLINE_SECONDS)
    call = Call(server, claims, "a")
    claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    assert call.ended() == "0-3"


@pytest.mark.parametrize("error", [UnreachableError, ServerError, TooManyRequestsError])
def test_a_claim_waits_for_an_api_server_that_is_away(
    server: ClaimsOfServer, start: Start, monkeypatch: pytest.MonkeyPatch, error: type[KubeError]
) -> None:
    monkeypatch.setattr(resource_claims, "READ_SECONDS", 0.01)
    server.add("a", 4)
    failures = [error("no server")] * 3

    def fails() -> None:
        if failures:
            raise failures.pop()

    server.read_claim = fails
    claims = start(wait_seconds=DEADLINE_SECONDS)
    assert str(claims.prepare("ns", "a", "u-a").cpus) == "0-3"
    assert not claims.refusals


@pytest.mark.parametrize(
    ("error", "repeats"),
    [(UnreachableError("no server"), True), (NotFoundError("no claim"), False)],
)
def test_a_claim_that_cannot_be_read_is_refused_after_the_wait_of_a_call(
    server: ClaimsOfServer, start: Start, error: KubeError, repeats: bool
) -> None:
    """An answer that another read would not change is a refusal at once."""

    def fails() -> None:
        raise error

    server.read_claim = fails
    claims = start(wait_seconds=0.5)
    with pytest.raises(PreparationError, match=str(error)):
        claims.prepare("ns", "a", "u-a")
    assert (server.reads > 1) == repeats


def test_only_few_claims_wait_for_an_api_server_and_none_that_is_unprepared(
    server: ClaimsOfServer, start: Start
) -> None:
    def fails() -> None:
        raise UnreachableError("no server")

    server.read_claim = fails
    claims = start(wait_seconds=2 * DEADLINE_SECONDS)
    calls = [Call(server, claims, str(number)) for number in range(MOST_WAITING + 1)]
    eventually("one is refused", lambda: any(call.answer for call in calls))
    assert [call.answer for call in calls].count("") == MOST_WAITING
    for number in range(MOST_WAITING + 1):
        claims.unprepare(f"u-{number}")
    assert all("no server" in call.ended() for call in calls)


def test_a_claim_waits_for_the_cpus_of_one_that_ends(server: ClaimsOfServer, start: Start) -> None:
    """Of a pod that was deleted by force, whose containers end seconds later."""
    server.add("old", 8)
    server.add("new", 1)
    claims = start(wait_seconds=DEADLINE_SECONDS)
    claims.prepare("ns", "old", "u-old")
    call = Call(server, claims, "new")
    claims.unprepare("u-old")
    assert call.ended() == "0"


def test_the_claims_of_a_pod_wait_no_longer_than_one(server: ClaimsOfServer, start: Start) -> None:
    server.add("a", 4)
    call = Call(server, start(None, LAST_READ_SECONDS), "a", LAST_READ_SECONDS)
    assert "has not completed its first pass yet" in call.ended()


def test_after_half_a_minute_no_further_claim_of_a_pod_is_read(
    server: ClaimsOfServer, start: Start
) -> None:
    """An API server that hangs answers each read only after 15 seconds, and a kubelet gives 45 to
    all claims. A claim that has its CPUs needs no read."""
    server.add("kept", 4)
    claims = start()
    claims.prepare("ns", "kept", "u-kept")
    with pytest.raises(PreparationError, match="ns/a: other claims of the pod took 31 s"):
        claims.prepare("ns", "a", "u-a", 31.0)
    assert str(claims.prepare("ns", "kept", "u-kept", 31.0).cpus) == "0-3"
    assert server.reads == 1


def test_a_claim_that_is_unprepared_while_it_waits_gets_no_cpus(
    server: ClaimsOfServer, start: Start
) -> None:
    """A pod that is deleted ends the kubelet's call, but not the agent's."""
    server.add("a", 4)
    claims = start(None, DEADLINE_SECONDS)
    call = Call(server, claims, "a")
    claims.unprepare("u-a")
    claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    assert call.ended() == "ResourceClaim ns/a: it was unprepared meanwhile"
    assert cpus_of(claims) == {}
    assert str(claims.prepare("ns", "a", "u-a").cpus) == "0-3"


def test_a_claim_that_is_unprepared_while_it_is_read_gets_no_cpus(
    server: ClaimsOfServer, start: Start
) -> None:
    server.add("a", 4)
    claims = start()
    server.read_claim = lambda: claims.unprepare("u-a")
    with pytest.raises(PreparationError, match="it was unprepared meanwhile"):
        claims.prepare("ns", "a", "u-a")
    assert cpus_of(claims) == {}


def test_pods_that_share_a_claim_get_its_cpus_in_calls_of_their_own(
    server: ClaimsOfServer, start: Start
) -> None:
    """Both calls wait; a kubelet that one of them refused would ask again a minute later."""
    server.add("a", 4)
    claims = start(None, DEADLINE_SECONDS)
    calls = [Call(server, claims, "a") for _ in range(2)]
    claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    assert [call.ended() for call in calls] == ["0-3", "0-3"]


def test_only_few_claims_wait_and_none_for_an_agent_that_ends(
    server: ClaimsOfServer, start: Start
) -> None:
    """The kubelet's calls that give CPUs back need threads of the server too."""
    claims = start(None, 2 * DEADLINE_SECONDS)
    for number in range(MOST_WAITING + 1):
        server.add(str(number), 1)
    calls = [Call(server, claims, str(number)) for number in range(MOST_WAITING + 1)]
    eventually("one is refused", lambda: any(call.answer for call in calls))
    assert [call.answer for call in calls].count("") == MOST_WAITING
    claims.close()
    assert all("has not completed its first pass yet" in call.ended() for call in calls)


def test_a_call_that_outlives_its_agent_changes_no_file_of_the_next_one(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """The API server answers after the grace that an agent gives to calls at its end."""
    for name in "abc":
        server.add(name, 4)
    claims = start()
    claims.prepare("ns", "b", "u-b")
    answers, reading = threading.Event(), threading.Event()

    def hangs() -> None:
        reading.set()
        answers.wait(DEADLINE_SECONDS)

    server.read_claim = hangs
    call = Call(server, claims, "a")
    reading.wait(DEADLINE_SECONDS)
    claims.close()
    server.read_claim = lambda: None
    following = start()
    following.unprepare("u-b")
    following.prepare("ns", "c", "u-c")
    answers.set()
    assert call.ended() == "ResourceClaim ns/a: the agent has ended"
    for outlived in (lambda: claims.unprepare("u-c"), lambda: claims.prepare("ns", "b", "u-b")):
        with pytest.raises(PreparationError, match="the agent has ended"):
            outlived()
    assert cdi_files(tmp_path) == ["cpu.topolet.io-claim_u-c.json"]
    assert cpus_of(start(None)) == cpus_of(following) == {"c": "0-3"}


def test_no_container_has_cpus_of_a_claim_before_the_file_names_it(
    server: ClaimsOfServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that the agent learns of after the claim is prepared. An agent that was killed after
    the container had started moved it to the CPUs that pods share, until it had listed the pods."""
    server.add("a", 4)
    claims = start()
    claims.prepare("ns", "a", "u-a")
    uses = (ClaimUse("x", "a"),)
    pod = ApiPod("u-p", "ns", "p", "n1", Phase.PENDING, {}, {}, "besteffort", 0, claims=uses)

    def decided() -> Mapping[str, Mapping[str, object]]:
        of_node = claims.with_claims(KubeletCpus(), [pod]).claims
        claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING, pods=frozenset({"u-p"})))
        return of_node.containers

    disk = SlowDisk(monkeypatch)
    claims.start()
    try:
        eventually("the file is written", lambda: decided() or disk.flushes)
        assert not decided()
        passes = server.passes
        disk.go_on()
        eventually("a pass is asked for", lambda: server.passes > passes)
    finally:
        disk.go_on()
        claims.close()
    of_pass = decided()
    assert set(of_pass) == {"u-p"}
    assert start(None).with_claims(KubeletCpus(), []).claims.containers == of_pass


class SlowDisk:
    """A disk that flushes nothing until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushes = 0
        self._flush = os.fsync
        self._goes_on = threading.Event()
        monkeypatch.setattr(os, "fsync", self._wait)

    def go_on(self) -> None:
        self._goes_on.set()

    def _wait(self, file: int) -> None:
        self.flushes += 1
        assert self._goes_on.wait(DEADLINE_SECONDS)
        self._flush(file)


def test_no_pass_waits_for_the_disk(
    server: ClaimsOfServer, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the kubelet does, and before it gets its answer, the container's files wait for the file
    of the agent."""
    server.add("a", 4)
    claims = start()
    disk = SlowDisk(monkeypatch)
    call = Call(server, claims, "a")
    eventually("the file is written", lambda: disk.flushes)
    kubelet = claims.with_claims(KubeletCpus(), [])
    assert str(kubelet.claims.cpus) == "0-3", "no owner gets them"
    claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    assert (call.answer, [*tmp_path.glob("cdi/*")]) == ("", [])
    disk.go_on()
    assert call.ended() == "0-3"
    assert cdi_files(tmp_path) == ["cpu.topolet.io-claim_u-a.json"]
    assert cpus_of(start(None)) == {"a": "0-3"}


def test_a_claim_has_its_cpus_until_the_file_says_otherwise(
    server: ClaimsOfServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted agent would give them to it, and maybe to another one too."""
    server.add("a", 4)
    server.add("b", 8)
    claims = start()
    claims.prepare("ns", "a", "u-a")
    disk = SlowDisk(monkeypatch)
    ending = threading.Thread(target=lambda: claims.unprepare("u-a"))
    ending.start()
    eventually("the file is written", lambda: disk.flushes)
    with pytest.raises(PreparationError, match="needs 8 CPUs, and 4 are free"):
        claims.prepare("ns", "b", "u-b")
    assert cpus_of(claims) == {"a": "0-3"}
    disk.go_on()
    ending.join()
    assert str(claims.prepare("ns", "b", "u-b").cpus) == "0-7"
    assert cpus_of(start(None)) == {"b": "0-7"}


def test_a_claim_that_is_prepared_while_it_is_unprepared_gets_no_answer_with_its_old_cpus(
    server: ClaimsOfServer, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("a", 4)
    claims = start()
    claims.prepare("ns", "a", "u-a")
    disk = SlowDisk(monkeypatch)
    ending = threading.Thread(target=lambda: claims.unprepare("u-a"))
    ending.start()
    eventually("the file is written", lambda: disk.flushes)
    answers: list[str] = []

    def prepare() -> None:
        try:
            answers.append(str(claims.prepare("ns", "a", "u-a").cpus))
        except PreparationError as error:
            answers.append(str(error))

    call = threading.Thread(target=prepare)
    call.start()
    disk.go_on()
    ending.join()
    call.join()
    prepared = cpus_of(claims)
    assert answers == [prepared.get("a", "ResourceClaim ns/a: it was unprepared meanwhile")]
    assert len(cdi_files(tmp_path)) == len(prepared)
    assert cpus_of(start(None)) == prepared


def test_what_the_kubelet_heard_is_in_the_file_whatever_calls_come_together(
    server: ClaimsOfServer, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelets of many pods, passes, and a disk that fails now and then."""
    claims = start()
    flush, faults = os.fsync, random.Random(1)

    def fsync(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode) and faults.random() < 0.2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(file)

    monkeypatch.setattr(os, "fsync", fsync)
    prepared, refused = Counter[str](), Counter[str]()
    wrong: list[str] = []

    def in_file() -> Mapping[str, str]:
        stored, _ = prepared_claim.decode((tmp_path / CLAIMS_FILE).read_bytes())
        return {claim.name: str(claim.cpus) for claim in stored}

    def calls(name: str) -> None:
        for _ in range(40):
            try:
                cpus = str(claims.prepare("ns", name, f"u-{name}").cpus)
                prepared[name] += 1
                if in_file().get(name) != cpus:
                    wrong.append(f"{name} has heard {cpus}")
                claims.unprepare(f"u-{name}")
                if name in in_file():
                    wrong.append(f"{name} is still in the file")
            except PreparationError:
                refused[name] += 1

    names = [str(number) for number in range(4)]
    for name in names:
        server.add(name, 3)
    threads = [threading.Thread(target=calls, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.001)
        of_node = claims.with_claims(KubeletCpus(), []).claims
        now = claims.now().values()
        if sum(len(claim.cpus) for claim in now) != len(union(claim.cpus for claim in now)):
            wrong.append(f"a CPU has two claims: {now}")
        assert of_node.cpus <= ALL
        claims.follow(ClaimMoment(FOUR_NODES, EVERYTHING))
    monkeypatch.undo()
    assert not wrong
    assert prepared.total() > len(names)
    assert refused.total()
    claims.keep()
    assert in_file() == cpus_of(claims)
    assert len(cdi_files(tmp_path)) == len(claims.now())


def test_a_torn_file_does_not_stop_the_agent(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """The containers of the claims can start again: the runtime still has their files."""
    server.add("a", 4)
    start().prepare("ns", "a", "u-a")
    (tmp_path / CLAIMS_FILE).write_text("{")
    assert cpus_of(start()) == {}
    assert cdi_files(tmp_path) == ["cpu.topolet.io-claim_u-a.json"]


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_text("{")])
def test_claims_whose_file_is_lost_keep_the_cpus_that_their_containers_were_told(
    server: ClaimsOfServer, start: Start, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """Somebody has cleared the state folder while their pods run."""
    claims = start()
    for number, name in enumerate(("ended", "kept", "other", "gone", "shrunk")):
        server.add(name, 4, f"numa-node-{number // 2}")
        claims.prepare("ns", name, f"u-{name}")
    kept, before = claims.now()["u-kept"], cdi_files(tmp_path)
    assert str(kept.cpus) == "4-7"
    claims.close()
    lose(tmp_path / CLAIMS_FILE)
    server.claims["ns", "ended"]["status"]["reservedFor"] = []
    server.add("other", 4, uid="u-second")
    del server.claims["ns", "gone"]
    server.add("shrunk", 2, "numa-node-2")
    server.add("new", 4)

    def fails() -> None:
        raise UnreachableError("no server")

    server.read_claim = fails
    again = start()
    again.keep()
    server.read_claim = lambda: None
    with pytest.raises(PreparationError, match="not read yet which CPUs other claims have"):
        again.prepare("ns", "new", "u-new")
    assert (cpus_of(again), cdi_files(tmp_path)) == ({}, before)

    again.keep()
    assert again.now() == {"u-kept": msgspec.structs.replace(kept, prepared_at=0)}
    # Nobody knows the CPUs of a claim that has another amount, and a container may have them.
    assert cdi_files(tmp_path) == [
        "cpu.topolet.io-claim_u-kept.json",
        "cpu.topolet.io-claim_u-shrunk.json",
    ]
    assert str(again.prepare("ns", "new", "u-new").cpus) == "0-3"
    assert cpus_of(start(None)) == {"kept": "4-7", "new": "0-3"}


def test_a_running_container_of_a_claim_whose_file_is_lost_stays_on_its_cpus(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """The first pass knows it, and does not wait for the file, as with a new container: it was on
    the CPUs that pods share for half a second."""
    server.add("a", 4)
    start().prepare("ns", "a", "u-a")
    (tmp_path / CLAIMS_FILE).unlink()
    again = start(None)
    again.keep()
    uses = (ClaimUse("x", "a"),)
    pod = ApiPod("u-p", "ns", "p", "n1", Phase.RUNNING, {}, {}, "besteffort", 0, claims=uses)
    of_pass = again.with_claims(KubeletCpus(), [pod]).claims
    assert str(of_pass.containers["u-p"]["x"].cpus) == "0-3"
    again.keep()
    assert again.with_claims(KubeletCpus(), [pod]).claims == of_pass


def test_a_container_has_its_cdi_file_while_nobody_knows_the_cpus_of_its_claim(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    """Without it, the runtime would not start the container again."""
    server.add("a", 4)
    start().prepare("ns", "a", "u-a")
    (tmp_path / CLAIMS_FILE).unlink()
    for path in (tmp_path / "plugin" / "metadata" / "u-a").iterdir():
        path.unlink()
    again = start()
    again.keep()
    assert cdi_files(tmp_path) == ["cpu.topolet.io-claim_u-a.json"]
    assert str(again.prepare("ns", "a", "u-a").cpus) == "0-3"


def test_a_claim_whose_file_is_lost_can_be_unprepared(
    server: ClaimsOfServer, start: Start, tmp_path: Path
) -> None:
    server.add("a", 8)
    start().prepare("ns", "a", "u-a")
    (tmp_path / CLAIMS_FILE).unlink()
    again = start()
    again.unprepare("u-a")
    assert cdi_files(tmp_path) == []
    again.keep()
    assert again.now() == {}
    server.add("b", 8)
    assert str(again.prepare("ns", "b", "u-b").cpus) == "0-7"


def test_cpus_that_are_offline_are_a_trouble_of_their_device(
    server: ClaimsOfServer, start: Start
) -> None:
    server.add("a", 4)
    claims = start()
    claims.prepare("ns", "a", "u-a")
    assert {trouble for _, _, trouble in claims.devices()} == {""}
    without = FOUR_NODES.cpus[2:]
    topology = type(FOUR_NODES)(
        without, FOUR_NODES.numa_nodes, CpuSet((0, 1)), FOUR_NODES.isolated, FOUR_NODES.smt
    )
    claims.follow(ClaimMoment(topology, OfferedCpus(ALL)))
    troubles = {device: trouble for _, device, trouble in claims.devices() if trouble}
    assert troubles == {"numa-node-0": "CPUs 0-1 are offline"}

    def offered() -> str:
        first, *_ = claims.slice_devices()
        return str(first["capacity"]["cpu.topolet.io/cpu"]["value"])

    assert offered() == "8", "a scheduler subtracts the four CPUs of the claim, and four are free"
    claims.unprepare("u-a")
    assert offered() == "6"
