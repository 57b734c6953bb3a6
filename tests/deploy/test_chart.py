"""The objects that the chart renders, and that the manifests for kustomize come from the chart."""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.cli import uninstall_nodes
from agent.cli.config import OWN_OPTIONS
from agent.cli.options import plain
from agent.install.nodes import NodePools
from agent.model.dra.names import DRIVER
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings, InstallSettings, UninstallSettings
from deploy import schema
from tests.deploy.chart import CHART, NAMESPACE, attempt, helm, refused, rendered
from tests.deploy.manifests import (
    DEPLOY,
    SCHEDULER,
    Object,
    arguments,
    container_of,
    kustomization,
    kustomized,
    kustomized_folder,
    of_kind,
    pod_spec,
)

SECRET = {
    "certificates": {"source": "secret"},
    "namespace": {"create": True},
    "uninstall": {"enabled": False},
}
"""As kustomize has it: certificates are made by hand, the namespace is an object, and nothing runs
before a removal."""
GPUS = {"name": "nvidia", "nodeSelector": {"nvidia.com/gpu.present": "true"}, "gpu": True}
POOLS = {
    "reconcile": [{}],
    "proxy": [{"mode": "proxy"}],
    "nri": [{"mode": "nri"}],
    "nvidia": [GPUS, {}],
    "cri-o": [{"mode": "proxy", "runtime": "cri-o"}],
}
KUBE_SCHEDULER = {"kubeScheduler": {"image": {"tag": "v1.36.3"}}}
ALL_OVERLAYS: dict[str, Object] = {
    **{name: {"pools": pools} for name, pools in POOLS.items()},
    "scheduler": {"scheduler": {"enabled": True, **KUBE_SCHEDULER}},
    "scheduler-evict": {"scheduler": {"enabled": True, "evict": True, **KUBE_SCHEDULER}},
    "webhook": {"webhook": {"enabled": True}},
}


def by_name(bodies: list[Object]) -> dict[tuple[str, str], Any]:
    """The objects with sorted lists, without those of `helm test`."""
    return {
        (each["kind"], each["metadata"]["name"]): _unordered(each)
        for each in bodies
        if (each["metadata"].get("annotations") or {}).get("helm.sh/hook") != "test"
    }


def _unordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unordered(child) for key, child in value.items()}
    if isinstance(value, list):
        child = [_unordered(each) for each in value]
        return sorted(child, key=_sort_key) if child and isinstance(child[0], dict) else child
    return value


def _sort_key(value: Object) -> str:
    return json.dumps(value, sort_keys=True)


def without_cert_manager(bodies: list[Object]) -> list[Object]:
    """Removes the annotation of cert-manager, which the manifests for kustomize always have."""
    for each in bodies:
        annotations = each["metadata"].get("annotations", {})
        if annotations.pop("cert-manager.io/inject-ca-from", None):
            del each["metadata"]["annotations"]
    return bodies


def containers(bodies: list[Object]) -> list[Object]:
    """Those of all DaemonSets and Deployments."""
    templates = [*of_kind("DaemonSet", bodies).values(), *of_kind("Deployment", bodies).values()]
    return [container for body in templates for container in pod_spec(body)["containers"]]


def agent(daemonset: Object) -> Object:
    return container_of(pod_spec(daemonset))


def test_the_manifests_for_kustomize_come_from_the_chart() -> None:
    command = [sys.executable, str(DEPLOY / "render.py"), f"--helm={helm()}", "--check"]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("overlay", sorted(ALL_OVERLAYS))
def test_an_overlay_is_the_chart_with_values(overlay: str, tmp_path: Path) -> None:
    chart_objects = rendered(tmp_path, {**SECRET, **ALL_OVERLAYS[overlay]})
    overlay_objects = without_cert_manager(kustomized(overlay, tmp_path))
    assert by_name(overlay_objects) == by_name(chart_objects)


def test_components_compose_as_values_do(tmp_path: Path) -> None:
    """All compatible components, with an older API server and an image in a registry."""
    components = (
        "nvidia",
        "nri",
        "microk8s",
        "kubelet-configz",
        "kai",
        "usage",
        "scheduler",
        "scheduler-evict",
        "webhook",
        "webhook-client-ca",
        "before-1.36",
        "pull",
    )
    image = {"name": "topolet", "newName": "registry.example.com/team/topolet"}
    folder = kustomization(tmp_path, "overlays/reconcile", components, images=[image])
    more = {
        "mode": "nri",
        "runtime": "microk8s",
        "settings": {"kai-placements": True, "usage": True},
    }
    values = {
        **SECRET,
        "image": {"registry": "registry.example.com/team"},
        "agent": {"kubeletConfigz": True},
        "pools": [{**GPUS, **more}, more],
        **ALL_OVERLAYS["scheduler-evict"],
        "webhook": {"enabled": True, "clientCA": True},
    }
    overlay_objects = without_cert_manager(kustomized_folder(folder, tmp_path))
    assert by_name(overlay_objects) == by_name(rendered(tmp_path, values, "1.35.0"))


def test_the_component_for_evictions_is_the_settings(tmp_path: Path) -> None:
    """The chart has the flags in alphabetical order."""
    folder = kustomization(tmp_path, "overlays/reconcile", ("evictions", "usage"))
    settings = {
        "colocation": "act",
        "evictions": "BECPUEvict,BEMemoryEvict",
        "node-slo": "follow",
        "usage": True,
    }
    chart_objects = rendered(tmp_path, {**SECRET, "pools": [{"settings": settings}]})
    assert by_name(kustomized_folder(folder, tmp_path)) == by_name(chart_objects)


