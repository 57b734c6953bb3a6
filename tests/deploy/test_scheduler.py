"""The scheduler's overlays: values that must be equal in several files."""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

import yaml

from agent.http.certificates import in_folder
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_SPEC, RESOURCE_STATUS
from agent.model.settings.scheduler import LEASE_NAME, ExplainSettings, SchedulerSettings
from agent.node.cluster_view import EVENT_CONTROLLER
from agent.scheduler.explain import endpoint
from agent.scheduler.extender import extender
from agent.scheduler.leader import gate as label
from agent.scheduler.preemption.evictor import DISRUPTION_TARGET
from agent.scheduler.process import CONTROLLER
from agent.scheduler.rules import agent_selector
from agent.scheduler.state.records import CLAIM_REFUSED
from agent.scheduler.unschedulable.retry import ROOM_FOUND
from tests.deploy.manifests import (
    SCHEDULER,
    Object,
    kustomized,
    matched,
    objects,
    of_kind,
    pod_spec,
    rules,
    settings_of,
    variables,
    written,
)

# The default of kube-scheduler 1.36 with all feature gates. The highest score of a plugin is 100
# times its weight.
PLUGIN_WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "VolumeBinding": 1,
    "ImageLocality": 1,
}


def pod_of(name: str) -> Object:
    return pod_spec(of_kind("Deployment")[name])


def settings() -> SchedulerSettings:
    """The settings of the Deployment's flags."""
    (container,) = pod_of("topolet-scheduler")["containers"]
    command, *flags = container["args"]
    assert command == "scheduler"
    return settings_of(flags, SchedulerSettings)


def configuration() -> Object:
    found: Object = yaml.safe_load(
        of_kind("ConfigMap")["topolet-kube-scheduler"]["data"]["kube-scheduler.yaml"]
    )
    return found


def test_the_explain_role_allows_only_the_pages_of_the_leader() -> None:
    defaults = ExplainSettings()
    name, _, port_name = endpoint.SERVICE.partition(":")
    service = of_kind("Service")[name]
    assert service["metadata"]["namespace"] == defaults.release_namespace
    port = next(each for each in service["spec"]["ports"] if each["name"] == port_name)
    assert settings().http.endswith(f":{port['port']}")
    role = of_kind("Role")["topolet-scheduler-explain"]
    assert role["metadata"]["namespace"] == defaults.release_namespace
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": [endpoint.SERVICE],
            "verbs": ["create"],
        },
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [LEASE_NAME],
            "verbs": ["get"],
        },
    ]
    bindings = of_kind("RoleBinding").values()
    assert all(each["roleRef"]["name"] != "topolet-scheduler-explain" for each in bindings)


