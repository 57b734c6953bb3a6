from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli.processes import SUBCOMMANDS
from agent.kube import cluster
from agent.model.devices import device_object
from agent.model.devices.device_object import (
    Condition,
    Device,
    DeviceTopology,
    VfGroup,
    VirtualFunction,
)
from agent.model.nrt import resource_topology
from agent.model.nrt.resource_topology import Amounts, NodeTopology, OwnerReference, Version, Zone
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import socket_path
from agent.scheduler import webhook
from tests.deploy.manifests import (
    AGENT,
    DEPLOY,
    EVERYTHING,
    HARDENED,
    NODE_ADDRESS,
    ROOT,
    SCHEDULER,
    account,
    arguments,
    container_of,
    environment,
    kustomization,
    kustomized,
    kustomized_folder,
    listed,
    matched,
    objects,
    of_kind,
    pod_of,
    pod_spec,
    rules,
    schema_errors,
    settings_of,
    variables,
    written,
)

ALL = objects(*EVERYTHING)
OVERLAYS = ("reconcile", "proxy", "nri", "nvidia")
NOT_LISTED = (
    "components/proxy/agent.yaml",
    "components/nri/agent.yaml",
    "components/nvidia/daemonset.yaml",
    "components/nvidia/others.yaml",
    "components/webhook/binders.yaml",
    "components/webhook-client-ca/binders.yaml",
    "components/webhook-client-ca/webhook.yaml",
    "components/scheduler-evict/flag.yaml",
    "components/cri-o/agent.yaml",
    "components/k3s/agent.yaml",
    "components/microk8s/agent.yaml",
    "components/kubelet-configz/agent.yaml",
    "components/kubelet-configz/rbac.yaml",
    "components/kai/flag.yaml",
    "components/kai/rbac.yaml",
    "components/usage/flag.yaml",
    "components/usage/rbac.yaml",
    "components/evictions/flags.yaml",
    "components/evictions/rbac.yaml",
    "components/dra/agent.yaml",
    "components/dra/objects.yaml",
    "components/pull/policy.yaml",
    "authorization/agents.yaml",
    "policies/variables.yaml",
    "kustomize.values.yaml",
)
"""Patches, the objects of components that no overlay of EVERYTHING has, variables, a file of the
API server, and values of the chart."""
# The roles that Kubernetes has for a kube-scheduler.
KUBE_SCHEDULER_ROLES = (
    "system:kube-scheduler",
    "system:volume-scheduler",
    "extension-apiserver-authentication-reader",
)
WARN = ("topolet-schedulers",)
"""The policies that only warn."""
CRIO = "/run/crio/crio.sock"


def test_every_file_is_listed_and_every_object_exists_once() -> None:
    found = {
        path
        for path in DEPLOY.rglob("*.yaml")
        if path.name != "kustomization.yaml" and DEPLOY / "chart" not in path.parents
    }
    used = {path for each in EVERYTHING for path in listed(each)}
    assert found - used == {DEPLOY / each for each in NOT_LISTED}
    keys = [(each["kind"], each["metadata"]["name"]) for each in ALL]
    assert len(keys) == len(set(keys))
    assert all(each["apiVersion"] for each in ALL)


def test_every_referenced_name_exists() -> None:
    (namespace,) = of_kind("Namespace")
    accounts = of_kind("ServiceAccount")
    for each in ALL:
        of_the_cluster = each["metadata"]["name"] == "topolet-kube-scheduler-authentication"
        expected = "kube-system" if of_the_cluster else namespace
        assert each["metadata"].get("namespace", expected) == expected
    roles = {*of_kind("ClusterRole"), *of_kind("Role"), *KUBE_SCHEDULER_ROLES}
    for binding in (*of_kind("ClusterRoleBinding").values(), *of_kind("RoleBinding").values()):
        assert binding["roleRef"]["name"] in roles
        for subject in binding["subjects"]:
            assert subject["name"] in accounts
            assert subject["namespace"] == namespace
    name = pod_spec(of_kind("DaemonSet")["topolet-agent"])["serviceAccountName"]
    assert account(namespace, name) == AGENT
    assert {each.rpartition(":")[2] for each in (AGENT, SCHEDULER)} <= set(accounts)
    assert variables()["TOPOLET_NAMESPACE"] == namespace


