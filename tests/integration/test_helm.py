"""The chart on a real API server: installed, also over the manifests of kustomize, rolled back and
removed. Controllers of Kubernetes run, but no pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.manifests import kustomized
from tests.integration import deployed, helmcluster
from tests.integration.helmcluster import (
    DEVICES,
    NAMESPACE,
    REBINDS,
    TOPOLOGIES,
    Cluster,
    name_of,
)
from tests.waiting import eventually

Object = dict[str, Any]

EVERYTHING: Object = {
    "scheduler": {"enabled": True, "evict": True},
    "webhook": {"enabled": True},
    "pools": [
        {"name": "cards", "nodeSelector": {"nvidia.com/gpu.present": "true"}, "gpu": True},
        {"mode": "nri"},
    ],
}

pytestmark = pytest.mark.timeout(900)


def is_release_secret(name: str) -> bool:
    """Whether Helm stores a release in this object."""
    return name.startswith(f"Secret/{NAMESPACE}/sh.helm.release.")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with helmcluster.running(tmp_path_factory.mktemp("helm")) as it:
        yield it


@pytest.fixture
def cluster(server: Cluster) -> Iterator[Cluster]:
    """A cluster without a release and its CRDs. The namespace exists: Helm never removes it."""
    server.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    helmcluster.wait_for_account(server.api, NAMESPACE)
    yield server
    server.uninstall("--ignore-not-found")
    server.delete_definitions()


def test_a_release_is_installed_rolled_back_and_removed_without_a_trace(cluster: Cluster) -> None:
    check_install_and_removal(cluster)


@pytest.mark.long
def test_helm_3_does_the_same(cluster: Cluster) -> None:
    folder, program = cluster.server.folder, chart.helm("helm3")
    helm3 = Cluster(cluster.server, cluster.api, program)
    assert "0 chart(s) failed" in helm3.helm("lint", str(chart.CHART), values=EVERYTHING)
    values = {**EVERYTHING, "certificates": {"source": "secret"}}
    # The versions order unknown kinds differently.
    one, other = (chart.rendered(folder, values, program=each) for each in (program, None))
    assert {name_of(each): each for each in one} == {name_of(each): each for each in other}
    check_install_and_removal(helm3)
    helm3.delete_definitions()
    check_take_over(helm3, "--take-ownership")


def check_install_and_removal(cluster: Cluster) -> None:
    """Installs, changes, rolls back and removes a release."""
    before = cluster.objects()
    cluster.install(EVERYTHING)
    eventually("the policies are in force", cluster.policies_refuse)
    installed = cluster.objects()
    new = {name for name in installed if name not in before}
    assert not [name for name in before if installed[name] != before[name]]
    rendered = {
        name_of(each)
        for each in chart.rendered(cluster.server.folder, EVERYTHING)
        if "helm.sh/hook" not in each["metadata"].get("annotations", {})
    }
    missing = {name.partition("/")[0] for name in rendered - new}
    if deployed.serves_mutating_policies(cluster.server):
        assert missing == set()
    else:
        assert missing == {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    cluster.install({"policies": {"mode": "warn"}})
    eventually("the policies warn", lambda: not cluster.policies_refuse())
    fewer = cluster.objects()
    assert f"Deployment/{NAMESPACE}/topolet-scheduler" not in fewer
    assert f"CustomResourceDefinition//{REBINDS}" in fewer
    cluster.helm("rollback", "topolet", "1")
    eventually("the policies are in force again", cluster.policies_refuse)
    again = cluster.objects()
    assert {each: again[each] for each in new if not is_release_secret(each)} == {
        each: installed[each] for each in new if not is_release_secret(each)
    }
    cluster.uninstall()
    left = {name for name in cluster.objects() if name not in before}
    kept = {f"CustomResourceDefinition//{each}" for each in (DEVICES, TOPOLOGIES, REBINDS)}
    assert left == kept
    eventually("no policy is left", lambda: not cluster.policies_refuse())


def test_an_upgrade_keeps_the_certificates(cluster: Cluster) -> None:
    values = {"scheduler": {"enabled": True}, "webhook": {"enabled": True}}
    secrets = [f"Secret/{NAMESPACE}/topolet-{each}-tls" for each in ("scheduler", "webhook")]
    cluster.install(values)
    first = cluster.objects()
    cluster.install(values)
    second = cluster.objects()
    assert [second[each] for each in secrets] == [first[each] for each in secrets]
    past = {"metadata": {"annotations": {"topolet.io/renew-after": "2020-01-01"}}}
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/topolet-webhook-tls"
    cluster.api.merge(path, past)
    cluster.install(values, "--force-conflicts")
    third = cluster.objects()
    assert third[secrets[0]] == first[secrets[0]]
    assert third[secrets[1]]["data"] != first[secrets[1]]["data"]
    hooks = third["ValidatingWebhookConfiguration//topolet-gpu-binders"]["webhooks"]
    assert hooks[0]["clientConfig"]["caBundle"] == third[secrets[1]]["data"]["ca.crt"]


def test_the_manifests_of_kustomize_are_taken_over(cluster: Cluster) -> None:
    check_take_over(cluster, "--take-ownership", "--force-conflicts")


def check_take_over(cluster: Cluster, *flags: str) -> None:
    """All objects of the manifests that the chart has become the release's; no others are left, and
    the CRDs do not change."""
    folder = cluster.server.folder
    overlays = (kustomized(each, folder) for each in ("scheduler", "webhook"))
    bodies = {name_of(body): body for overlay in overlays for body in overlay}
    applied = deployed.served(cluster.server, bodies.values())
    deployed.apply(cluster.api, applied)
    eventually("the policies are in force", cluster.policies_refuse)
    definitions = [cluster.definition(each) for each in (DEVICES, TOPOLOGIES, REBINDS)]
    values = {"scheduler": {"enabled": True}, "webhook": {"enabled": True}}
    assert cluster.attempt(
        *("upgrade", "--install", "topolet", cluster.chart), values=values
    ).returncode, "without the flags it takes over nothing"
    cluster.install(values, *flags)
    assert cluster.policies_refuse()
    found = cluster.objects()
    chart_names = {name_of(each) for each in chart.rendered(cluster.server.folder, values)}
    other_names = {name_of(each) for each in applied} - chart_names
    assert other_names == {f"Namespace//{NAMESPACE}"}
    for name in chart_names & set(found):
        if not name.startswith("CustomResourceDefinition"):
            labels = found[name]["metadata"]["labels"]
            assert labels["app.kubernetes.io/managed-by"] == "Helm", name
    again = [cluster.definition(each) for each in (DEVICES, TOPOLOGIES, REBINDS)]
    assert [each["spec"] for each in again] == [each["spec"] for each in definitions]
    cluster.uninstall()
    left = {name for name in cluster.objects() if name.rpartition("/")[2].startswith("topolet")}
    assert left == {f"Namespace//{NAMESPACE}"}
    assert f"CustomResourceDefinition//{DEVICES}" in cluster.objects()


def definition(name: str) -> Object:
    """A CRD of the chart, as another release of Helm owns it."""
    file = chart.CHART / "files" / "crds" / f"{name.partition('.')[0]}.yaml"
    body: Object = yaml.safe_load(file.read_text())
    body["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    body["metadata"].setdefault("annotations", {}).update(
        {"meta.helm.sh/release-name": "koordinator", "meta.helm.sh/release-namespace": "default"}
    )
    return body


def test_a_definition_of_another_owner_is_left_and_checked(cluster: Cluster) -> None:
    foreign = definition(DEVICES)
    (version,) = foreign["spec"]["versions"]
    device = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["devices"]
    del device["items"]["properties"]["conditions"]
    deployed.apply(cluster.api, [foreign])
    before = cluster.definition(DEVICES)
    output = " ".join(cluster.install({}).split())
    assert f"{DEVICES} exists, and its owner is koordinator: it is left as it is." in output
    assert "drops them: .spec.devices[].conditions" in output
    assert TOPOLOGIES not in output
    after = cluster.definition(DEVICES)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    cluster.uninstall()
    assert cluster.definition(DEVICES)["spec"] == before["spec"]


def test_a_definition_that_serves_no_version_of_ours_is_named(cluster: Cluster) -> None:
    foreign = definition(DEVICES)
    foreign["spec"]["versions"][0]["name"] = "v2"
    deployed.apply(cluster.api, [foreign])
    ended = cluster.attempt("install", "topolet", cluster.chart, values={})
    assert ended.returncode
    assert f"{DEVICES}: it exists, its owner is koordinator, and it serves none" in ended.stderr
    assert json.loads(cluster.kubectl("get", "daemonsets", "-A", "-o", "json"))["items"] == []
