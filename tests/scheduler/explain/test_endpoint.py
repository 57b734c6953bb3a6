"""The answer of the scheduler's port, and what it does not tell."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent.http.peers import NodeAddresses
from agent.http.requests import BadRequestError
from agent.http.server import HttpServer
from agent.kube.auth import FileAccess
from agent.kube.errors import KubeError, RejectedError, ServerError
from agent.kube.transport import Transport
from agent.model.apiobjects import GROUP_ANNOTATION
from agent.model.devices.holding import GPU_CHECKPOINTS
from agent.model.explanation import Explanation
from agent.model.objects import LabelSelector
from agent.model.settings.scheduler import SchedulerSettings
from agent.scheduler import process
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.preemption.disruption_budgets import Budget
from agent.view import explanation as words
from tests.fixtures.fleet import CARDS, SMALL, carder, owner, plain
from tests.scheduler.explain.scenes import SCHEDULER, Scene

SECRET = "hidden"
HOLDER = "pod_0b0a2f0e"


@pytest.fixture
def scene() -> Scene:
    """A node full of another user's pods, which a budget protects."""
    it = Scene(a=SMALL)
    for number in range(4):
        body = owner(8, 4).pod(f"{SECRET}-{number}", node="a")
        body["metadata"]["namespace"] = SECRET
        body["metadata"]["labels"]["app"] = SECRET
        body["metadata"]["annotations"] |= {
            "scheduling.koordinator.sh/resource-status": json.dumps(
                {"cpuset": f"{number * 8}-{number * 8 + 7}"}
            ),
            GROUP_ANNOTATION: f"{SECRET}/5",
        }
        body["spec"]["priority"] = 1
        it.report_pod(body)
    selector = LabelSelector({"app": SECRET})
    it.add_budget(SECRET, SECRET, Budget(SECRET, SECRET, selector, 0, uid=f"uid-{SECRET}"))
    return it


def served(scene: Scene, unavailable: str | None = None, lease_holder: str = HOLDER) -> HttpServer:
    explainer = Explainer(scene.cluster, SCHEDULER, budgets=scene.budgets)
    routes = {endpoint.PATH: endpoint.route(explainer, lambda: unavailable, lease_holder)}
    server = HttpServer("127.0.0.1:0", routes, process.PAGE_LIMITS, NodeAddresses(frozenset()))
    server.start()
    return server


@pytest.fixture
def client(scene: Scene) -> Iterator[Transport]:
    """Reaches the port in the place of the API server's proxy."""
    server = served(scene)
    yield Transport(FileAccess(f"http://127.0.0.1:{server.port}"))
    server.close()


def ask(
    transport: Transport, *pods: Any, drained: tuple[str, ...] = (), lease_holder: str = HOLDER
) -> bytes:
    body = {"pods": list(pods), "drained": list(drained), "leaseHolder": lease_holder}
    return transport.create(endpoint.PATH, body)


def test_no_answer_names_other_pods(client: Transport) -> None:
    found = ask(client, owner(8, 4).pod("p"))
    (told,) = endpoint.decode_answer(found).explanations
    assert told.nodes[0].eviction is not None
    assert told.nodes[0].eviction.protected == 1
    assert SECRET.encode() not in found


def test_a_reference_leads_a_reader_of_the_object_to_its_name(client: Transport) -> None:
    """Nothing else: the references of two answers are different."""
    first, second = (endpoint.decode_answer(ask(client, owner(16, 4).pod("p"))) for _ in range(2))
    uids = {f"uid-{SECRET}-{number}": f"{SECRET}/{SECRET}-{number}" for number in range(4)}
    (blind,) = endpoint.named(first, {"uid-p": "default/p"})
    (reader,) = endpoint.named(first, uids | {f"uid-{SECRET}": f"{SECRET}/{SECRET}"})
    hidden, shown = blind.nodes[0].eviction, reader.nodes[0].eviction
    assert hidden is not None
    assert shown is not None
    assert (hidden.pods, hidden.protecting, hidden.victims, hidden.budgets) == (2, 1, (), ())
    assert len(set(shown.victims)) == 2
    assert set(shown.victims) < set(uids.values())
    assert shown.budgets == (f"{SECRET}/{SECRET}",)
    assert "change PodDisruptionBudget: spec" in words.draw(blind)
    assert f"change PodDisruptionBudget {SECRET}/{SECRET}: spec" in words.draw(reader)
    (of_other,) = endpoint.named(endpoint.Answer(second.explanations, first.salt), uids)
    assert of_other.nodes[0].eviction is not None
    assert of_other.nodes[0].eviction.victims == ()


def test_a_victim_that_the_caller_may_not_read_is_counted(client: Transport) -> None:
    answer = endpoint.decode_answer(ask(client, owner(16, 4).pod("p")))
    (everything,) = endpoint.named(
        answer, {f"uid-{SECRET}-{number}": str(number) for number in range(4)}
    )
    assert everything.nodes[0].eviction is not None
    one, _ = everything.nodes[0].eviction.victims
    (told,) = endpoint.named(answer, {f"uid-{SECRET}-{one}": "shop/known"})
    said = "The eviction of 2 pods of lower priority would make room: shop/known, 1 other."
    assert said in " ".join(words.draw(told).split())


