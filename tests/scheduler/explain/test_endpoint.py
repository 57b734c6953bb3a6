"""The responses of the explain endpoint, and the information that they must not contain."""

from __future__ import annotations

import contextlib
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
from agent.kube.errors import KubeError, NotFoundError, RejectedError, ServerError
from agent.kube.transport import Transport
from agent.model.explanation import Explanation
from agent.model.objects import LabelSelector
from agent.model.settings.scheduler import SchedulerSettings
from agent.scheduler import process
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.preemption.disruption_budgets import Budget
from agent.view import explanation as view
from tests.fixtures.fleet import CARDS, SMALL, gpu_pod, guaranteed_pod, owner
from tests.kube.fake_api_server import Server, reply, status
from tests.kube.fake_api_server import server as server
from tests.scheduler.explain.scenes import SCHEDULER, Scene

SECRET = "hidden"
HOLDER = "pod_0b0a2f0e"


@pytest.fixture
def scene() -> Scene:
    """A node full of another user's pods, which a PodDisruptionBudget protects."""
    scene = Scene(a=SMALL)
    for number in range(4):
        cpus = f"{number * 8}-{number * 8 + 7}"
        body = owner(8, 4).pod(f"{SECRET}-{number}", node="a", cpus=cpus, group=f"{SECRET}/5")
        body["metadata"]["namespace"] = SECRET
        body["metadata"]["labels"]["app"] = SECRET
        body["spec"]["priority"] = 1
        scene.report_pod(body)
    selector = LabelSelector({"app": SECRET})
    scene.add_budget(SECRET, SECRET, Budget(SECRET, SECRET, selector, 0, uid=f"uid-{SECRET}"))
    return scene


@contextlib.contextmanager
def serving(
    scene: Scene, unavailable: str | None = None, lease_holder: str = HOLDER
) -> Iterator[Transport]:
    """A client that sends requests as the API server's proxy does."""
    explainer = Explainer(scene.cluster, SCHEDULER, budgets=scene.budgets)
    routes = {endpoint.PATH: endpoint.route(explainer, lambda: unavailable, lease_holder)}
    server = HttpServer("127.0.0.1:0", routes, process.PAGE_LIMITS, NodeAddresses(frozenset()))
    server.start()
    yield Transport(FileAccess(f"http://127.0.0.1:{server.port}"))
    server.close()


@pytest.fixture
def client(scene: Scene) -> Iterator[Transport]:
    with serving(scene) as it:
        yield it


def explain(
    transport: Transport, *pods: Any, drained: tuple[str, ...] = (), lease_holder: str = HOLDER
) -> bytes:
    body = {"pods": list(pods), "drained": list(drained), "leaseHolder": lease_holder}
    return transport.create(endpoint.PATH, body)


def test_no_answer_names_other_pods(client: Transport) -> None:
    response = explain(client, owner(8, 4).pod("p"))
    (explanation,) = endpoint.decode_answer(response).explanations
    assert explanation.nodes[0].eviction is not None
    assert explanation.nodes[0].eviction.protected == 1
    assert SECRET.encode() not in response


def test_a_reference_has_a_name_only_for_a_caller_who_knows_the_uid(client: Transport) -> None:
    """The references in two responses are different."""
    first, second = (
        endpoint.decode_answer(explain(client, owner(16, 4).pod("p"))) for _ in range(2)
    )
    uids = {f"uid-{SECRET}-{number}": f"{SECRET}/{SECRET}-{number}" for number in range(4)}
    (without_uids,) = endpoint.named(first, {"uid-p": "default/p"})
    (with_uids,) = endpoint.named(first, uids | {f"uid-{SECRET}": f"{SECRET}/{SECRET}"})
    hidden, shown = without_uids.nodes[0].eviction, with_uids.nodes[0].eviction
    assert hidden is not None
    assert shown is not None
    assert (hidden.pods, hidden.protecting, hidden.victims, hidden.budgets) == (2, 1, (), ())
    assert len(set(shown.victims)) == 2
    assert set(shown.victims) < set(uids.values())
    assert shown.budgets == (f"{SECRET}/{SECRET}",)
    assert "change PodDisruptionBudget: spec" in view.draw(without_uids)
    assert f"change PodDisruptionBudget {SECRET}/{SECRET}: spec" in view.draw(with_uids)
    (wrong_salt,) = endpoint.named(endpoint.Answer(second.explanations, first.salt), uids)
    assert wrong_salt.nodes[0].eviction is not None
    assert wrong_salt.nodes[0].eviction.victims == ()


def test_victims_that_the_caller_may_not_read_are_counted(client: Transport) -> None:
    answer = endpoint.decode_answer(explain(client, owner(16, 4).pod("p")))
    (with_pod_uids,) = endpoint.named(
        answer, {f"uid-{SECRET}-{number}": str(number) for number in range(4)}
    )
    assert with_pod_uids.nodes[0].eviction is not None
    one, _ = with_pod_uids.nodes[0].eviction.victims
    (explanation,) = endpoint.named(answer, {f"uid-{SECRET}-{one}": "shop/known"})
    text = "The eviction of 2 pods of lower priority would make room: shop/known, 1 other."
    assert text in " ".join(view.draw(explanation).split())