def test_the_component_dra_is_the_setting(tmp_path: Path) -> None:
    folder = kustomization(tmp_path, "overlays/reconcile", ("dra",))
    values = {**SECRET, "pools": [{"settings": {"dra": True}}]}
    chart_objects = rendered(tmp_path, values)
    assert by_name(kustomized_folder(folder, tmp_path)) == by_name(chart_objects)
    ended = attempt(tmp_path, "template", str(CHART), "--kube-version=1.33.0", values=values)
    assert "the setting dra needs resource.k8s.io/v1" in ended.stderr


def test_the_driver_s_folders_have_the_paths_that_the_host_has(tmp_path: Path) -> None:
    """Kubelet and runtime open what is in them."""
    settings = {"dra": "true", "cdi-dir": "/etc/cdi"}
    (daemonset,) = (
        each
        for each in rendered(
            tmp_path, {**SECRET, "pools": [{"runtime": "microk8s", "settings": settings}]}
        )
        if each["kind"] == "DaemonSet"
    )
    pod = pod_spec(daemonset)
    places = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = {each["mountPath"]: places[each["name"]] for each in agent(daemonset)["volumeMounts"]}
    kubelet = "/var/snap/microk8s/common/var/lib/kubelet"
    for path in (f"{kubelet}/plugins_registry", f"{kubelet}/plugins/{DRIVER}", "/etc/cdi"):
        assert mounts[path] == path


@pytest.mark.parametrize(
    ("settings", "resources"),
    [
        ({"colocation": "act", "evictions": "CPUEvict"}, ["pods/eviction"]),
        (
            {"colocation": "act", "evictions": "CPUEvict", "evict-by": "deletion"},
            ["pods/eviction", "pods"],
        ),
        ({"colocation": "observe", "evictions": "CPUEvict"}, []),
        ({"colocation": "act"}, []),
    ],
)
def test_only_agents_that_evict_have_the_right_to(
    settings: Object, resources: list[str], tmp_path: Path
) -> None:
    for canary in settings:
        of_pool = {name: value for name, value in settings.items() if name != canary}
        split = {"settings": of_pool, "canary": {"settings": {canary: settings[canary]}}}
        for pool in ({"settings": settings}, split):
            bodies = rendered(tmp_path, {**SECRET, "pools": [pool]})
            roles = [
                each for each in bodies if each["metadata"]["name"] == "topolet-agent-evictions"
            ]
            rules = [rule for role in roles for rule in role.get("rules", ())]
            assert [rule["resources"] for rule in rules] == [[each] for each in resources]


@pytest.mark.parametrize("component", ["k3s", "cri-o", "microk8s"])
def test_a_runtime_has_a_component_and_a_value(component: str, tmp_path: Path) -> None:
    folder = kustomization(tmp_path, "overlays/reconcile", (component,))
    chart_objects = rendered(tmp_path, {**SECRET, "pools": [{"runtime": component}]})
    assert by_name(kustomized_folder(folder, tmp_path)) == by_name(chart_objects)


@pytest.mark.parametrize("values", [{}, *ALL_OVERLAYS.values()])
def test_helm_finds_no_fault_in_the_chart(values: Object, tmp_path: Path) -> None:
    ended = attempt(tmp_path, "lint", "--strict", str(CHART), values=values)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policies": {"mode": "strict"}}, "/policies/mode"),
        ({"pools": [{"mode": "both"}]}, "/pools/0/mode"),
        ({"pools": [{"settings": {"no-option": 1}}]}, "'no-option' not allowed"),
        ({"pools": [{"nodeSelector": {"a": "b", "c": "d"}}]}, "/pools/0/nodeSelector"),
        ({"pools": [{"runtime": "docker"}]}, "/pools/0/runtime"),
        ({"pools": [{}, {"name": "later"}]}, 'the pool "later" comes after one without'),
        (
            {"pools": [{"nodeSelector": {"a": "b"}}, {"nodeSelector": {"c": "d"}}]},
            'two of them have the name ""',
        ),
        (
            {"pools": [{"installProxy": True}]},
            'the pool "" has installProxy, which needs mode proxy',
        ),
        ({"uninstall": {"nodesAtOnce": 0}}, "/uninstall/nodesAtOnce"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"registry": "registry.example/"}}, "/image/registry"),
        ({"image": {"registry": "https://registry.example"}}, "/image/registry"),
        ({"image": {"tag": "0.1:0"}}, "/image/tag"),
        ({"pools": [{"maxUnavailable": "ten"}]}, "/pools/0/maxUnavailable"),
        ({"pools": [{"maxUnavailable": "0%"}]}, "/pools/0/maxUnavailable"),
        ({"pools": [{"maxUnavailable": 0}]}, "/pools/0/maxUnavailable"),
        ({"pools": [{"settings": {"period-seconds": "abc"}}]}, "/pools/0/settings/period-seconds"),
        ({"pools": [{"settings": {"period-seconds": 601}}]}, "/pools/0/settings/period-seconds"),
        ({"pools": [{"settings": {"cpu-policy": "sttic"}}]}, "/pools/0/settings/cpu-policy"),
        ({"pools": [{"settings": {"devices": "on"}}]}, "/pools/0/settings/devices"),
        (
            {"pools": [{"canary": {"settings": {"gpu-cdi-kind": "x"}}}]},
            "/pools/0/canary/settings/gpu-cdi-kind",
        ),
        ({"scheduler": {"settings": {"lease-seconds": 2.5}}}, "/scheduler/settings/lease-seconds"),
        (
            {"scheduler": {"enabled": True, "name": "default-scheduler"}},
            "scheduler.name: default-scheduler is that of the cluster's own kube-scheduler",
        ),
        ({"agent": {"resources": {"limits": {"memory": "1 GB"}}}}, "/agent/resources/limits/mem"),
        ({"agent": {"tolerations": [{"operator": "exists"}]}}, "/agent/tolerations/0/operator"),
        ({"networkPolicy": {"schedulerCallers": ["192.0.2.1"]}}, "/networkPolicy/schedulerCallers"),
        ({"podMonitor": {"interval": "soon"}}, "/podMonitor/interval"),
        ({"imaje": {}}, "'imaje' not allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_values_are_refused_with_their_names(
    values: Object, message: str, tmp_path: Path
) -> None:
    assert message in refused(tmp_path, values)


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"registry": "registry.example:5000/team/a.b__c", "tag": "v1_2-rc.1"}},
        {"pools": [{"nodeSelector": {"a": "b"}, "maxUnavailable": "100%"}, {"name": "c"}]},
        {"pools": [{"maxUnavailable": 3, "settings": {"reserved-cpus": 3, "devices": "false"}}]},
        {"pools": [{"settings": {"period-seconds": "0.5"}}]},
        {"agent": {"tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]}},
        {"agent": {"resources": {"requests": {"cpu": 0.5, "memory": "1.5Gi"}}}},
    ],
    ids=str,
)
def test_all_ways_to_write_a_valid_value_are_accepted(values: Object, tmp_path: Path) -> None:
    assert rendered(tmp_path, values)