def test_the_webhook_configuration_matches_the_service_and_the_port() -> None:
    """The API server reaches the Service, the pod's port, its page and its files."""
    (registered,) = of_kind("ValidatingWebhookConfiguration")["topolet-gpu-binders"]["webhooks"]
    service = of_kind("Service")[registered["clientConfig"]["service"]["name"]]
    template = of_kind("Deployment")["topolet-webhook"]["spec"]["template"]
    assert template["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    (port,) = service["spec"]["ports"]
    assert port["port"] == registered["clientConfig"]["service"]["port"]
    (container,) = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    command, *flags = container["args"]
    assert command == "webhook"
    settings = settings_of(flags, SUBCOMMANDS["webhook"].SETTINGS)
    assert settings.https == f"0.0.0.0:{ports[port['targetPort']]}"
    assert settings.scheduler_name == variables()["TOPOLET_SCHEDULER_NAME"]
    (mutating,) = of_kind("MutatingWebhookConfiguration")["topolet-gpu-scheduler"]["webhooks"]
    served = {**registered["clientConfig"]["service"], "path": webhook.POD_PATH}
    assert mutating["clientConfig"]["service"] == served
    assert registered["clientConfig"]["service"]["path"] == webhook.PATH
    assert webhook.READ_LIMITS.whole_seconds < registered["timeoutSeconds"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert settings.tls_dir == mounts["tls"]


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        ("Validating", "topolet-gpu-binders", ()),
        (
            "Mutating",
            "topolet-gpu-scheduler",
            ("matchConditions", "failurePolicy", "reinvocationPolicy"),
        ),
    ],
)
def test_policy_and_webhook_match_the_same_objects(
    kind: str, name: str, more: tuple[str, ...]
) -> None:
    (webhook,) = of_kind(f"{kind}WebhookConfiguration")[name]["webhooks"]
    policy = of_kind(f"{kind}AdmissionPolicy")[name]["spec"]
    constraints = policy["matchConstraints"]
    assert webhook["namespaceSelector"] == constraints["namespaceSelector"]
    (rule,), (rule_,) = constraints["resourceRules"], webhook["rules"]
    assert {key: rule_[key] for key in rule} == rule
    assert {field: webhook[field] for field in more} == {field: policy[field] for field in more}


@pytest.mark.parametrize("name", ["topolet-webhook", "topolet-scheduler", "topolet-kube-scheduler"])
def test_pods_of_deployments_are_hardened(name: str) -> None:
    pod = pod_spec(of_kind("Deployment")[name])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not [each for each in pod["volumes"] if "hostPath" in each]
    (container,) = pod["containers"]
    assert container["securityContext"] == HARDENED
    mounts = container["volumeMounts"]
    assert {each["name"] for each in mounts} == {each["name"] for each in pod["volumes"]}
    writable = {each["name"] for each in mounts if not each.get("readOnly")}
    assert writable <= ({"lease"} if name == "topolet-scheduler" else set())