def test_a_pod_with_gpus_of_a_device_plugin_is_named_for_callers_who_know_its_uid() -> None:
    scene = Scene(a=CARDS)
    scene.plug_gpus("a", *(f"uid-plugged-{minor}" for minor in range(8)))
    for minor in range(8):
        scene.run(guaranteed_pod("1", "1Gi"), f"plugged-{minor}", "a")
    with serving(scene) as client:
        answer = endpoint.decode_answer(explain(client, gpu_pod(1).pod("p")))
    (explanation,) = endpoint.named(answer, {"uid-plugged-3": "default/plugged-3"})
    (cause,) = (
        each
        for each in explanation.nodes[0].causes
        if each.resource == "gpu" and each.objects[0].field == "spec.schedulerName"
    )
    assert sorted(each.name for each in cause.objects) == ["", "a", "default/plugged-3"]
    assert cause.message.endswith(": gpu 0,1,2,3,4,5,6,7 (pods: 8)")


def test_the_state_of_a_group_is_hidden_from_callers_who_know_no_member(client: Transport) -> None:
    """A caller who may read a member knows its uid."""
    other_pod = owner(8, 4).pod("p", group=f"{SECRET}/5")
    member = owner(8, 4).pod("p", uid=f"uid-{SECRET}-0", group=f"{SECRET}/5")
    for body in (other_pod, member):
        body["metadata"]["namespace"] = SECRET
    (explanation,) = endpoint.decode_answer(explain(client, other_pod)).explanations
    assert explanation.group is not None
    assert (explanation.group.placed, explanation.group.node) == (0, "")
    (explanation,) = endpoint.decode_answer(explain(client, member)).explanations
    assert explanation.group is not None
    assert (explanation.group.placed, explanation.group.node) == (4, "a")


def test_nodes_that_do_not_exist_cannot_be_drained(client: Transport) -> None:
    with pytest.raises(RejectedError, match="drained: node z does not exist"):
        explain(client, owner(8, 4).pod("p"), drained=("z",))
    explain(client, owner(8, 4).pod("p"), drained=("a",))


def test_a_process_that_is_not_the_leader_explains_nothing(scene: Scene) -> None:
    with (
        serving(scene, "another replica leads") as client,
        pytest.raises(ServerError, match="another replica leads"),
    ):
        explain(client, owner(8, 4).pod("p"))


@pytest.mark.parametrize("named", ["", "pod", HOLDER[:-1], f"{HOLDER}0", "\u00e9"])
def test_a_caller_who_may_not_read_the_lease_gets_no_explanation(
    client: Transport, named: str
) -> None:
    """The response contains the names of nodes and their free resources."""
    with pytest.raises(KubeError, match="holder of the leader's Lease"):
        explain(client, owner(8, 4).pod("p"), lease_holder=named)


def test_without_a_lease_all_callers_get_an_explanation(scene: Scene) -> None:
    with serving(scene, lease_holder="") as client:
        explain(client, owner(8, 4).pod("p"))


def test_only_one_explanation_is_made_at_a_time(
    client: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> tuple[Explanation, ...]:
        entered.set()
        assert leave.wait(30)
        return ()

    monkeypatch.setattr(Explainer, "explain_all", slow)
    first = threading.Thread(target=explain, args=(client, owner(8, 4).pod("p")))
    first.start()
    assert entered.wait(30)
    with pytest.raises(ServerError, match="another explanation is being made"):
        explain(client, owner(8, 4).pod("p"))
    leave.set()
    first.join()
    explain(client, owner(8, 4).pod("p"))


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
def test_a_request_beyond_the_limits_is_rejected(body: Any) -> None:
    with pytest.raises(BadRequestError, match="explain: "):
        endpoint.decode_request(json.dumps(body).encode())


def test_the_path_is_served_only_on_the_port_for_pages(scene: Scene) -> None:
    route = endpoint.route(Explainer(scene.cluster, SCHEDULER), lambda: None, "")
    settings = SchedulerSettings(https="127.0.0.1:0", http="127.0.0.1:0", tls_dir="")
    routes = dict.fromkeys(("/healthz", "/readyz", "/metrics"), route)
    extender_port, pages_port = process.servers(settings, routes, {endpoint.PATH: route})
    statuses = []
    for port in (extender_port, pages_port):
        port.start()
        connection = http.client.HTTPConnection("127.0.0.1", port.port)
        connection.request("GET", endpoint.PATH)
        statuses.append(connection.getresponse().status)
        connection.close()
        port.close()
    assert statuses == [404, 405]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            'services "topolet-scheduler" not found',
            "Service ns/topolet-scheduler does not exist: ei",
        ),
        ("no such path; the paths are /healthz", "404 no such path"),
    ],
)
def test_a_missing_service_is_named_as_a_missing_scheduler(
    server: Server, transport: Transport, message: str, shown: str
) -> None:
    server.answer = lambda _, connection, request: reply(
        connection, 404, status(404, message=message)
    )
    with pytest.raises(NotFoundError, match=shown):
        endpoint.request_explanations(transport, "ns", [], [])