def documented(first: str) -> Object:
    """The block of YAML in docs/install.md that begins with this key and no other block has."""
    page = (DEPLOY.parent / "docs" / "install.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (found,) = (
        each
        for each in map(yaml.safe_load, blocks)
        if first in each and "extraArgs" not in str(each) and "installProxy" not in str(each)
    )
    body: Object = found
    return body


def test_the_documented_pools_are_values(tmp_path: Path) -> None:
    found = of_kind("DaemonSet", rendered(tmp_path, documented("pools")))
    assert set(found) == {
        "topolet-agent",
        "topolet-agent-edge",
        "topolet-agent-gpu",
        "topolet-agent-gpu-canary",
    }


def test_the_values_in_the_document_about_migration_are_accepted(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "migration.md").read_text()
    blocks = re.findall(r"^( *)```yaml\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    found = [yaml.safe_load(textwrap.dedent(text)) for _, text in blocks]
    values = [each for each in found if "kind" not in each]
    assert len(values) == 3
    for each in values:
        assert rendered(tmp_path, each)
    (name, daemonset) = next(iter(of_kind("DaemonSet", rendered(tmp_path, values[0])).items()))
    assert name == "topolet-agent"
    assert not _runs_on(pod_spec(daemonset), {"kubernetes.io/os": "linux"})
    migrated = {"kubernetes.io/os": "linux", "topolet.io/migrated": "true"}
    assert _runs_on(pod_spec(daemonset), migrated)


def test_an_existing_kube_scheduler_reaches_the_extender_by_its_address(tmp_path: Path) -> None:
    """With the address, the port, the certificate and the verbs of the documents."""
    values = documented("networkPolicy")
    found = rendered(tmp_path, values)
    names = {each["metadata"]["name"] for each in found}
    assert not [name for name in names if "kube-scheduler" in name]
    (service,) = of_kind("Service", found).values()
    (extender,) = documented("extenders")["extenders"]
    port = service["spec"]["ports"][0]["port"]
    assert extender.pop("urlPrefix") == f"https://{service['spec']['clusterIP']}:{port}"
    assert extender.pop("tlsConfig")["serverName"] == f"topolet-scheduler.{NAMESPACE}.svc"
    policy = of_kind("NetworkPolicy", found)["topolet-scheduler"]
    cidrs = [{"ipBlock": {"cidr": each}} for each in values["networkPolicy"]["schedulerCallers"]]
    assert policy["spec"]["ingress"][0]["from"][1:] == cidrs
    chart_objects = rendered(tmp_path, {"scheduler": {"enabled": True}})
    text = of_kind("ConfigMap", chart_objects)["topolet-kube-scheduler"]["data"]
    (of_the_chart,) = yaml.safe_load(text["kube-scheduler.yaml"])["extenders"]
    assert {key: of_the_chart[key] for key in extender} == extender


def test_the_schema_has_all_options_with_their_types_ranges_and_choices() -> None:
    assert schema.text(schema.SCHEMA.read_text()) == schema.SCHEMA.read_text()
    found = schema.definition(AgentSettings)["properties"]
    names = {each.encode_name for each in options.options(AgentSettings)}
    assert set(found) == names - OWN_OPTIONS
    period, policy = found["period-seconds"], found["cpu-policy"]
    assert (period["exclusiveMinimum"], period["maximum"]) == (0, 600)
    assert policy["enum"] == ["dynamic", "none", "static"]
    assert policy["description"].startswith("exclusive CPUs for containers")


def test_every_value_is_explained_and_known() -> None:
    text = (CHART / "values.yaml").read_text()
    known = json.loads(schema.SCHEMA.read_text())
    values = yaml.safe_load(text)
    assert set(known["properties"]) == {*values, "global"}
    for name in values:
        line = text[: text.index(f"\n{name}:")].splitlines()[-1]
        assert line.startswith("#") or name in ("networkPolicy",), name


def test_a_node_belongs_to_one_pool(tmp_path: Path) -> None:
    """For all combinations of the pools' labels."""
    pools = [
        {**GPUS, "canary": {"image": {"tag": "0.2.0"}}},
        {"name": "edge", "nodeSelector": {"site": "edge"}},
        {},
    ]
    found = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools}))
    assert set(found) == {
        "topolet-agent",
        "topolet-agent-edge",
        "topolet-agent-nvidia",
        "topolet-agent-nvidia-canary",
    }
    selectors = [yaml.safe_dump(each["spec"]["selector"]) for each in found.values()]
    assert len(set(selectors)) == len(selectors)
    gpus, edges, canaries = (
        [{}, {"nvidia.com/gpu.present": "true"}],
        [{}, {"site": "edge"}, {"site": "core"}],
        [{}, {"topolet.io/canary": "true"}],
    )
    for labels in ({**a, **b, **c} for a in gpus for b in edges for c in canaries):
        node = {"kubernetes.io/os": "linux", **labels}
        (name,) = (name for name, each in found.items() if _runs_on(pod_spec(each), node))
        expected = "topolet-agent"
        if "nvidia.com/gpu.present" in node:
            expected += "-nvidia" + ("-canary" if "topolet.io/canary" in node else "")
        elif node.get("site") == "edge":
            expected += "-edge"
        assert name == expected