def test_the_role_of_the_webhook_reads_pods_only() -> None:
    (rule,) = of_kind("ClusterRole")["topolet-webhook"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


@pytest.mark.parametrize("kind", ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"])
def test_every_policy_is_bound_and_no_missing_parameter_refuses_anything(kind: str) -> None:
    policies, bindings = of_kind(kind), of_kind(f"{kind}Binding")
    assert {each["spec"]["policyName"] for each in bindings.values()} == set(policies)
    for binding in bindings.values():
        name = binding["spec"]["policyName"]
        policy = policies[name]
        denies = kind == "ValidatingAdmissionPolicy" and name not in WARN
        if name == "topolet-own-evictions":
            assert binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow"
        else:
            assert "paramKind" not in policy["spec"]
            assert "paramRef" not in binding["spec"]
            assert "params" not in yaml.safe_dump(policy["spec"])
        assert policy["spec"]["failurePolicy"] == ("Fail" if denies else "Ignore")
        if kind == "ValidatingAdmissionPolicy":
            assert binding["spec"]["validationActions"] == ["Deny" if denies else "Warn"]


def expressions(value: Any) -> list[str]:
    """All CEL below a value."""
    if isinstance(value, list):
        return [found for each in value for found in expressions(each)]
    if not isinstance(value, dict):
        return []
    here = [each for name, each in value.items() if name.endswith("xpression")]
    return [*filter(lambda each: isinstance(each, str), here), *expressions([*value.values()])]


@pytest.mark.parametrize(
    "name", ["topolet-allocations", "topolet-binding-allocations", "topolet-annotations"]
)
def test_a_policy_validates_the_keys_by_which_it_matches(name: str) -> None:
    policy = of_kind("ValidatingAdmissionPolicy")[name]["spec"]

    def keys(part: str) -> set[str]:
        lists = (re.findall(r"^\[('[^\]]*')\]", each) for each in expressions(policy[part]))
        return {key for found in lists for text in found for key in re.findall("'([^']*)'", text)}

    assert keys("matchConditions") == keys("variables") != set()


def test_policies_and_webhook_name_the_same_accounts() -> None:
    """Each list of accounts or schedulers is in a raw text, one on each line."""
    found: dict[str, list[str]] = {}
    for kind in ("ValidatingAdmissionPolicy", "ValidatingWebhookConfiguration"):
        for name, each in of_kind(kind).items():
            for text in expressions(each):
                for lines in re.findall(r"r'''(.*?)'''", text, re.DOTALL):
                    found[f"{kind}/{name}"] = lines.split()
    assert found == {
        "ValidatingAdmissionPolicy/topolet-allocations": [SCHEDULER],
        "ValidatingAdmissionPolicy/topolet-binding-allocations": [SCHEDULER],
        "ValidatingAdmissionPolicy/topolet-classes": ["topolet-system", "kube-system"],
        "ValidatingAdmissionPolicy/topolet-missing-plugins": ["topolet-system", "kube-system"],
        "ValidatingAdmissionPolicy/topolet-gpu-binders": [SCHEDULER, "system:kube-scheduler"],
        "ValidatingAdmissionPolicy/topolet-gpu-node-names": [SCHEDULER, "system:kube-scheduler"],
        "ValidatingAdmissionPolicy/topolet-schedulers": ["topolet-scheduler"],
        "ValidatingWebhookConfiguration/topolet-gpu-binders": [SCHEDULER, "system:kube-scheduler"],
    }


def test_the_agents_role_has_exactly_the_used_verbs() -> None:
    own = {"get", "list", "watch", "create", "patch"}
    assert rules(of_kind("ClusterRole")["topolet-agent"]) == {
        ("", "pods"): {"list", "watch"},
        ("", "nodes"): {"get", "list", "watch", "patch"},
        ("", "nodes/status"): {"patch"},
        ("topology.node.k8s.io", "noderesourcetopologies"): own,
        ("scheduling.koordinator.sh", "devices"): own,
        ("", "namespaces"): {"get"},
        ("resource.k8s.io", "resourceslices"): {"list"},
        ("scheduling.koordinator.sh", "rebindresources"): {"list"},
        ("scheduling.koordinator.sh", "rebindresources/status"): {"patch"},
        ("events.k8s.io", "events"): {"create", "patch"},
    }


def test_everything_the_agent_writes_is_restricted_to_its_own_node() -> None:
    """Each resource that the role may change is in a policy."""
    named = of_kind("ValidatingAdmissionPolicy")
    names = (
        "topolet-own-node",
        "topolet-own-rebinds",
        "topolet-own-events",
        "topolet-own-pods",
        "topolet-own-evictions",
        "topolet-own-slices",
        "topolet-own-claims",
    )
    policies = [named[name] for name in names]
    added = objects(*(f"components/{each}" for each in ("kai", "usage", "evictions", "dra")))
    roles = of_kind("ClusterRole") | of_kind("ClusterRole", added)
    names_of_roles = (
        "topolet-agent",
        "topolet-agent-kai",
        "topolet-agent-usage",
        "topolet-agent-evictions",
        "topolet-agent-dra",
    )
    assert set().union(*(written(roles[name]) for name in names_of_roles)) == matched(policies)
    accounts = [
        re.findall("'(.+?)'", policy["spec"]["matchConditions"][0]["expression"])
        for policy in policies
    ]
    both = [AGENT, f"{AGENT.rpartition(':')[0]}:topolet-uninstall-node"]
    assert accounts == [both, [AGENT], [AGENT, SCHEDULER], [AGENT], [AGENT], both, [AGENT]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_hardened(overlay: str) -> None:
    pod = pod_of(overlay)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    volumes = {each["name"]: each["hostPath"] for each in pod["volumes"]}
    mounts = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
    assert {each["name"] for each in mounts} == set(volumes)
    written = {volumes[each["name"]]["path"] for each in mounts if not each.get("readOnly")}
    assert written == {"/sys/fs/cgroup", "/run/topolet"}
    for container in pod["containers"]:
        assert container["securityContext"] == HARDENED
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        ports = {each["name"] for each in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports


@pytest.mark.parametrize(("overlay", "place"), [("reconcile", 0), ("nri", 1)])
def test_flags_are_options_of_the_command(overlay: str, place: int) -> None:
    command, *flags = arguments(pod_of(overlay)["containers"][place])
    assert settings_of(flags, SUBCOMMANDS[command].SETTINGS)


def agent_settings(container: dict[str, Any]) -> AgentSettings:
    """The settings of the agent in its container."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(container).items():
            patch.setenv(name, value)
        return settings_of(arguments(container)[1:], SUBCOMMANDS["agent"].SETTINGS)


def test_commands_need_no_options_in_the_agents_container() -> None:
    """`kubectl exec ... topolet doctor` examines the host."""
    settings = agent_settings({**container_of(pod_of("reconcile")), "args": ["agent"]})
    assert (settings.root, settings.cgroup_root) == ("/host", "/host/sys/fs/cgroup")
    assert settings.kubelet_dir == "/host/var/lib/kubelet"
    assert settings.runtime_endpoint == "unix:///run/containerd/containerd.sock"


@pytest.mark.parametrize(
    ("overlay", "socket"), [("reconcile", "/run/containerd/containerd.sock"), ("cri-o", CRIO)]
)
def test_the_hosts_folders_have_their_paths_below_the_root(
    overlay: str, socket: str, tmp_path: Path
) -> None:
    """So that the agent finds a path from the kubelet's command line."""
    (daemonset,) = of_kind("DaemonSet", kustomized(overlay, tmp_path)).values()
    pod = pod_spec(daemonset)
    container = container_of(pod)
    settings = agent_settings(container)
    places = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = {each["mountPath"]: places[each["name"]] for each in container["volumeMounts"]}
    for inside, outside in mounts.items():
        assert inside in (outside, settings.root + outside)
    assert f"{settings.root}/sys" in mounts
    assert f"{settings.root}/proc" in mounts
    assert settings.cgroup_root in mounts
    assert settings.kubelet_dir in mounts
    assert settings.state_dir in mounts
    assert socket_path(settings.runtime_endpoint) == socket
    assert os.path.dirname(socket) in mounts


@pytest.mark.parametrize("overlay", ["reconcile", "nri"])
def test_only_the_component_kubelet_configz_allows_requests_to_kubelets(
    overlay: str, tmp_path: Path
) -> None:
    made = kustomization(tmp_path, f"overlays/{overlay}", ("kubelet-configz",))
    with_component = kustomized_folder(made, tmp_path)
    for found, roles, url in (
        (kustomized(overlay, tmp_path), [], ""),
        (with_component, ["topolet-agent-configz"], f"https://{NODE_ADDRESS}:10250/configz"),
    ):
        (daemonset,) = of_kind("DaemonSet", found).values()
        container = container_of(pod_spec(daemonset))
        assert agent_settings(container).kubelet_configz == url
        if url:
            names = [each["name"] for each in container["env"]]
            assert names.index("NODE_IP") < names.index("KUBELET_CONFIGZ"), (
                "a variable may only refer to an earlier one"
            )
        assert [
            name
            for name, role in of_kind("ClusterRole", found).items()
            if ("", "nodes/configz") in rules(role)
        ] == roles


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """All containers with a port, and the component of their pod."""
    for kind in ("DaemonSet", "Deployment"):
        for each in of_kind(kind).values():
            template = each["spec"]["template"]
            for container in template["spec"]["containers"]:
                if container.get("ports") and "args" in container:
                    yield template["metadata"]["labels"]["app.kubernetes.io/component"], container
    yield "agent", pod_of("nri")["containers"][1]


def test_every_port_has_the_addresses_from_which_the_kubelet_probes() -> None:
    for _, container in containers():
        assert f"--node-addresses={NODE_ADDRESS}" in arguments(container)


def test_network_policies_open_each_port_only_to_its_callers() -> None:
    """The webhook's callers are not pods: docs/webhook.md has a policy for it."""
    policies = {
        each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: each["spec"]
        for each in of_kind("NetworkPolicy").values()
    }
    assert set(policies) == {"agent", "scheduler"}
    for component, container in containers():
        if component == "webhook":
            continue
        policy = policies[component]
        assert policy["policyTypes"] == ["Ingress"]
        named = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        for port in container["ports"]:
            assert {port["name"], port["containerPort"]} & named
        for rule in policy["ingress"]:
            assert rule["from"], "an empty list allows all"
    (callers,) = policies["scheduler"]["ingress"][0]["from"]
    labels = of_kind("Deployment")["topolet-kube-scheduler"]["spec"]["template"]["metadata"][
        "labels"
    ]
    assert callers == {"podSelector": {"matchLabels": labels}}


def test_with_the_component_the_webhook_requires_client_certificates(tmp_path: Path) -> None:
    made = kustomization(tmp_path, "overlays/webhook", ("webhook-client-ca",))
    pod = pod_spec(of_kind("Deployment", kustomized_folder(made, tmp_path))["topolet-webhook"])
    (container,) = pod["containers"]
    command, *flags = arguments(container)
    settings = settings_of(flags, SUBCOMMANDS["webhook"].SETTINGS)
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    folder, _, name = settings.client_ca_file.rpartition("/")
    assert name == "ca.crt"
    assert mounted[folder] in {each["name"] for each in pod["volumes"]}
    assert settings.client_names == "topolet-webhook-caller"
    assert (command, settings.webhook_failure_policy) == ("webhook", "Fail")


def test_the_cri_o_drop_in_of_the_proxy_service_has_the_same_socket() -> None:
    """The last value of a unit and its drop-ins counts, and an empty one resets a list."""
    text = (ROOT / "systemd/topolet-proxy.service.d/cri-o.conf").read_text()
    lines = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert lines[0] == ""
    program, command, *flags = lines[1].split()
    assert (program, command) == ("/usr/local/bin/topolet", "proxy")
    settings = settings_of(flags, SUBCOMMANDS["proxy"].SETTINGS)
    assert socket_path(settings.runtime_endpoint) == CRIO
    unit = (ROOT / "systemd/topolet-proxy.service").read_text()
    assert lines[1].replace("/run/crio/crio", "/run/containerd/containerd") in unit


def schema_of(crd: str, version: str) -> dict[str, Any]:
    versions = of_kind("CustomResourceDefinition")[crd]["spec"]["versions"]
    (found,) = (each for each in versions if each["name"] == version)
    schema: dict[str, Any] = found["schema"]["openAPIV3Schema"]
    return schema


NRT = "noderesourcetopologies.topology.node.k8s.io"


@pytest.mark.parametrize("version", list(Version))
def test_the_schema_accepts_the_agents_report(version: Version) -> None:
    zone = Zone(0, {"cpu": Amounts(1500, 1500, 0), "memory": Amounts(1, 1, 1)}, {0: 10}, {"a": "b"})
    value = NodeTopology("n", (zone,), "restricted", "pod", 8, "f", owner=OwnerReference("n", "u"))
    body = resource_topology.encode(value, version)
    assert schema_errors(body, schema_of(NRT, version)) == []
    del body["zones"][0]["resources"][0]["available"]
    assert schema_errors(body, schema_of(NRT, version)) == [".zones[0].resources[0]: no available"]


def test_one_version_is_stored_and_all_are_served() -> None:
    for crd in of_kind("CustomResourceDefinition").values():
        versions = crd["spec"]["versions"]
        assert [each["storage"] for each in versions].count(True) == 1
        assert all(each["served"] for each in versions)
        names = crd["spec"]["names"]
        assert crd["metadata"]["name"] == f"{names['plural']}.{crd['spec']['group']}"
    versions = of_kind("CustomResourceDefinition")[NRT]["spec"]["versions"]
    assert {each["name"]: each["storage"] for each in versions} == {
        "v1alpha1": False,
        "v1alpha2": True,
    }


def keyed(schema: dict[str, Any]) -> dict[str, str]:
    """The keys of the map lists in a schema, by list."""
    found: dict[str, str] = {}
    for name, child in schema.get("properties", {}).items():
        if child.get("x-kubernetes-list-type") == "map":
            (found[name],) = child["x-kubernetes-list-map-keys"]
        found |= keyed(child.get("items", child))
    return found


def test_lists_with_keys_are_compared_by_key() -> None:
    known = {key: value for key, value in cluster.LIST_KEYS.items() if key != "ownerReferences"}
    assert keyed(schema_of(NRT, "v1alpha2")) == known


def test_the_schema_accepts_devices() -> None:
    device = Device(
        "gpu",
        "u",
        0,
        {"koordinator.sh/gpu-memory": 1 << 34},
        module=1,
        topology=DeviceTopology(0, 0, "p", "b"),
        conditions=(Condition("Healthy", "False", "Xid79", "", "2026-01-01T00:00:00Z"),),
        vf_groups=(VfGroup({"a": "b"}, (VirtualFunction(-1, "b"),)),),
        labels={"a": "b"},
    )
    body = device_object.encode("n", (device,), {"a": "b"})
    schema = schema_of("devices.scheduling.koordinator.sh", "v1alpha1")
    assert schema_errors(body, schema) == []
    body["spec"]["devices"][0]["topology"]["pcieID"] = 3
    assert schema_errors(body, schema) == [".spec.devices[0].topology.pcieID: 3 is not a string"]


@pytest.mark.parametrize("overlay", ["webhook", "scheduler"])
def test_the_manifest_reader_of_the_tests_equals_kustomize(overlay: str, tmp_path: Path) -> None:
    """For all objects except the patched ones."""
    patched = ("DaemonSet", "ValidatingAdmissionPolicyBinding", "Deployment")
    by_kustomize, by_reader = (
        {
            (each["kind"], each["metadata"]["name"]): each
            for each in found
            if each["kind"] not in patched
        }
        for found in (kustomized(overlay, tmp_path), objects(f"overlays/{overlay}"))
    )
    assert by_kustomize == by_reader


@pytest.mark.parametrize("overlay", ["webhook", "scheduler-evict"])
def test_all_objects_use_another_namespace_if_configured(overlay: str, tmp_path: Path) -> None:
    folder = kustomization(tmp_path, f"overlays/{overlay}", namespace="elsewhere")
    text = yaml.safe_dump_all(kustomized_folder(folder, tmp_path))
    assert "topolet-system" not in text
    assert "$(TOPOLET" not in text
    for name in ("topolet-agent", "topolet-scheduler"):
        assert f"system:serviceaccount:elsewhere:{name}" in text


def test_the_kustomization_of_the_installation_adds_an_account(tmp_path: Path) -> None:
    page = (ROOT / "docs/install.md").read_text()
    found = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (example,) = (each for each in found if "kind: Kustomization" in each)
    folder = tmp_path / "mine"
    folder.mkdir()
    base = os.path.relpath(DEPLOY, folder.resolve())
    text = example.replace("topolet/deploy/", f"{base}/").replace(
        "namespace: topolet-system\nresources", "namespace: elsewhere\nresources"
    )
    (folder / "kustomization.yaml").write_text(text)
    policies = of_kind("ValidatingAdmissionPolicy", kustomized_folder(folder, tmp_path))
    for name in ("topolet-allocations", "topolet-binding-allocations"):
        lists = policies[name]["spec"]["variables"]
        (trusted,) = (each for each in lists if each["name"] == "trusted")
        (lines,) = re.findall(r"r'''(.*?)'''", trusted["expression"], re.DOTALL)
        assert lines.split() == [
            account("elsewhere", "topolet-scheduler"),
            account("koordinator-system", "koord-scheduler"),
        ]


def test_with_the_webhook_the_policy_that_cannot_read_pods_only_warns(tmp_path: Path) -> None:
    found = kustomized("webhook", tmp_path)
    assert len(found) == len(objects("overlays/webhook"))
    actions = {
        name: binding["spec"]["validationActions"]
        for name, binding in of_kind("ValidatingAdmissionPolicyBinding", found).items()
    }
    assert actions.pop("topolet-gpu-binders") == ["Audit"]
    assert {name for name, each in actions.items() if each != ["Deny"]} == set(WARN)
