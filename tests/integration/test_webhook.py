"""A real API server calls the webhook, which runs as a process with its own account."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.host import files
from tests.deploy.api import Api, RefusedError, Who
from tests.deploy.manifests import ROOT, SCHEDULER, kustomization, kustomized_folder, of_kind
from tests.fixtures.ports import free_port
from tests.integration import deployed, other_pods
from tests.integration.apiserver.certificates import Authority
from tests.integration.apiserver.server import ApiServer
from tests.integration.command import Command
from tests.waiting import eventually

Object = dict[str, Any]

ALICE = Who()
TOPOLET_SCHEDULER = Who(SCHEDULER)
KUBE_SCHEDULER = Who("system:kube-scheduler", "")
CALLER = "topolet-webhook-caller"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = "topolet-gpu-scheduler"
"""The name of the webhook and of the policy that it replaces. The server of these tests has no
binding of that policy."""
KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
PLAIN: Object = {"cpu": "1"}
GPU: Object = {"cpu": "1", "koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}


class Webhook(Command):
    """The webhook's process; its certificate is in `folder`."""

    def __init__(self, folder: Path, kubeconfig: Path, registrations: dict[str, Object]) -> None:
        """`registrations`: the manifests that name the webhook, by kind."""
        super().__init__("webhook", folder / "webhook.log", "webhook listens")
        self.folder = folder
        self.registrations = registrations
        self.authority = Authority(folder)
        self.authority.server("tls")
        self.callers = Authority(folder / "callers")
        self.callers.client(CALLER)
        self.port = free_port()
        self._kubeconfig = kubeconfig

    def start(self, *flags: str) -> None:
        """Returns when it listens."""
        self.run(
            f"--https=127.0.0.1:{self.port}",
            f"--tls-dir={self.folder}",
            f"--client-ca-file={self.callers.folder / 'ca.crt'}",
            f"--client-names={CALLER}",
            f"--kubeconfig={self._kubeconfig}",
            *flags,
        )