def _runs_on(spec: Object, labels: dict[str, str]) -> bool:
    if not spec["nodeSelector"].items() <= labels.items():
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    (term,) = required["nodeSelectorTerms"]
    return all(labels.get(each["key"]) not in each["values"] for each in term["matchExpressions"])


def test_a_pool_has_its_own_settings_image_and_runtime_class(tmp_path: Path) -> None:
    digest = "sha256:" + "a" * 64
    pools = [
        {
            **GPUS,
            "mode": "nri",
            "settings": {"log-level": "debug", "period-seconds": 2, "bind-memory": True},
            "canary": {"settings": {"log-level": "info"}, "image": {"tag": "0.2.0"}},
        },
        {"settings": {"period-seconds": 0.5, "exclude": "kube-system, prod/db"}},
    ]
    image = {"registry": "registry.example.com/team", "digest": digest, "pullSecrets": ["mine"]}
    found = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools, "image": image}))
    canary, cards, others = (
        found[f"topolet-agent{each}"] for each in ("-nvidia-canary", "-nvidia", "")
    )
    assert pod_spec(cards)["runtimeClassName"] == pod_spec(canary)["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod_spec(others)
    names = [agent(each)["image"] for each in (canary, cards, others)]
    pool_image = f"registry.example.com/team/topolet:0.1.0@{digest}"
    assert names == ["registry.example.com/team/topolet:0.2.0", pool_image, pool_image]
    assert [each["name"] for each in pod_spec(others)["imagePullSecrets"]] == ["mine"]
    for each, level in ((canary, "info"), (cards, "debug")):
        flags = arguments(agent(each))
        assert {f"--log-level={level}", "--period-seconds=2", "--bind-memory=true"} <= set(flags)
        plugin = container_of(pod_spec(each), "nri")
        assert f"--log-level={level}" in plugin["args"]
        assert "--period-seconds=2" not in plugin["args"]
        assert plugin["image"] == agent(each)["image"]
    flags = arguments(agent(others))
    assert {"--period-seconds=0.5", "--exclude=kube-system, prod/db"} <= set(flags)


@pytest.mark.parametrize(
    "version", ["1.35.2", "1.35.2-eks-113cf36", "1.35.2+k3s1", "1.35.2-gke.100"]
)
def test_the_kube_scheduler_has_the_upstream_version_of_a_distribution(
    version: str, tmp_path: Path
) -> None:
    """Registries have no images with the version suffix of a distribution."""
    found = rendered(tmp_path, {"scheduler": {"enabled": True}}, version)
    assert "MutatingAdmissionPolicy" not in {each["kind"] for each in found}
    (container,) = pod_spec(of_kind("Deployment", found)["topolet-kube-scheduler"])["containers"]
    assert container["image"] == "registry.k8s.io/kube-scheduler:v1.35.2"


@pytest.mark.parametrize(
    ("image", "policy"),
    [({}, "Never"), ({"registry": "r"}, "IfNotPresent"), ({"pullPolicy": "Always"}, "Always")],
)
def test_images_without_a_registry_are_not_pulled(
    image: Object, policy: str, tmp_path: Path
) -> None:
    values = {"image": image, "scheduler": {"enabled": True}, "webhook": {"enabled": True}}
    found = [
        container
        for container in containers(rendered(tmp_path, values))
        if not container["image"].startswith("registry.k8s.io/kube-scheduler:v1.36.0")
    ]
    assert {each["name"] for each in found} == {"agent", "scheduler", "webhook"}
    assert {each["imagePullPolicy"] for each in found} == {policy}


@pytest.mark.parametrize(("mode", "actions"), [("enforce", ["Deny"]), ("warn", ["Warn", "Audit"])])
def test_policies_enforce_or_warn(mode: str, actions: list[str], tmp_path: Path) -> None:
    """The policies about Topolet's own accounts always deny."""
    bodies = rendered(tmp_path, {"policies": {"mode": mode}})
    found = {
        name: binding["spec"]["validationActions"]
        for name, binding in of_kind("ValidatingAdmissionPolicyBinding", bodies).items()
    }
    own_accounts = ("topolet-own-", "topolet-scheduler-")
    users = {name for name in found if not name.startswith(own_accounts)} - {"topolet-schedulers"}
    assert {tuple(found[name]) for name in users} == {tuple(actions)}
    assert {tuple(found[name]) for name in set(found) - users} == {("Deny",), ("Warn",)}


@pytest.mark.parametrize("overlay", ["reconcile", "scheduler", "webhook"])
@pytest.mark.parametrize("mode", ["warn", "off"])
def test_a_mode_of_the_policies_is_a_component(mode: str, overlay: str, tmp_path: Path) -> None:
    """The webhook patches a policy: its component comes after `warn` and before `off`."""
    more = () if overlay == "reconcile" else (overlay,)
    chosen = (f"policies-{mode}", *more) if mode == "warn" else (*more, f"policies-{mode}")
    folder = kustomization(tmp_path, "overlays/reconcile", chosen)
    values = {**SECRET, **ALL_OVERLAYS[overlay], "policies": {"mode": mode}}
    chart_objects = by_name(rendered(tmp_path, values))
    overlay_objects = by_name(without_cert_manager(kustomized_folder(folder, tmp_path)))
    if mode == "off":
        account = "ServiceAccount", "topolet-scheduler"
        assert (account in chart_objects) is (overlay == "scheduler")
        chart_objects[account] = overlay_objects[account]
    assert overlay_objects == chart_objects


def test_without_policies_there_are_no_admission_objects(tmp_path: Path) -> None:
    found = rendered(tmp_path, {"policies": {"mode": "off"}})
    assert not [each for each in found if "Admission" in each["kind"]]


def test_accounts_of_values_are_in_the_policies(tmp_path: Path) -> None:
    accounts = {"allocators": ["a", "b"], "binders": ["c"]}
    found = rendered(tmp_path, {"policies": accounts, "webhook": {"enabled": True}})
    texts = str(found)
    for name in ("a", "b", "c"):
        assert re.search(rf"\\n\s*{name}(\\n|''')", texts)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["system:kube-scheduler"]),
        ({"webhook": {"enabled": True}}, ["system:kube-scheduler"]),
        ({"webhook": {"enabled": True, "clientCA": True}}, []),
        (
            {"webhook": {"enabled": True, "clientCA": True}, "policies": {"binders": ["c"]}},
            ["c"],
        ),
        ({"policies": {"binders": []}}, []),
    ],
)
def test_a_webhook_that_reads_pods_trusts_no_other_scheduler_by_default(
    values: Object, expected: list[str], tmp_path: Path
) -> None:
    accounts = {
        tuple(lines.replace("\\n", " ").split())
        for each in rendered(tmp_path, values)
        if each["metadata"]["name"] in ("topolet-gpu-binders", "topolet-gpu-node-names")
        for lines in re.findall(r"r'''(.*?)'''", json.dumps(each))
    }
    assert accounts == {(SCHEDULER, *expected)}


