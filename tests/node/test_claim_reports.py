"""What the agent writes about its claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.allocate.dra.groups import GroupRules
from agent.allocate.dra.offer import OfferedCpus
from agent.allocate.dra.preparation import PreparationError
from agent.allocate.dra.refusals import (
    FORGOTTEN_SECONDS,
    PAUSE_SECONDS,
    REFUSED_SECONDS,
    REFUSED_TIMES,
)
from agent.allocate.reserved_cpus import KubeletCpus
from agent.dra.cdi import CdiFiles
from agent.kube.errors import ConflictError, ForbiddenError, NotFoundError, RejectedError
from agent.kube.events import Regarding
from agent.kube.eviction import EvictionResult
from agent.model.dra.names import CLAIMS_FILE, SHOWN_FILE
from agent.model.pod.apiobjects import ApiPod, ClaimUse, Phase
from agent.node.claim_reports import RETRY_SECONDS, ClaimReports
from agent.node.reconcile import ClaimMoment
from agent.node.resource_claims import ResourceClaims
from agent.view import dra as dra_view
from tests.allocate.dra.node import ALL, FOUR_NODES
from tests.node.claimserver import ClaimsOfServer


class ReportedClaims(ClaimsOfServer):
    """An API server, the Events and a clock, with the reports about its claims."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.now = 1000.0
        self.statuses: list[tuple[str, list[dict[str, Any]]]] = []
        self.evicted: list[str] = []
        self.events: list[tuple[str, str, str]] = []
        self.error: Exception | None = None
        self.unpublished = ""
        self.ledger = ResourceClaims(
            self.read,
            "n1",
            str(folder / CLAIMS_FILE),
            CdiFiles(str(folder / "cdi"), str(folder / "plugin")),
            GroupRules(),
            self.wake,
            clock=lambda: self.now,
            wait_seconds=0.0,
        )
        self.reports = ClaimReports(
            *(self, self.ledger, self.record, lambda: self.unpublished),
            str(folder / SHOWN_FILE),
            lambda: self.now,
        )
        self.follow(OfferedCpus(ALL))

    def follow(self, offered: OfferedCpus) -> None:
        """A pass leaves this to claims."""
        self.offered = offered
        self.ledger.follow(ClaimMoment(FOUR_NODES, offered))

    def apply_claim_status(self, namespace: str, name: str, status: dict[str, Any]) -> None:
        self.statuses.append((name, status["status"]["devices"]))
        assert status["metadata"] == {"namespace": namespace, "name": name, "uid": f"u-{name}"}
        if self.error is not None:
            raise self.error

    def evict_pod(self, pod: Regarding, *, kill: bool) -> EvictionResult:
        self.evicted.append(pod.name)
        assert not kill
        if self.error is not None:
            raise self.error
        return EvictionResult.EVICTED

    def record(self, pod: Regarding, reason: str, note: str) -> None:
        self.events.append((pod.name, reason, note))

    def pods(self, *names: str) -> None:
        """These pods wait, each for the claim of its name."""
        pods = [
            ApiPod(
                *(f"u-{name}", "ns", name, "n1", Phase.PENDING, {}, {}, "burstable", 0),
                claims=(ClaimUse("x", name),),
            )
            for name in names
        ]
        self.ledger.with_claims(KubeletCpus(), pods)
        self.ledger.keep()
        self.ledger.with_claims(KubeletCpus(), pods)
        self.follow(self.offered)

    def prepare(self, name: str) -> None:
        self.ledger.prepare("ns", name, f"u-{name}")

    def refuse(self, name: str, seconds: float = REFUSED_SECONDS) -> None:
        """The kubelet asks again and again."""
        for _ in range(REFUSED_TIMES + 1):
            with pytest.raises(PreparationError):
                self.prepare(name)
            self.now += seconds / REFUSED_TIMES


@pytest.fixture
def reported(tmp_path: Path) -> ReportedClaims:
    return ReportedClaims(tmp_path)


def test_the_status_names_the_cpus_while_the_claim_has_them(reported: ReportedClaims) -> None:
    reported.add("a", 4)
    reported.prepare("a")
    for _ in range(3):
        reported.reports.step()
    ((name, (device,)),) = reported.statuses
    assert (name, device["device"], device["data"]["cpus"]) == ("a", "numa-node-0", "0-3")
    (condition,) = device["conditions"]
    (claim,) = reported.ledger.now().values()
    assert claim.prepared_at
    assert condition["lastTransitionTime"].endswith("Z")
    reported.ledger.unprepare("u-a")
    for _ in range(3):
        reported.reports.step()
    assert reported.statuses[1:] == [("a", [])]