class Cluster:
    """Two namespaces, one with the label, each with a pod with a GPU and a pod without."""

    def __init__(self, api: Api, webhook: Webhook) -> None:
        self.api = api
        self.webhook = webhook

    def bind(
        self, name: str, who: Who, namespace: str = "hooked", *, old: bool = False, dry: bool = True
    ) -> Object:
        """`old`: at the older path, which accepted Bindings before each pod had its own."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
        }
        place = "bindings" if old else f"pods/{name}/binding"
        path = f"/api/v1/namespaces/{namespace}/{place}" + ("?dryRun=All" if dry else "")
        return self.api.request("POST", path, body, who)

    def scheduler_of(
        self, limits: Object, namespace: str = "hooked", who: Who = ALICE, **spec: Any
    ) -> str:
        """Creates a pod in a dry run; the name of its scheduler."""
        body = pod("new", namespace, limits)
        body["spec"] |= spec
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        return str(self.api.request("POST", path, body, who)["spec"]["schedulerName"])

    def refusal(self, name: str, who: Who) -> str:
        """The reason why a Binding is refused; empty if it is allowed."""
        try:
            self.bind(name, who)
        except RefusedError as refused:
            return str(refused)
        return ""


def pod(name: str, namespace: str, limits: Object) -> Object:
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }


def configuration(webhook: Webhook, kind: str = KINDS[0]) -> Object:
    """The manifest, with a URL instead of the Service, which does not exist here."""
    made = json.loads(json.dumps(webhook.registrations[kind]))
    (webhook_entry,) = made["webhooks"]
    webhook_entry["clientConfig"] = {
        "url": f"https://127.0.0.1:{webhook.port}{webhook_entry['clientConfig']['service']['path']}",
        "caBundle": webhook.authority.bundle(),
    }
    return made  # type: ignore[no-any-return]


@contextlib.contextmanager
def with_client_certificate(apiserver: ApiServer, webhook: Webhook) -> Iterator[None]:
    """The API server uses the client certificate of CALLER for webhooks, as docs/webhook.md
    describes; only the names of the files and of the webhook's host differ."""
    page = (ROOT / "docs" / "webhook.md").read_text()
    blocks = re.findall(
        r"^```yaml\n(apiVersion: (?:apiserver|v1\n# kubeconfig).*?)```$", page, re.M | re.S
    )
    admission, access = (yaml.safe_load(each) for each in blocks)
    folder = webhook.callers.folder
    (plugin,) = admission["plugins"]
    plugin["configuration"]["kubeConfigFile"] = str(folder / "kubeconfig")
    (user,) = access["users"]
    assert user["name"] == "topolet-webhook.topolet-system.svc"
    user["name"] = f"127.0.0.1:{webhook.port}"
    for each in ("client-certificate", "client-key"):
        suffix = "crt" if each == "client-certificate" else "key"
        user["user"][each] = str(folder / f"{CALLER}.{suffix}")
    local = {**user, "name": f"localhost:{webhook.port}"}
    access["users"] = [user, local]
    (folder / "kubeconfig").write_text(yaml.safe_dump(access))
    (folder / "admission.yaml").write_text(yaml.safe_dump(admission))
    apiserver.restart_server(f"--admission-control-config-file={folder / 'admission.yaml'}")
    try:
        yield
    finally:
        apiserver.restart_server()


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    api = deployed.administrator(apiserver, "webhook-deployer")
    folder = tmp_path_factory.mktemp("webhook")
    installed = kustomized_folder(
        kustomization(folder, "overlays/webhook", ("webhook-client-ca",)), folder
    )
    registrations = {each["kind"]: each for each in installed if each["kind"] in KINDS}
    others = [each for each in installed if each["kind"] not in KINDS]
    deployed.apply(api, deployed.served(apiserver, others))
    if deployed.serves_mutating_policies(apiserver):
        api.request("DELETE", f"{REGISTRATION}/mutatingadmissionpolicybindings/{MUTATING}")
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
    for name, label in (("hooked", {"topolet.io/gpu-scheduling": "enabled"}), ("unhooked", {})):
        api.namespace(name, **label)
        for title, limits in (("gpu", GPU), ("plain", PLAIN)):
            api.apply(pod(title, name, limits))
    config = folder / "kubeconfig"
    token = apiserver.token("topolet-system", "topolet-webhook")
    config.write_text(json.dumps(apiserver.kubeconfig(token)))
    (folder / "callers").mkdir()
    with (
        Webhook(folder, config, registrations) as webhook,
        with_client_certificate(apiserver, webhook),
    ):
        webhook.start()
        made = Cluster(api, webhook)
        for kind in KINDS:
            api.apply(configuration(webhook, kind))
        eventually("pods are changed", lambda: made.scheduler_of(GPU) == "topolet-scheduler")
        eventually("the webhook is called", lambda: "may not bind" in made.refusal("gpu", ALICE))
        eventually("the policy only audits", lambda: not made.refusal("plain", ALICE))
        yield made
        for kind in KINDS:
            (name,) = of_kind(kind)
            api.request("DELETE", f"{REGISTRATION}/{kind.lower()}s/{name}")
        deployed.remove_policies(apiserver)


@pytest.mark.parametrize("old", [False, True])
def test_a_pod_with_gpus_is_bound_by_configured_accounts_only(cluster: Cluster, old: bool) -> None:
    with pytest.raises(
        RefusedError,
        match=r"alice may not bind pod hooked/gpu, which requests koordinator\.sh/gpu-core, "
        r"koordinator\.sh/gpu-memory: only configured accounts may bind pods with GPUs",
    ) as refused:
        cluster.bind("gpu", ALICE, old=old)
    assert refused.value.code == 403
    assert cluster.bind("gpu", TOPOLET_SCHEDULER, old=old)


def test_the_kube_scheduler_of_the_cluster_binds_only_pods_without_gpus(cluster: Cluster) -> None:
    with pytest.raises(RefusedError, match="system:kube-scheduler may not bind pod hooked/gpu"):
        cluster.bind("gpu", KUBE_SCHEDULER)
    assert cluster.bind("plain", KUBE_SCHEDULER)


def test_other_pods_and_other_namespaces_are_not_affected(cluster: Cluster) -> None:
    assert cluster.bind("plain", ALICE)
    assert cluster.bind("gpu", ALICE, "unhooked")


