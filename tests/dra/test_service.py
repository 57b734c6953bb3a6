"""The kubelet's calls to the driver."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from agent.allocate.dra.preparation import PreparationError
from agent.dra.service import MAX_CLAIMS, DraService
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from agent.proto import dra_pb2 as pb
from agent.rpc.grpc import RpcError


class StoredClaims:
    """Gives each claim the CPU 1; those named `bad` get nothing."""

    def __init__(self) -> None:
        self.uids: set[str] = set()
        self.waited: list[float] = []

    def prepare(self, namespace: str, name: str, uid: str, waited_seconds: float) -> PreparedClaim:
        self.waited.append(waited_seconds)
        if name == "slow":
            time.sleep(0.01)
        if name == "bad":
            raise PreparationError(f"ResourceClaim {namespace}/{name}: nothing is free")
        self.uids.add(uid)
        groups = (
            PreparedGroup("a/first", "n1", "numa-node-0", "1", share="s-1"),
            PreparedGroup("b", "n1", "numa-node-1", "9"),
        )
        return PreparedClaim(uid, namespace, name, groups)

    def unprepare(self, uid: str) -> None:
        if uid == "stuck":
            raise PreparationError("the disk is full")
        self.uids.discard(uid)

    def registered(self, problem: str) -> None:
        self.problem = problem

    def devices(self) -> Iterable[tuple[str, str, str]]:
        return [("n1", "numa-node-0", ""), ("n1", "numa-node-1", "CPU 9 is offline")]


@pytest.fixture
def claims() -> StoredClaims:
    return StoredClaims()


@pytest.fixture
def service(claims: StoredClaims) -> DraService:
    return DraService(claims, "/plugins/x.sock")


def request(*names: str) -> bytes:
    claims = [pb.Claim(namespace="ns", name=name, uid=f"u-{name}") for name in names]
    return pb.PrepareRequest(claims=claims).SerializeToString()


def test_each_claim_has_its_own_answer(service: DraService, claims: StoredClaims) -> None:
    answer = pb.PrepareResponse.FromString(service.prepare(request("good", "bad")))
    assert answer.claims["u-bad"].error == "ResourceClaim ns/bad: nothing is free"
    assert claims.uids == {"u-good"}
    first, second = answer.claims["u-good"].devices
    assert first == pb.Device(
        request_names=["a"],
        pool_name="n1",
        device_name="numa-node-0",
        cdi_device_ids=["cpu.topolet.io/claim=u-good_a"],
        share_id="s-1",
    )
    assert not second.HasField("share_id")


def test_claims_of_one_pod_wait_together(service: DraService, claims: StoredClaims) -> None:
    """The kubelet gives 45 seconds to all of them."""
    service.prepare(request("slow", "slow", "good"))
    first, second, third = claims.waited
    assert first < second
    assert (second >= 0.01, third >= 0.02) == (True, True)


def test_a_claim_is_unprepared(service: DraService, claims: StoredClaims) -> None:
    service.prepare(request("good"))
    stuck = pb.Claim(namespace="ns", name="x", uid="stuck")
    message = pb.PrepareRequest.FromString(request("good", "unknown"))
    message.claims.append(stuck)
    answer = pb.UnprepareResponse.FromString(service.unprepare(message.SerializeToString()))
    errors = {uid: each.error for uid, each in answer.claims.items()}
    assert errors == {"u-good": "", "u-unknown": "", "stuck": "the disk is full"}
    assert claims.uids == set()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\xff", "the request is not a PrepareRequest"),
        (
            pb.PrepareRequest(claims=[pb.Claim(name="c")]).SerializeToString(),
            "'c': a name is missing",
        ),
        (
            pb.PrepareRequest(
                claims=[pb.Claim(namespace="ns", name="c", uid="../../x")]
            ).SerializeToString(),
            "'ns'/'c': a name is missing, or the uid",
        ),
        (request(*("c" for _ in range(MAX_CLAIMS + 1))), "there are more than 1024"),
    ],
)
def test_a_malformed_call_is_an_error(service: DraService, message: bytes, text: str) -> None:
    for call in (service.prepare, service.unprepare):
        with pytest.raises(RpcError, match=text):
            call(message)


def test_the_kubelet_registers_the_driver(claims: StoredClaims, service: DraService) -> None:
    info = pb.PluginInfo.FromString(service.registration(b""))
    assert (info.type, info.name, info.endpoint) == (
        "DRAPlugin",
        "cpu.topolet.io",
        "/plugins/x.sock",
    )
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
    refused = pb.RegistrationStatus(error="no such version")
    service.notified(refused.SerializeToString())
    assert claims.problem == "no such version"
    service.notified(pb.RegistrationStatus(plugin_registered=True).SerializeToString())
    assert claims.problem == ""


def test_health_is_reported_until_the_driver_ends(service: DraService) -> None:
    reports = service.health(lambda: True)
    first = pb.WatchResourcesResponse.FromString(next(reports))
    told = [(each.device.device_name, each.health, each.message) for each in first.devices]
    assert told == [
        ("numa-node-0", pb.HEALTHY, ""),
        ("numa-node-1", pb.UNHEALTHY, "CPU 9 is offline"),
    ]
    service.close()
    assert list(reports) == []
    assert list(DraService(StoredClaims(), "").health(lambda: False)) == []