@pytest.mark.parametrize("name", ["topolet-scheduler", "topolet-webhook"])
def test_a_generated_certificate_is_for_the_service_and_for_clients(
    name: str, tmp_path: Path
) -> None:
    values = {"scheduler": {"enabled": True}, "webhook": {"enabled": True}}
    found = rendered(tmp_path, values)
    secret = of_kind("Secret", found)[f"{name}-tls"]
    for file, text in secret["data"].items():
        (tmp_path / file).write_bytes(base64.b64decode(text))
    host = f"{name}.{NAMESPACE}.svc"
    _shake_hands(tmp_path, host)
    bundles = {
        hook["clientConfig"]["caBundle"]
        for each in found
        if each["kind"].endswith("WebhookConfiguration")
        for hook in each["webhooks"]
    }
    if name == "topolet-webhook":
        assert bundles == {secret["data"]["ca.crt"]}


def _shake_hands(folder: Path, host: str) -> None:
    """A TLS handshake between two ends with this certificate, with strict verification."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    for each in (server, client):
        each.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        each.load_verify_locations(folder / "ca.crt")
        each.verify_mode = ssl.CERT_REQUIRED
        each.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname=host),
        server.wrap_bio(up, down, server_side=True),
    )
    open_ends = list(ends)
    while open_ends:
        for end in list(open_ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                open_ends.remove(end)
    assert ends[1].getpeercert()


def test_cert_manager_creates_the_certificates_if_configured(tmp_path: Path) -> None:
    values: Object = {"scheduler": {"enabled": True}, "webhook": {"enabled": True}}
    values["certificates"] = {"source": "cert-manager"}
    found = rendered(tmp_path, values)
    assert not of_kind("Secret", found)
    certificates = of_kind("Certificate", found).values()
    secrets = {certificate["spec"]["secretName"] for certificate in certificates}
    assert secrets == {"topolet-scheduler-tls", "topolet-webhook-tls"}
    assert len(of_kind("Issuer", found)) == len(secrets)
    hooks = [each for each in found if each["kind"].endswith("WebhookConfiguration")]
    for each in hooks:
        annotations = each["metadata"]["annotations"]
        assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/topolet-webhook"
    values["certificates"]["issuerRef"] = {"name": "mine", "kind": "ClusterIssuer"}
    found = rendered(tmp_path, values)
    assert not of_kind("Issuer", found)
    certificates = of_kind("Certificate", found).values()
    assert {each["spec"]["issuerRef"]["name"] for each in certificates} == {"mine"}


def test_no_scheduler_filters_pods_unless_it_is_enabled(tmp_path: Path) -> None:
    found = rendered(tmp_path, {})
    assert not of_kind("Deployment", found)
    assert "KubeSchedulerConfiguration" not in str(found)


def test_crds_are_kept_on_removal_and_can_be_left_out(tmp_path: Path) -> None:
    kind = "CustomResourceDefinition"
    for enabled, count in ((False, 2), (True, 3)):
        found = rendered(tmp_path, {"scheduler": {"enabled": enabled}})
        definitions = of_kind(kind, found)
        assert len(definitions) == count
        for each in definitions.values():
            assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(kind, rendered(tmp_path, {"crds": {"install": False}}))


def test_the_monitor_names_ports_that_pods_have(tmp_path: Path) -> None:
    values: Object = {"pools": [{"mode": "nri"}], "scheduler": {"enabled": True}}
    values["podMonitor"] = {"enabled": True, "labels": {"release": "prometheus"}}
    found = rendered(tmp_path, values)
    (monitor,) = of_kind("PodMonitor", found).values()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    watched = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    served = {port["name"] for each in containers(found) for port in each.get("ports", ())}
    assert watched == served - {"extender", "https"}


def test_the_proxies_of_a_pool_are_scraped_at_its_nodes(tmp_path: Path) -> None:
    """A scraped node without a proxy would fire an alert."""
    pools: list[Object] = [
        {"name": "ours", "nodeSelector": {"site/x": "a.b"}, "mode": "proxy"},
        {"name": "other", "nodeSelector": {"site": "c"}, "mode": "reconcile"},
        {"mode": "proxy"},
    ]
    scraped = {"enabled": True, "port": 1234, "labels": {"release": "prometheus"}}
    found = rendered(tmp_path, {"pools": pools, "scrapeConfig": scraped})
    of_pool = of_kind("ScrapeConfig", found)
    assert set(of_pool) == {"topolet-proxy", "topolet-proxy-ours"}
    for each in of_pool.values():
        assert each["metadata"]["labels"]["release"] == "prometheus"

    def chosen(name: str, action: str) -> set[tuple[str, str]]:
        return {
            (rule["sourceLabels"][0].removeprefix("__meta_kubernetes_node_label_"), rule["regex"])
            for rule in of_pool[name]["spec"]["relabelings"]
            if rule.get("action") == action
        }

    linux = ("kubernetes_io_os", "linux")
    assert chosen("topolet-proxy-ours", "Keep") == {linux, ("site_x", "a\\.b")}
    assert chosen("topolet-proxy-ours", "Drop") == set()
    assert chosen("topolet-proxy", "Keep") == {linux}
    assert chosen("topolet-proxy", "Drop") == {("site_x", "a\\.b"), ("site", "c")}
    replaced = {
        rule["replacement"] for rule in of_pool["topolet-proxy"]["spec"]["relabelings"][-2:]
    }
    assert replaced == {"${1}:1234", "[${1}]:1234"}


PROXY_POOLS = [
    {
        "name": "ours",
        "nodeSelector": {"site": "a"},
        "mode": "proxy",
        "installProxy": True,
        "canary": {"image": {"tag": "0.2.0"}},
    },
    {"name": "by-hand", "nodeSelector": {"site": "b"}, "mode": "proxy"},
    {"runtime": "microk8s"},
]


def test_only_a_pool_with_the_setting_installs_the_proxy_with_rights_of_the_host(
    tmp_path: Path,
) -> None:
    found = of_kind("DaemonSet", rendered(tmp_path, {"pools": PROXY_POOLS}))
    for name, each in found.items():
        ours = name in ("topolet-agent-ours", "topolet-agent-ours-canary")
        spec = pod_spec(each)
        assert spec.get("hostPID", False) is ours
        assert bool(spec.get("initContainers")) is ours
        (state,) = (each["hostPath"] for each in spec["volumes"] if each["name"] == "state")
        proxy_is_there = name == "topolet-agent-by-hand"
        assert state["type"] == ("Directory" if proxy_is_there else "DirectoryOrCreate")
        mounted = {mount["mountPath"] for mount in agent(each)["volumeMounts"]}
        assert "/host" not in mounted
    (init,) = pod_spec(found["topolet-agent-ours-canary"])["initContainers"]
    assert init["image"] == "topolet:0.2.0"
    command, *flags = init["args"]
    assert command == "install-proxy"
    assert plain(flags, InstallSettings) is not None
    assert init["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert init["volumeMounts"] == [{"name": "host", "mountPath": "/host"}]


def test_only_a_pool_with_the_setting_lets_its_agent_enter_network_namespaces(
    tmp_path: Path,
) -> None:
    pools = [
        {"name": "nics", "nodeSelector": {"site": "a"}, "mode": "nri", "networkNamespaces": True},
        {"mode": "nri"},
    ]
    found = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools}))
    added = {
        (name, container["name"]): container["securityContext"]["capabilities"].get("add", [])
        for name, each in found.items()
        for container in pod_spec(each)["containers"]
    }
    assert added == {
        ("topolet-agent-nics", "agent"): ["SYS_ADMIN", "SYS_PTRACE"],
        ("topolet-agent-nics", "nri"): [],
        ("topolet-agent-nics", "nri-guard"): [],
        ("topolet-agent", "agent"): [],
        ("topolet-agent", "nri"): [],
        ("topolet-agent", "nri-guard"): [],
    }


def test_only_a_pool_with_a_setting_lets_its_agent_change_processes(tmp_path: Path) -> None:
    pools = [
        {"name": "a", "nodeSelector": {"site": "a"}, "oomScores": True, "networkNamespaces": True},
        {"name": "b", "nodeSelector": {"site": "b"}, "oomScores": True},
        {"name": "c", "nodeSelector": {"site": "c"}, "coreScheduling": True},
        {
            "name": "d",
            "nodeSelector": {"site": "d"},
            "coreScheduling": True,
            "networkNamespaces": True,
        },
        {"mode": "reconcile"},
    ]
    found = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools}))
    both = ["DAC_OVERRIDE", "SYS_RESOURCE"]
    assert {
        name: (
            pod_spec(each).get("hostPID", False),
            agent(each)["securityContext"]["capabilities"].get("add", []),
        )
        for name, each in found.items()
    } == {
        "topolet-agent-a": (True, ["SYS_ADMIN", "SYS_PTRACE", *both]),
        "topolet-agent-b": (True, both),
        "topolet-agent-c": (True, ["SYS_PTRACE"]),
        "topolet-agent-d": (True, ["SYS_ADMIN", "SYS_PTRACE"]),
        "topolet-agent": (False, []),
    }


def test_only_a_pool_with_the_setting_lets_its_agent_write_resctrl(tmp_path: Path) -> None:
    pools = [{"name": "rdt", "nodeSelector": {"site": "a"}, "resctrl": True}, {}]
    daemon_sets = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools}))
    mounts = {
        name: [mount for mount in agent(each)["volumeMounts"] if mount["name"] == "resctrl"]
        for name, each in daemon_sets.items()
    }
    mount = {"name": "resctrl", "mountPath": "/host/sys/fs/resctrl"}
    assert mounts == {
        "topolet-agent-rdt": [mount | {"mountPropagation": "HostToContainer"}],
        "topolet-agent": [],
    }
    volume = {"name": "resctrl", "hostPath": {"path": "/sys/fs/resctrl", "type": "Directory"}}
    assert volume in pod_spec(daemon_sets["topolet-agent-rdt"])["volumes"]


def test_only_a_pool_with_the_setting_lets_its_agent_write_files_of_the_machine(
    tmp_path: Path,
) -> None:
    pools = [{"name": "telco", "nodeSelector": {"site": "a"}, "quiet": True}, {}]
    daemon_sets = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools}))
    writable = {
        name: {
            mount["mountPath"]
            for mount in agent(each)["volumeMounts"]
            if mount["mountPath"].startswith("/host/") and not mount.get("readOnly")
        }
        for name, each in daemon_sets.items()
    }
    of_all = {"/host/sys/fs/cgroup"}
    assert writable == {
        "topolet-agent-telco": {*of_all, "/host/proc/irq", "/host/sys/devices"},
        "topolet-agent": of_all,
    }
    volumes = {
        each["name"]: each for each in pod_spec(daemon_sets["topolet-agent-telco"])["volumes"]
    }
    assert volumes["irq"]["hostPath"] == {"path": "/proc/irq", "type": "Directory"}
    assert volumes["devices"]["hostPath"] == {"path": "/sys/devices", "type": "Directory"}
    # irqbalance's folder itself would be another one after a restart.
    assert volumes["run"]["hostPath"] == {"path": "/run", "type": "Directory"}
    (of_run,) = (
        mount
        for mount in agent(daemon_sets["topolet-agent-telco"])["volumeMounts"]
        if mount["name"] == "run"
    )
    assert of_run["mountPropagation"] == "HostToContainer", "no root folder outlives its container"
    added = {
        name: agent(each)["securityContext"]["capabilities"].get("add")
        for name, each in daemon_sets.items()
    }
    assert added == {"topolet-agent-telco": ["NET_ADMIN"], "topolet-agent": None}


def test_the_guard_runs_beside_the_plugin_and_never_refuses_its_pod(tmp_path: Path) -> None:
    pools = [{"name": "a", "nodeSelector": {"site": "a"}, "mode": "nri"}, {"mode": "proxy"}]
    values: Object = {"pools": pools, "nri": {"guard": {"exempt": ["kube-system", "cni"]}}}
    found = of_kind("DaemonSet", rendered(tmp_path, values))
    guard = container_of(pod_spec(found["topolet-agent-a"]), "nri-guard")
    assert guard["args"] == ["nri-guard", "--guard-exempt=topolet-system,kube-system,cni"]
    assert {each["mountPath"] for each in guard["volumeMounts"]} == {"/run/topolet", "/var/run/nri"}
    names = [each["name"] for each in pod_spec(found["topolet-agent"])["containers"]]
    assert names == ["agent"]
    values["nri"] = {"guard": {"enabled": False}}
    without = of_kind("DaemonSet", rendered(tmp_path, values))["topolet-agent-a"]
    assert [each["name"] for each in pod_spec(without)["containers"]] == ["agent", "nri"]


@pytest.mark.parametrize("guard", [True, False])
def test_a_runtime_that_requires_the_plugin_creates_agents_and_removals_without_it(
    guard: bool, tmp_path: Path
) -> None:
    pools = [{"name": "a", "nodeSelector": {"site": "a"}, "mode": "nri"}, {"mode": "proxy"}]
    bodies = rendered(tmp_path, {"pools": pools, "nri": {"guard": {"enabled": guard}}})
    templates = {
        name: each["spec"]["template"] for name, each in of_kind("DaemonSet", bodies).items()
    }
    removing = {each.daemon_set: each.pod for each in removal(bodies).pools}
    tolerating = {"tolerate-missing-plugins.topolet.io/pod": "true"}
    for template in (templates["topolet-agent-a"], removing["topolet-agent-a"]):
        assert template["metadata"]["annotations"] == tolerating
    for template in (templates["topolet-agent"], removing["topolet-agent"]):
        assert "annotations" not in template["metadata"]
    job = of_kind("Job", bodies)["topolet-uninstall"]["spec"]["template"]
    assert job["metadata"]["annotations"] == tolerating


def test_the_configmap_of_a_pool_is_where_its_agent_reads_strategies(tmp_path: Path) -> None:
    pools = [
        {"name": "gold", "nodeSelector": {"site": "a"}, "sloConfig": "slo"},
        {"mode": "reconcile"},
    ]
    daemon_sets = of_kind("DaemonSet", rendered(tmp_path, {"pools": pools}))
    gold, others = daemon_sets["topolet-agent-gold"], daemon_sets["topolet-agent"]
    assert "--slo-config=/etc/topolet/slo" in agent(gold)["args"]
    assert {"name": "slo", "mountPath": "/etc/topolet/slo", "readOnly": True} in agent(gold)[
        "volumeMounts"
    ]
    volume = {"name": "slo", "configMap": {"name": "slo", "optional": True}}
    assert volume in pod_spec(gold)["volumes"]
    assert volume not in pod_spec(others)["volumes"]
    assert not [argument for argument in agent(others)["args"] if "slo" in argument]


def test_a_hung_agent_does_not_get_the_time_of_the_installer(tmp_path: Path) -> None:
    for name, each in of_kind("DaemonSet", rendered(tmp_path, {"pools": PROXY_POOLS})).items():
        of_pod = pod_spec(each)["terminationGracePeriodSeconds"]
        for probe in ("startupProbe", "livenessProbe"):
            seconds = agent(each)[probe].get("terminationGracePeriodSeconds", of_pod)
            assert seconds <= 10, (name, probe)


def removal(bodies: list[Object]) -> NodePools:
    """The file that the pre-delete hook reads."""
    found = of_kind("ConfigMap", bodies)["topolet-uninstall"]
    return msgspec.json.decode(found["data"]["pools.json"], type=NodePools)


def test_the_hook_has_a_pod_for_the_nodes_of_each_daemonset(tmp_path: Path) -> None:
    bodies = rendered(tmp_path, {"pools": PROXY_POOLS})
    found, sets = removal(bodies), of_kind("DaemonSet", bodies)
    assert found.namespace == NAMESPACE
    assert {each.daemon_set for each in found.pools} == set(sets)
    sites = [{}, {"site": "a"}, {"site": "b"}]
    for labels in ({**a, **b} for a in sites for b in ({}, {"topolet.io/canary": "true"})):
        node = {"kubernetes.io/os": "linux", **labels}
        (name,) = (name for name, each in sets.items() if _runs_on(pod_spec(each), node))
        assert [each.daemon_set for each in found.pools if each.selects(node)] == [name]
    for each in found.pools:
        ours = each.daemon_set.startswith("topolet-agent-ours")
        (container,) = each.pod["spec"]["containers"]
        paths = {one["hostPath"]["path"] for one in each.pod["spec"]["volumes"]}
        assert ("/" in paths) is ours
        assert each.pod["spec"].get("hostPID", False) is ours
        assert ("--without-proxy" in container["args"]) is not ours
        assert bool(each.remark) is (each.daemon_set == "topolet-agent-by-hand")
        flags = [one for one in container["args"][1:] if one != "--without-proxy"]
        assert plain(flags, UninstallSettings) is not None
        if not ours:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_pod_that_removes_gives_files_of_the_machine_back(tmp_path: Path) -> None:
    pools = [{"name": "telco", "nodeSelector": {"site": "a"}, "quiet": True}, {}]
    containers = {
        each.daemon_set: each.pod["spec"]["containers"][0]
        for each in removal(rendered(tmp_path, {"pools": pools})).pools
    }
    writable = {
        name: {mount["mountPath"] for mount in each["volumeMounts"] if not mount.get("readOnly")}
        for name, each in containers.items()
    }
    quiet = writable["topolet-agent-telco"] - writable["topolet-agent"]
    assert quiet == {"/host/proc/irq", "/host/sys/devices"}
    capabilities = containers["topolet-agent-telco"]["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["NET_ADMIN"]}


def test_the_objects_of_the_removal_hook_are_deleted_after_it(tmp_path: Path) -> None:
    bodies = [
        each
        for each in rendered(tmp_path, {"pools": PROXY_POOLS})
        if each["metadata"]["name"].startswith("topolet-uninstall")
    ]
    assert len(bodies) == 10
    for each in bodies:
        notes = each["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "pre-delete"
        policies = set(notes["helm.sh/hook-delete-policy"].split(","))
        kept = set() if each["kind"] != "Job" else {"hook-failed"}
        assert policies == {"before-hook-creation", "hook-succeeded", "hook-failed"} - kept
    (job,), (role,) = (of_kind(kind, bodies).values() for kind in ("Job", "Role"))
    names = of_kind("DaemonSet", rendered(tmp_path, {"pools": PROXY_POOLS}))
    assert set(role["rules"][0]["resourceNames"]) == set(names)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser()
    uninstall_nodes.add_arguments(parser)
    arguments = parser.parse_args(container["args"][1:])
    assert job["spec"]["activeDeadlineSeconds"] > arguments.deadline_seconds
    assert arguments.deadline_seconds < 300, "helm uninstall waits no longer by default"
    left = rendered(tmp_path, {"uninstall": {"enabled": False}})
    assert not [each for each in left if "uninstall" in each["metadata"]["name"]]