def test_a_new_pod_with_gpus_gets_the_scheduler_where_the_namespace_opts_in(
    cluster: Cluster,
) -> None:
    assert cluster.scheduler_of(GPU) == "topolet-scheduler"
    assert cluster.scheduler_of({"nvidia.com/gpu": "1"}) == "topolet-scheduler"
    assert cluster.scheduler_of(PLAIN) == "default-scheduler"
    assert cluster.scheduler_of(GPU, "unhooked") == "default-scheduler"
    assert cluster.scheduler_of(GPU, schedulerName="special") == "special"
    assert (
        cluster.scheduler_of(GPU, who=TOPOLET_SCHEDULER, nodeName="node-1") == "default-scheduler"
    )


def _uses_the_new_certificate(cluster: Cluster, before: int) -> bool:
    message = cluster.refusal("gpu", ALICE)
    assert "may not bind" in message or "failed calling webhook" in message
    return "may not bind" in message and cluster.webhook.log().count("was replaced") > before


def test_the_documented_certificate_is_trusted(cluster: Cluster, tmp_path: Path) -> None:
    """With the name localhost, because the name of the Service does not resolve here."""
    page = (ROOT / "docs" / "webhook.md").read_text()
    found = re.search(r"^name=(\S+)\n(openssl (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert found is not None
    name, command = found.groups()
    service = of_kind("Service")["topolet-webhook"]["metadata"]
    assert name == f"{service['name']}.{service['namespace']}.svc"
    env = {**os.environ, "name": "localhost"}
    subprocess.run(command, shell=True, cwd=tmp_path, env=env, check=True, capture_output=True)
    webhook = cluster.webhook
    for file in ("tls.key", "tls.crt"):
        files.replace(str(webhook.folder / file), (tmp_path / file).read_bytes(), durable=False)
    before = webhook.log().count("was replaced")
    for kind in KINDS:
        webhook_entry = configuration(webhook, kind)
        (hook,) = webhook_entry["webhooks"]
        hook["clientConfig"]["url"] = hook["clientConfig"]["url"].replace("127.0.0.1", "localhost")
        hook["clientConfig"]["caBundle"] = base64.b64encode(
            (tmp_path / "tls.crt").read_bytes()
        ).decode()
        cluster.api.apply(webhook_entry)
    eventually(
        "the webhook uses the new certificate", lambda: _uses_the_new_certificate(cluster, before)
    )


@contextlib.contextmanager
def down(cluster: Cluster) -> Iterator[None]:
    assert cluster.webhook.end() == 0
    try:
        yield
    finally:
        cluster.webhook.start()


@contextlib.contextmanager
def slow(cluster: Cluster) -> Iterator[None]:
    """The port accepts connections, and never responds."""
    with down(cluster), socket.create_server(("127.0.0.1", cluster.webhook.port)):
        yield


@pytest.mark.parametrize("fault", [down, slow])
def test_a_failing_webhook_does_not_affect_requests_that_it_does_not_get(
    cluster: Cluster,
    apiserver: ApiServer,
    fault: Callable[[Cluster], contextlib.AbstractContextManager[None]],
) -> None:
    """Topolet's scheduler binds any pod, and other namespaces and requests are not affected."""
    api = deployed.administrator(apiserver, fault.__name__, other_pods.HANG_SECONDS)
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": other_pods.NODE}})
    with fault(cluster), other_pods.OtherPods(api, "unhooked") as others:
        eventually(
            "the webhook fails",
            lambda: "failed calling webhook" in cluster.refusal("gpu", ALICE),
        )
        others.wait_for_rounds(5)
        (webhook_entry,) = configuration(cluster.webhook)["webhooks"]
        assert others.median_seconds() < webhook_entry["timeoutSeconds"], (
            "no request waited for the webhook"
        )
        for name in ("gpu", "plain"):
            assert not cluster.refusal(name, TOPOLET_SCHEDULER)
        assert "failed calling webhook" in cluster.refusal("plain", ALICE), (
            "the webhook still fails"
        )
        assert cluster.bind("plain", ALICE, "unhooked")
        began = time.monotonic()
        assert cluster.scheduler_of(GPU) == "default-scheduler"
        assert time.monotonic() - began < other_pods.HANG_SECONDS
    eventually("the webhook works", lambda: not cluster.refusal("plain", ALICE))
    eventually("pods are changed", lambda: cluster.scheduler_of(GPU) == "topolet-scheduler")