def test_kube_schedulers_extender_url_is_that_of_the_extender() -> None:
    (configured,) = configuration()["extenders"]
    url = urllib.parse.urlsplit(configured["urlPrefix"])
    assert (url.scheme, url.path, configured["enableHTTPS"]) == ("https", "", True)
    assert url.hostname is not None
    name, namespace, _ = url.hostname.split(".")
    service = of_kind("Service")[name]
    assert service["metadata"]["namespace"] == namespace
    port = next(each for each in service["spec"]["ports"] if each["name"] == "extender")
    assert port["port"] == url.port
    template = of_kind("Deployment")["topolet-scheduler"]["spec"]["template"]
    leader = {label.LABEL: label.VALUE}
    selected = {**template["metadata"]["labels"], **leader}
    assert selected.items() >= service["spec"]["selector"].items() >= leader.items()
    (container,) = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    ours = settings()
    assert ours.https == f"0.0.0.0:{ports[port['targetPort']]}"
    assert ours.http == f"0.0.0.0:{ports['http']}"
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert ours.client_names == url.hostname, "the certificate is for the Service's name"
    verbs = [configured[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt", "bind")]
    assert tuple(verbs) == extender.VERBS


def test_role_and_policy_allow_the_leader_to_label_its_pod() -> None:
    assert pod_of("topolet-scheduler")["automountServiceAccountToken"], "its token names the pod"
    assert "patch" in rules(of_kind("ClusterRole")["topolet-scheduler"])["", "pods"]
    policy = of_kind("ValidatingAdmissionPolicy")["topolet-scheduler-pods"]["spec"]
    assert policy["matchConditions"][0]["expression"].endswith(f"'{SCHEDULER}'")
    assert f"'{label.LABEL}' && variables.own" in policy["validations"][0]["expression"]
    own = next(each for each in policy["variables"] if each["name"] == "own")
    assert own["expression"].startswith(f"request.namespace == '{settings().release_namespace}'")


def test_policies_restrict_all_that_the_scheduler_writes() -> None:
    """The status of a RebindResource is its own as a whole."""
    roles = of_kind("ClusterRole")
    changed = written(roles["topolet-scheduler"]) | written(roles["topolet-scheduler-evict"])
    policies = [
        policy
        for policy in of_kind("ValidatingAdmissionPolicy").values()
        if SCHEDULER in policy["spec"].get("matchConditions", [{}])[0].get("expression", "")
    ]
    own = {("scheduling.koordinator.sh", "rebindresources/status")}
    assert changed - matched(policies) == own


def test_policies_permit_what_the_scheduler_writes_to_pods() -> None:
    policies = of_kind("ValidatingAdmissionPolicy")

    def lists(policy: str) -> list[set[str]]:
        texts = [
            each["expression"]
            for part in ("variables", "validations")
            for each in policies[policy]["spec"].get(part, ())
        ]
        found = [each for text in texts for each in re.findall(r"in \[([^\]]*)\]", text)]
        return [set(re.findall("'([^']*)'", each)) for each in found]

    annotations = {RESOURCE_STATUS, DEVICE_ALLOCATED, RESOURCE_SPEC}
    conditions = {ROOM_FOUND, CLAIM_REFUSED, DISRUPTION_TARGET}
    assert lists("topolet-scheduler-pods") == [
        {"conditions", "nominatedNodeName"},
        conditions,
        annotations,
    ]
    zones = {"topology.kubernetes.io/zone", "topology.kubernetes.io/region"}
    assert lists("topolet-scheduler-bindings") == [zones, annotations]
    events = str(policies["topolet-own-events"]["spec"])
    assert f"'{EVENT_CONTROLLER}' : '{CONTROLLER}'" in events


def test_the_lease_identity_is_in_an_empty_dir_of_the_pod() -> None:
    pod = pod_of("topolet-scheduler")
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if not each.get("readOnly"))
    assert mount["mountPath"] == settings().state_dir
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    assert volume.keys() == {"name", "emptyDir"}


def test_a_rollout_waits_for_a_ready_standby() -> None:
    strategy = of_kind("Deployment")["topolet-scheduler"]["spec"]["strategy"]
    assert strategy == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_scheduler_and_kube_scheduler_mount_the_files_of_their_configuration() -> None:
    ours, tls = settings(), configuration()["extenders"][0]["tlsConfig"]
    named = {
        "topolet-scheduler": [*in_folder(ours.tls_dir), ours.client_ca_file],
        "topolet-kube-scheduler": [tls["certFile"], tls["keyFile"], tls["caFile"]],
    }
    for name, paths in named.items():
        pod = pod_of(name)
        (container,) = pod["containers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        keys = ("tls.crt", "tls.key", "ca.crt")
        assert paths == [f"{mounts['tls']}/{key}" for key in keys]
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == "topolet-scheduler-tls"
    pod = pod_of("topolet-kube-scheduler")
    (container,) = pod["containers"]
    assert "--config=/etc/topolet/kube-scheduler/kube-scheduler.yaml" in container["command"]


def test_the_agent_selector_selects_the_daemonset() -> None:
    (agents,) = of_kind("DaemonSet").values()
    found = agent_selector(settings())
    labels = agents["spec"]["template"]["metadata"]["labels"]
    assert found.include(agents["metadata"]["namespace"], labels)
    assert not found.include("default", labels)


def test_the_extender_is_called_for_every_pod_of_the_profile() -> None:
    (configured,) = configuration()["extenders"]
    assert "managedResources" not in configured
    assert configured["nodeCacheCapable"] is True
    assert configured["ignorable"] is False
    (profile,) = configuration()["profiles"]
    assert profile["schedulerName"] == settings().scheduler_name
    assert variables()["TOPOLET_SCHEDULER_NAME"] == profile["schedulerName"]


def test_the_extenders_score_outweighs_all_plugins() -> None:
    """The highest score of an extender is 10; a point counts 10 times its weight."""
    found = configuration()
    assert found["percentageOfNodesToScore"] == 100
    assert found["extenders"][0]["weight"] * 10 > sum(PLUGIN_WEIGHTS.values()) * 100


def test_the_two_leases_are_different() -> None:
    ours, election = settings(), configuration()["leaderElection"]
    leases = {
        "topolet-scheduler-lease": (ours.release_namespace, LEASE_NAME),
        "topolet-kube-scheduler-lease": (election["resourceNamespace"], election["resourceName"]),
    }
    assert len(set(leases.values())) == 2
    for name, lease in leases.items():
        role = of_kind("Role")[name]
        make, hold, *_ = role["rules"]
        assert (role["metadata"]["namespace"], *hold["resourceNames"]) == lease
        assert set(hold["verbs"]) == {"get", "update"}
        assert make["verbs"] == ["create"]


def test_the_schedulers_role_has_exactly_the_used_verbs() -> None:
    roles = of_kind("ClusterRole")
    assert rules(roles["topolet-scheduler"]) == {
        ("", "pods"): {"get", "list", "watch", "patch"},
        ("", "nodes"): {"list", "watch"},
        ("", "namespaces"): {"list", "watch"},
        ("topology.node.k8s.io", "noderesourcetopologies"): {"list", "watch"},
        ("scheduling.koordinator.sh", "devices"): {"list", "watch"},
        ("scheduling.koordinator.sh", "reservations"): {"list", "watch"},
        ("scheduling.koordinator.sh", "rebindresources"): {"list", "watch"},
        ("scheduling.koordinator.sh", "rebindresources/status"): {"patch"},
        ("policy", "poddisruptionbudgets"): {"list", "watch"},
        ("", "pods/binding"): {"create"},
        ("", "pods/status"): {"patch"},
        ("events.k8s.io", "events"): {"create", "patch"},
    }
    assert rules(roles["topolet-scheduler-evict"]) == {("", "pods/eviction"): {"create"}}


def test_the_role_for_evictions_exists_only_in_the_evict_overlay(tmp_path: Path) -> None:
    for overlay, may_evict in (("scheduler", False), ("scheduler-evict", True)):
        found = kustomized(overlay, tmp_path)
        assert len(found) == len(objects(f"overlays/{overlay}"))
        assert ("topolet-scheduler-evict" in of_kind("ClusterRole", found)) is may_evict
        deployments = of_kind("Deployment", found)
        _, *flags = pod_spec(deployments["topolet-scheduler"])["containers"][0]["args"]
        assert settings_of(flags, SchedulerSettings).evict is may_evict
        (container,) = pod_spec(deployments["topolet-kube-scheduler"])["containers"]
        image, _, tag = container["image"].rpartition(":")
        assert image.endswith("/kube-scheduler")
        assert tag.startswith("v1.")
