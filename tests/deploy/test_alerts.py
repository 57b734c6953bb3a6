"""The alert rules and the dashboard: each alert fires only with its fault (promtool), and each
query reads existing metrics."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.chart import CHART, rendered
from tests.deploy.manifests import ROOT, of_kind
from tests.fixtures.prometheus import program

RULES = CHART / "files/alerts.yaml"
RECORDS = CHART / "files/usage-rules.yaml"
DASHBOARD = CHART / "files/dashboard.json"
ALERTS: dict[str, dict[str, Any]] = {
    each["alert"]: each
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for each in group["rules"]
}
HOOK = 'hook="CreateContainer", qos_class="LS", reason="timeout", instance="n"'
SANDBOX = 'hook="RunPodSandbox", qos_class="LS", reason="timeout", instance="n"'
PRIVILEGED = 'hook="CreateContainer", qos_class="devices", reason="privileged", instance="n"'
FILTERED = 'topolet_scheduler_requests_total{job="s", verb="filter"}'
BEFORE_A_FAULT = "_x11"
"""A series that does not exist in the first minutes, as that of a counter without failures."""

# By alert: series with which it fires, and similar series with which it does not fire.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "TopoletProcessDown": (
        {'up{job="topolet-system/topolet"}': "1 0x40"},
        {'up{job="node-exporter"}': "0x40", 'up{job="topolet-proxy"}': "1x40"},
    ),
    "TopoletAgentNotReady": ({"topolet_ready": "1 0x40"}, {"topolet_ready": "1 0 1x40"}),
    "TopoletProxyNotReady": (
        {"topolet_proxy_ready": "1 0x40"},
        {"topolet_proxy_ready": "1x40"},
    ),
    "TopoletNRIGuardNotReady": (
        {"topolet_nri_guard_ready": "0x40"},
        {"topolet_nri_guard_ready": "1x40"},
    ),
    "TopoletNRIGuardRefuses": (
        {"topolet_nri_guard_refused_containers_total": "0x10 1x30"},
        {"topolet_nri_guard_refused_containers_total": "3x40"},
    ),
    "TopoletNRIPluginNotReady": ({"topolet_nri_ready": "0x40"}, {"topolet_nri_ready": "1x40"}),
    "TopoletNoLeader": (
        {f'topolet_scheduler_leader{{job="s", instance="{each}"}}': "0x40" for each in "ab"},
        {
            'topolet_scheduler_leader{job="s", instance="a"}': "0x40",
            'topolet_scheduler_leader{job="s", instance="b"}': "1x40",
        },
    ),
    "TopoletNodeWithoutAgent": (
        {'topolet_scheduler_node_without_agent{node="a", reason="no-agent"}': "1x40"},
        {'topolet_scheduler_node_without_agent{node="a", reason="no-report"}': "1x4 stale"},
    ),
    "TopoletExtenderNotCalled": (
        {'topolet_scheduler_untried_pods{job="s"}': "1x40", FILTERED: "7x40"},
        {'topolet_scheduler_untried_pods{job="s"}': "1x40", FILTERED: "0+1x40"},
    ),
    "TopoletWatchStale": (
        {'topolet_watch_age_seconds{resource="pods"}': "0+60x40"},
        {'topolet_scheduler_watch_age_seconds{resource="nodes"}': "60x40"},
    ),
    "TopoletClusterUnreachable": (
        {"topolet_cluster_problems": "1x40"},
        {"topolet_cluster_problems": "0x40"},
    ),
    "TopoletSourceUnreadable": (
        {'topolet_source_problems{source="journal"}': "1x40"},
        {
            'topolet_source_problems{source="journal"}': "0x40",
            'topolet_source_problems{source="colocation"}': "1x40",
            'topolet_source_problems{source="quiet"}': "1x40",
        },
    ),
    "TopoletCPUOverlap": (
        {
            "topolet_overlapping_containers": "0x40",
            "topolet_cpu_overlaps_total": "0+5x40",
            'topolet_foreign_changes_total{kind="cpus"}': "0+5x40",
        },
        {
            "topolet_overlapping_containers": "0 1 0x40",
            "topolet_cpu_overlaps_total": "0+5x40",
            'topolet_foreign_changes_total{kind="cpus"}': "0x40",
        },
    ),
    "TopoletContainerOnOtherCPUs": (
        {'topolet_containers_with_other_cpus{source="checkpoint"}': "1x40"},
        {'topolet_containers_with_other_cpus{source="checkpoint"}': "0x40"},
    ),
    "TopoletClaimRefused": (
        {'topolet_refused_claims{namespace="a", pod="b", reason="owned"}': "1x40"},
        {'topolet_exclusive_cpus{namespace="a", pod="b"}': "2x40"},
    ),
    "TopoletPodWithoutCPUs": (
        {"topolet_pods_without_allocated_cpus": "1x40"},
        {"topolet_pods_without_allocated_cpus": "0x40"},
    ),
    "TopoletHookFailedOpen": (
        {f"topolet_nri_failed_open_total{{{HOOK}}}": f"{BEFORE_A_FAULT} 1x30"},
        {
            f"topolet_proxy_failed_open_total{{{SANDBOX}}}": "0+1x40",
            f"topolet_proxy_failed_open_total{{{PRIVILEGED}}}": "0+1x40",
            f"topolet_hook_server_failed_open_total{{{HOOK}}}": "7x40",
        },
    ),
    "TopoletHookFailed": (
        {f"topolet_proxy_failed_total{{{HOOK}}}": "0+1x40"},
        {f"topolet_proxy_failed_total{{{HOOK}}}": "7x40"},
    ),
    "TopoletOtherWriterOfCPUs": (
        {'topolet_nri_conflicts_total{kind="changed", plugin="50-pin"}': f"{BEFORE_A_FAULT} 1x30"},
        {
            'topolet_nri_conflicts_total{kind="changed", plugin="50-pin"}': "3x40",
            'topolet_foreign_changes_total{kind="cpus"}': "0+1x40",
            'topolet_foreign_changes_total{kind="Device"}': "0+9x40",
        },
    ),
    "TopoletDeviceUnhealthy": (
        {'topolet_device_healthy{type="gpu", id="GPU-1"}': "0x40"},
        {'topolet_device_healthy{type="gpu", id="GPU-1"}': "1x40"},
    ),
    "TopoletGPUDriverFault": (
        {'topolet_gpu_missing{pci_bus_id="0000:07:00.0"}': "1x40"},
        {'topolet_device_healthy{type="gpu", id="GPU-1"}': "1x40"},
    ),
    "TopoletColocationUnsupported": (
        {'topolet_colocation_unsupported{feature="memory-qos"}': "1x40"},
        {'topolet_colocation_unsupported{feature="memory-qos"}': "1x5 stale"},
    ),
    "TopoletColocationNotWritten": (
        {"topolet_colocation_failed_files": "3x40"},
        {"topolet_colocation_failed_files": "3 0x40"},
    ),
    "TopoletQuietUnsupported": (
        {'topolet_quiet_unsupported{feature="c-states"}': "1x40"},
        {'topolet_quiet_unsupported{feature="c-states"}': "1x5 stale"},
    ),
    "TopoletQuietNotWritten": (
        {"topolet_quiet_failed_files": "3x40"},
        {"topolet_quiet_failed_files": "3 0x40"},
    ),
    "TopoletBatchStarved": (
        {"topolet_colocation_be_at_minimum": "1x40"},
        {"topolet_colocation_be_at_minimum": "1x8 0 1x40"},
    ),
    "TopoletMemoryNotReclaimed": (
        {"topolet_colocation_above_mark_bytes": "9x40"},
        {"topolet_colocation_above_mark_bytes": "9x8 0 9x40"},
    ),
    "TopoletEvictionsRefused": (
        {
            'topolet_eviction_candidates{feature="BEMemoryEvict"}': "3x40",
            'topolet_refused_evictions_total{feature="BEMemoryEvict"}': "0+1x40",
        },
        {
            'topolet_eviction_candidates{feature="BEMemoryEvict"}': "3x40",
            'topolet_refused_evictions_total{feature="CPUEvict"}': "0+1x40",
        },
    ),
    "TopoletEvictsOften": (
        {'topolet_evicted_pods_total{feature="BEMemoryEvict"}': "0+1x40"},
        {'topolet_evicted_pods_total{feature="BEMemoryEvict"}': "7x40"},
    ),
}
AT_MINUTES = 16


def declared() -> set[str]:
    """The metrics of docs/monitoring.md, which `docs/reference.py --check` compares with the
    code."""
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    ends = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    return {f"{name}{end}" for name, kind in rows for end in ends.get(kind, ("",))}


def metrics_of(query: str) -> set[str]:
    """The metrics of a query; a pattern (`__name__=~`) stands for the matching names."""
    patterns = re.findall(r'__name__=~"([^"]+)"', query)
    matched = {name for name in declared() for each in patterns if re.fullmatch(each, name)}
    assert len(matched) >= len(set(patterns)), query
    bare = re.sub(r'"[^"]*"', '""', query)
    return matched | set(re.findall(r"\b(?:topolet|process)_\w+", bare))


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def promtool(*words: str | Path) -> str:
    done = subprocess.run(
        [program("promtool"), *map(str, words)], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_alert_has_a_case_that_it_fires_on() -> None:
    assert set(CASES) == set(ALERTS)


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", RULES)


def test_promtool_accepts_the_job_for_proxies_in_the_documents(tmp_path: Path) -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    whole = yaml.safe_load(block)
    (job,) = whole["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "node"}], "Debian's does not know it"
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(whole))
    promtool("check", "config", file)
    assert "topolet" in job["job_name"]
    assert job["honor_labels"]


@pytest.mark.parametrize("alert", sorted(CASES))
def test_an_alert_fires_only_with_its_fault(alert: str, tmp_path: Path) -> None:
    firing, quiet = CASES[alert]
    evaluate(alert, ((firing, True), (quiet, False)), tmp_path)


POD = 'namespace="n", pod="p"'
REQUESTS: Final = "kube_pod_container_resource_requests"
# By recorded series: the series that it is made of, and its value after AT_MINUTES.
RECORDED: Final[dict[str, tuple[dict[str, str], float]]] = {
    f"namespace_pod:topolet_pod_used_cpus:ratio_requests{{{POD}}}": (
        {
            f'topolet_pod_used_cpus{{{POD}, instance="a"}}': "1.5x40",
            f'{REQUESTS}{{{POD}, container="a", resource="cpu", node="a"}}': "2x40",
            f'{REQUESTS}{{{POD}, container="b", resource="cpu", node="a"}}': "1x40",
            f'{REQUESTS}{{{POD}, container="b", resource="memory", node="a"}}': "9x40",
        },
        0.5,
    ),
    f"namespace_pod:topolet_pod_used_memory_bytes:ratio_requests{{{POD}}}": (
        {
            f'topolet_pod_used_memory_bytes{{{POD}, instance="a"}}': "512x40",
            f'{REQUESTS}{{{POD}, container="a", resource="memory", node="a"}}': "1024x40",
        },
        0.5,
    ),
    "namespace_pod_container:topolet_pod_cpu_throttled_periods:ratio_rate5m"
    f'{{{POD}, container="c"}}': (
        {
            f'topolet_pod_cpu_throttled_periods_total{{{POD}, container="c"}}': "0+150x40",
            f'topolet_pod_cpu_quota_periods_total{{{POD}, container="c"}}': "0+600x40",
            f'topolet_pod_cpu_quota_periods_total{{{POD}, container="idle"}}': "7x40",
            f'topolet_pod_cpu_throttled_periods_total{{{POD}, container="idle"}}': "7x40",
        },
        0.25,
    ),
    f"namespace_pod:topolet_pod_cpu_throttled_seconds:rate5m{{{POD}}}": (
        {
            f'topolet_pod_cpu_throttled_seconds_total{{{POD}, container="c"}}': "0+60x40",
            f'topolet_pod_cpu_throttled_seconds_total{{{POD}, container=""}}': "0+30x40",
        },
        1.5,
    ),
    "namespace_pod_resource:topolet_pod_pressure_stalled_seconds:rate5m"
    f'{{{POD}, resource="cpu"}}': (
        {
            f'topolet_pod_pressure_stalled_seconds_total{{{POD}, resource="cpu", kind="{kind}"}}': (
                f"0+{seconds}x40"
            )
            for kind, seconds in (("some", 15), ("full", 6))
        },
        0.25,
    ),
    'instance_resource:topolet_node_pressure_stalled_seconds:rate5m{instance="a", resource="io"}': (
        {
            "topolet_node_pressure_stalled_seconds_total"
            '{instance="a", resource="io", kind="some"}': "0+30x40"
        },
        0.5,
    ),
    'instance_unit:topolet_host_unit_cpu_seconds:rate5m{instance="a", unit="b.service"}': (
        {'topolet_host_unit_cpu_seconds_total{instance="a", unit="b.service"}': "0+120x40"},
        2.0,
    ),
    'instance_pool:topolet_pool_used_cpus:ratio{instance="a", pool="ls"}': (
        {
            f'topolet_pool_{name}{{instance="a", pool="ls", numa_node="{node}"}}': f"{cpus}x40"
            for node in (0, 1)
            for name, cpus in (("used_cpus", 1 + node), ("cpus", 3))
        },
        0.5,
    ),
    'instance:topolet_exclusive_used_cpus:ratio{instance="a"}': (
        {
            f'topolet_exclusive_used_cpus{{{POD}, instance="a", qos_class="LSE"}}': "1x40",
            f'topolet_exclusive_cpus{{{POD}, instance="a", qos_class="LSE"}}': "4x40",
        },
        0.25,
    ),
}


def test_every_recorded_series_has_a_case_of_metrics_that_exist() -> None:
    promtool("check", "rules", RECORDS)
    (group,) = yaml.safe_load(RECORDS.read_text())["groups"]
    assert {rule["record"] for rule in group["rules"]} == {
        name.partition("{")[0] for name in RECORDED
    }
    for rule in group["rules"]:
        assert metrics_of(rule["expr"]) <= declared()


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_series_has_its_value(name: str, tmp_path: Path) -> None:
    series, value = RECORDED[name]
    expected = {
        "expr": name.partition("{")[0],
        "eval_time": f"{AT_MINUTES}m",
        "exp_samples": [{"labels": name, "value": value}],
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [expected],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RECORDS)], "tests": [test]}))
    promtool("test", "rules", path)


def test_a_scheduler_without_processes_has_no_leader(tmp_path: Path) -> None:
    """Prometheus has neither a target nor a series of the scheduler."""
    ended = {'topolet_scheduler_leader{job="s", instance="a"}': "1x10 stale"}
    other = {'topolet_agent{job="s"}': "1x40"}
    evaluate("TopoletNoLeader", ((ended, True), (other, False)), tmp_path)


KUBE_NODE: Final = 'kube_node_info{node="a", os_image="Debian"}'
KUBE_AGENT: Final = {
    KUBE_NODE: "1x40",
    'kube_pod_info{namespace="n", pod="topolet-agent-x2x", node="a"}': "1x40",
}
KUBE_READY: Final = (
    'kube_pod_status_ready{namespace="n", pod="topolet-agent-x2x", condition="true"}'
)


@pytest.mark.parametrize(
    ("series", "fires"),
    [
        ({KUBE_NODE: "1x40"}, True),
        ({'kube_node_info{node="a", os_image="Windows Server 2022"}': "1x40"}, False),
        ({**KUBE_AGENT, KUBE_READY: "0x40"}, True),
        ({**KUBE_AGENT, KUBE_READY: "1x40"}, False),
        ({'kube_node_info{node="b"}': "1x40", **KUBE_AGENT, KUBE_READY: "1x40"}, True),
    ],
)
def test_a_node_without_an_agent_by_kube_state_metrics(
    series: dict[str, str], fires: bool, tmp_path: Path
) -> None:
    evaluate("TopoletNodeWithoutAgent", ((series, fires),), tmp_path)


def test_containers_on_cpus_of_others_are_an_overlap(tmp_path: Path) -> None:
    evaluate("TopoletCPUOverlap", (({"topolet_overlapping_containers": "1x40"}, True),), tmp_path)


def test_a_program_that_keeps_changing_cgroups_is_another_writer(tmp_path: Path) -> None:
    changes = {'topolet_foreign_changes_total{kind="limit"}': "0+5x40"}
    evaluate("TopoletOtherWriterOfCPUs", ((changes, True),), tmp_path)


def evaluate(alert: str, cases: Sequence[tuple[dict[str, str], bool]], folder: Path) -> None:
    """`cases`: series, and whether the alert fires."""
    tests = []
    found = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
    for series, expected in cases:
        tests.append(
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"count({found}) > bool 0 or vector(0)",
                        "eval_time": f"{AT_MINUTES}m",
                        "exp_samples": [{"labels": "{}", "value": int(expected)}],
                    }
                ],
            }
        )
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    promtool("test", "rules", path)


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_the_runbook_url_of_an_alert_is_its_section(alert: str) -> None:
    url = ALERTS[alert]["annotations"]["runbook_url"]
    page, _, anchor = url.partition("#")
    assert anchor == alert.lower()
    assert f"\n### {alert}\n" in (ROOT / page).read_text()
    assert ALERTS[alert]["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_reads_metrics_that_exist(alert: str) -> None:
    assert metrics_of(ALERTS[alert]["expr"]) <= declared()
    assert set(CASES[alert][0])


@pytest.mark.parametrize("query", queries())
def test_the_dashboard_shows_metrics_that_exist(query: str) -> None:
    found = metrics_of(query)
    assert found - {"process_resident_memory_bytes"} <= declared()
    assert found


def test_the_chart_has_rules_and_dashboard_if_configured(tmp_path: Path) -> None:
    values = {
        "alerts": {"enabled": True, "runbooks": "https://x/alerts", "labels": {"release": "p"}},
        "dashboard": {"enabled": True},
    }
    found = rendered(tmp_path, values)
    (rule,) = of_kind("PrometheusRule", found).values()
    assert rule["metadata"]["labels"]["release"] == "p"
    (group,) = rule["spec"]["groups"]
    assert {each["alert"]: each["expr"] for each in group["rules"]} == {
        name: each["expr"] for name, each in ALERTS.items()
    }
    for each in group["rules"]:
        assert each["annotations"]["runbook_url"] == f"https://x/alerts#{each['alert'].lower()}"
        assert each["annotations"]["summary"] == ALERTS[each["alert"]]["annotations"]["summary"]
    board = of_kind("ConfigMap", found)["topolet-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"]["topolet.json"].strip() == DASHBOARD.read_text().strip()
    recorded = rendered(tmp_path, {"usageRules": {"enabled": True}})
    (rule,) = of_kind("PrometheusRule", recorded).values()
    assert rule["spec"] == yaml.safe_load(RECORDS.read_text())
    assert not of_kind("PrometheusRule", rendered(tmp_path, {}))