def test_a_restarted_agent_writes_the_same_status(
    reported: ReportedClaims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server then changes nothing."""
    reported.add("a", 4)
    reported.prepare("a")
    reported.reports.step()
    monkeypatch.setattr("time.time", lambda: 0.0)
    again = ReportedClaims(tmp_path)
    again.reports.step()
    assert again.statuses == reported.statuses


@pytest.mark.parametrize(
    "error", [NotFoundError("gone"), ConflictError("another uid"), RejectedError("no allocation")]
)
def test_a_claim_that_is_gone_does_not_keep_others_from_their_status(
    reported: ReportedClaims, error: Exception
) -> None:
    for name in "ab":
        reported.add(name, 2)
        reported.prepare(name)
    reported.error = error
    reported.reports.step()
    reported.reports.step()
    assert [name for name, _ in reported.statuses] == ["a", "b"]


def test_a_server_that_forbids_the_status_is_not_asked_each_time(reported: ReportedClaims) -> None:
    for name in "ab":
        reported.add(name, 2)
        reported.prepare(name)
    reported.error = ForbiddenError("resourceclaims/driver")
    reported.reports.step()
    reported.reports.step()
    assert len(reported.statuses) == 1
    reported.error = None
    reported.now += RETRY_SECONDS
    reported.reports.step()
    assert [name for name, _ in reported.statuses] == ["a", "a", "b"]


def test_a_pod_whose_claim_another_node_may_prepare_is_evicted(reported: ReportedClaims) -> None:
    for name in "ab":
        reported.add(name, 9)
    reported.pods("a", "b")
    for name in "ab":
        reported.refuse(name)
    for _ in range(3):
        reported.reports.step()
    assert reported.evicted == ["a"]
    (event,) = reported.events
    assert event[:2] == ("a", "EvictedFromNode")
    assert event[2].startswith("another node may prepare its claim: ResourceClaim ns/a, request ")
    assert (reported.reports.evicted, reported.ledger.refusals) == (
        1,
        {"cpus-taken": 2 * (REFUSED_TIMES + 1)},
    )
    reported.pods("b")
    reported.now += PAUSE_SECONDS
    reported.refuse("b")
    reported.reports.step()
    assert reported.evicted == ["a", "b"]


@pytest.mark.parametrize("mends", [ReportedClaims.prepare, lambda _, name: None])
def test_a_claim_that_is_prepared_meanwhile_or_not_asked_for_evicts_nobody(
    reported: ReportedClaims, mends: Callable[[ReportedClaims, str], None]
) -> None:
    reported.add("a", 4)
    reported.pods("a")
    reported.follow(OfferedCpus(reason="other pods own all CPUs"))
    reported.refuse("a")
    reported.follow(OfferedCpus(ALL))
    mends(reported, "a")
    reported.now += FORGOTTEN_SECONDS
    reported.reports.step()
    assert not reported.evicted


def test_an_eviction_that_fails_is_tried_again_after_a_pause(reported: ReportedClaims) -> None:
    reported.add("a", 9)
    reported.pods("a")
    reported.refuse("a")
    reported.error = ForbiddenError("pods/eviction")
    reported.reports.step()
    reported.reports.step()
    assert reported.evicted == ["a"]
    assert not reported.events
    reported.now += PAUSE_SECONDS
    reported.refuse("a")
    reported.error = None
    reported.reports.step()
    assert reported.evicted == ["a", "a"]


def test_a_pod_that_requests_less_than_its_claims_is_told_once(reported: ReportedClaims) -> None:
    reported.add("a", 4)
    reported.prepare("a")
    reported.pods("a")
    for _ in range(3):
        reported.reports.step()
    ((name, reason, note),) = reported.events
    assert (name, reason) == ("a", "RequestBelowClaims")
    assert note.startswith("it requests 0 CPUs and has 4 by its claims")
    assert len(reported.reports.low) == 1


def test_the_file_for_people_says_what_is_offered_given_and_refused(
    reported: ReportedClaims, tmp_path: Path
) -> None:
    for name, cpus in (("a", 4), ("b", 9)):
        reported.add(name, cpus)
    reported.prepare("a")
    reported.pods("a", "b")
    reported.refuse("b", 1.0)
    path = tmp_path / SHOWN_FILE
    reported.reports.step()
    dra = dra_view.read(str(path))
    assert dra.registration == "the kubelet has not registered the driver yet"
    assert [(device.cpus, device.free) for device in dra.devices][:2] == [
        ("0-7", "4-7"),
        ("8-15", "8-15"),
    ]
    given, refused = dra.claims
    assert (given.title, given.pods, given.requests[0].cpus) == ("ns/a", ("ns/a",), "0-3")
    assert "the claim needs 9 CPUs" in refused.refused
    assert [*dra.low] == ["ns/a"]
    reported.ledger.registered("")
    before = path.stat().st_mtime_ns
    reported.reports.step()
    assert dra_view.read(str(path)).registration == ""
    assert path.stat().st_mtime_ns != before
    before = path.stat().st_mtime_ns
    reported.reports.step()
    assert path.stat().st_mtime_ns == before, "it is written when something differs"