def test_a_pod_with_cards_of_a_plugin_is_named_for_its_readers() -> None:
    scene = Scene(a=CARDS)
    body = scene.objects["a"].devices("a")
    held = {"containerName": "c", "resourceName": "nvidia.com/gpu"}
    given = [
        {**held, "podUID": f"uid-plugged-{minor}", "deviceIDs": [f"a-GPU-{minor}"]}
        for minor in range(8)
    ]
    body["metadata"]["annotations"] = {GPU_CHECKPOINTS: json.dumps(given)}
    scene.devices(body)
    for minor in range(8):
        scene.run(plain("1", "1Gi"), f"plugged-{minor}", "a")
    server = served(scene)
    transport = Transport(FileAccess(f"http://127.0.0.1:{server.port}"))
    answer = endpoint.decode_answer(ask(transport, carder(1).pod("p")))
    server.close()
    (told,) = endpoint.named(answer, {"uid-plugged-3": "default/plugged-3"})
    (cause,) = (
        each
        for each in told.nodes[0].causes
        if each.resource == "gpu" and each.objects[0].field == "spec.schedulerName"
    )
    assert sorted(each.name for each in cause.objects) == ["", "a", "default/plugged-3"]
    assert cause.message.endswith(": gpu 0,1,2,3,4,5,6,7 (pods: 8)")


def test_a_group_of_other_pods_is_not_reported(client: Transport) -> None:
    """Whoever may read a member knows its uid."""
    stranger = owner(8, 4).pod("p")
    stranger["metadata"]["namespace"] = SECRET
    stranger["metadata"]["annotations"][GROUP_ANNOTATION] = f"{SECRET}/5"
    member = json.loads(json.dumps(stranger))
    member["metadata"]["uid"] = f"uid-{SECRET}-0"
    (told,) = endpoint.decode_answer(ask(client, stranger)).explanations
    assert told.group is not None
    assert (told.group.placed, told.group.node) == (0, "")
    (told,) = endpoint.decode_answer(ask(client, member)).explanations
    assert told.group is not None
    assert (told.group.placed, told.group.node) == (4, "a")


def test_nodes_that_do_not_exist_cannot_be_drained(client: Transport) -> None:
    with pytest.raises(RejectedError, match="drained: node z does not exist"):
        ask(client, owner(8, 4).pod("p"), drained=("z",))
    ask(client, owner(8, 4).pod("p"), drained=("a",))


def test_a_process_that_does_not_lead_explains_nothing(scene: Scene) -> None:
    server = served(scene, "another replica leads")
    with pytest.raises(ServerError, match="another replica leads"):
        ask(Transport(FileAccess(f"http://127.0.0.1:{server.port}")), owner(8, 4).pod("p"))
    server.close()


@pytest.mark.parametrize("named", ["", "pod", HOLDER[:-1], f"{HOLDER}0", "\u00e9"])
def test_a_neighbour_who_may_not_read_the_lease_gets_no_explanation(
    client: Transport, named: str
) -> None:
    """The answer has the names of nodes and what is free on them."""
    with pytest.raises(KubeError, match="holder of the leader's Lease"):
        ask(client, owner(8, 4).pod("p"), lease_holder=named)


def test_without_a_lease_all_callers_are_answered(scene: Scene) -> None:
    server = served(scene, lease_holder="")
    ask(Transport(FileAccess(f"http://127.0.0.1:{server.port}")), owner(8, 4).pod("p"))
    server.close()


def test_one_explanation_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> tuple[Explanation, ...]:
        entered.set()
        assert leave.wait(30)
        return ()

    monkeypatch.setattr(Explainer, "explain_all", slow)
    server = served(scene)
    transport = Transport(FileAccess(f"http://127.0.0.1:{server.port}"))
    first = threading.Thread(target=ask, args=(transport, owner(8, 4).pod("p")))
    first.start()
    assert entered.wait(30)
    with pytest.raises(ServerError, match="another explanation is being made"):
        ask(transport, owner(8, 4).pod("p"))
    leave.set()
    first.join()
    ask(transport, owner(8, 4).pod("p"))
    server.close()


@pytest.mark.parametrize(
    "body",
    [
        {"pods": []},
        {"pods": [owner(8, 4).pod("p")] * (endpoint.MAX_PODS + 1)},
        {"pods": [owner(8, 4).pod("p")], "drained": ["n"] * (endpoint.MAX_DRAINED + 1)},
        {"pods": [owner(8, 4).pod("p")], "drained": ["n" * 300]},
        {"pods": [{"metadata": {"name": "p"}}]},
        {"pods": 5},
    ],
)
def test_a_request_beyond_the_bounds_is_refused(body: Any) -> None:
    with pytest.raises(BadRequestError, match="explain: "):
        endpoint.decode_request(json.dumps(body).encode())


def test_a_body_that_is_too_long_is_refused(client: Transport) -> None:
    host, _, port = client.access.server.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    headers = {"Content-Type": "application/json", "Content-Length": str(endpoint.BODY_BYTES + 1)}
    connection.request("POST", endpoint.PATH, headers=headers)
    assert connection.getresponse().status == 413


@pytest.mark.parametrize("on", [True, False])
def test_the_path_is_on_the_port_for_pages_only(scene: Scene, on: bool) -> None:
    explain = endpoint.route(Explainer(scene.cluster, SCHEDULER), lambda: None, "")
    settings = SchedulerSettings(
        extender_address="127.0.0.1:0",
        scheduler_http="127.0.0.1:0",
        tls_certificate_file="",
        explain=on,
    )
    routes = dict.fromkeys(("/healthz", "/readyz", "/metrics"), explain)
    of_verbs, of_pages = process.servers(settings, routes, {endpoint.PATH: explain})
    statuses = []
    for server in (of_verbs, of_pages):
        server.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", endpoint.PATH)
        statuses.append(connection.getresponse().status)
        connection.close()
        server.close()
    assert statuses == [404, 405 if on else 404]
