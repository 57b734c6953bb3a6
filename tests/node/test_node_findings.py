from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.kubelet.configuration import KubeletConfiguration
from agent.model.devices.visibility import NodeDevice, NodeVisibility
from agent.model.dra.prepared_claim import ClaimContainer, PreparedClaim
from agent.model.snapshot import CpuPolicy, Snapshot
from agent.node import node_findings
from agent.node.node_findings import (
    REMEDIES,
    WARNINGS,
    KubeletStatus,
    NodeCode,
    driver_of,
    found,
    not_permitted,
    of_agent,
    of_free_bytes,
    of_groups,
    of_kubelet,
    of_nri,
    of_plugins,
    of_programs,
)
from agent.node.own_processes import MetricSeries, ProcessPage
from agent.view.dra import ShownClaim, ShownDra

PROXY = "/run/topolet/cri.sock"
CARD = NodeDevice("GPU-11111111-2222-3333-4444-555555555555")


def configured(policy: str = "none", memory: str = "None", endpoint: str = "") -> KubeletStatus:
    values = KubeletConfiguration(
        "kubelet 1",
        cpu_manager_policy=policy,
        memory_manager_policy=memory,
        runtime_endpoint=endpoint,
    )
    return KubeletStatus("kubelet", values)


def snapshot(*, static: bool = False, policy: CpuPolicy = "none") -> Snapshot:
    return Snapshot(1, 1, "boot", static, {}, (), {}, {}, cpu_policy=policy)


def with_states(kubelet: KubeletStatus, cpu: str = "", memory: str = "") -> KubeletStatus:
    return KubeletStatus(
        kubelet.program, kubelet.configuration, kubelet.unread, cpu, memory, kubelet.registered
    )


def test_every_finding_about_the_node_has_a_remedy_and_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    assert set(REMEDIES) == set(NodeCode)
    for code in NodeCode:
        assert f"| `{code}` |" in page


def test_findings_are_in_the_order_of_their_codes_and_have_a_severity() -> None:
    findings = found({NodeCode.DRA_CPUS: "b", NodeCode.RUNTIME: "a"})
    assert [(each.code, each.severity) for each in findings] == [
        (NodeCode.RUNTIME, "error"),
        (NodeCode.DRA_CPUS, "warning"),
    ]
    assert set(NodeCode) > WARNINGS


@pytest.mark.parametrize(
    ("kubelet", "decided", "proxy"),
    [
        (configured(), snapshot(), ""),
        (configured("static"), snapshot(static=True), ""),
        (with_states(configured("static", "Static"), "static", "Static"), snapshot(), ""),
        (configured(), snapshot(policy="static"), ""),
        (configured(endpoint=f"unix://{PROXY}"), snapshot(), PROXY),
        (configured(endpoint=f"unix:///var{PROXY}"), None, PROXY),
        (KubeletStatus(), snapshot(), ""),
    ],
)
def test_a_kubelet_that_suits_the_agent(
    kubelet: KubeletStatus, decided: Snapshot | None, proxy: str
) -> None:
    assert of_kubelet(kubelet, decided, proxy) == {}


@pytest.mark.parametrize(
    ("kubelet", "decided", "code", "text"),
    [
        (
            with_states(configured(), cpu="static"),
            None,
            NodeCode.KUBELET_POLICY,
            "its cpuManagerPolicy is none, and its state file has the policy static",
        ),
        (
            with_states(configured(memory="Static"), memory="None"),
            None,
            NodeCode.KUBELET_POLICY,
            "its memoryManagerPolicy is Static, and its state file has the policy None",
        ),
        (
            configured("static"),
            snapshot(policy="dynamic"),
            NodeCode.AGENT_POLICY,
            "the agent's cpu-policy is dynamic",
        ),
        (configured(), snapshot(static=True), NodeCode.AGENT_POLICY, "cpuManagerPolicy is none"),
        (with_states(KubeletStatus(), cpu="none"), None, NodeCode.KUBELET_ABSENT, "no kubelet"),
        (
            KubeletStatus("", None, ("several run",), "none"),
            None,
            NodeCode.KUBELET_CONFIGURATION,
            "several run",
        ),
    ],
)
def test_a_kubelet_that_does_not_suit(
    kubelet: KubeletStatus, decided: Snapshot | None, code: NodeCode, text: str
) -> None:
    findings = of_kubelet(kubelet, decided, "")
    assert list(findings) == [code]
    assert text in findings[code]


def test_a_kubelet_that_does_not_use_the_proxy() -> None:
    text = "the kubelet uses unix:///run/containerd/containerd.sock"
    assert text in of_kubelet(configured(), None, PROXY)[NodeCode.BYPASSED]
    unread = KubeletStatus("kubelet", None, ("/etc/kubelet: No such file",))
    findings = of_kubelet(unread, snapshot(static=True), PROXY)
    assert list(findings) == [NodeCode.KUBELET_CONFIGURATION], "what it uses is not known"
    assert "/etc/kubelet: No such file" in findings[NodeCode.KUBELET_CONFIGURATION]


def test_k3s_has_its_own_runtime() -> None:
    values = KubeletConfiguration("k3s 1")
    endpoint = KubeletStatus("k3s", values).runtime_endpoint
    assert endpoint == "unix:///run/k3s/containerd/containerd.sock"
    assert KubeletStatus("k3s").runtime_endpoint is None


def test_groups_show_a_runtime_with_another_cgroup_driver_than_the_kubelet() -> None:
    mismatched = "/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:a"
    right = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope"
    assert list(of_groups([right, mismatched])) == [NodeCode.CGROUP_DRIVER]
    assert of_groups([right, "/kubepods/pod1/a"]) == {}
    assert [driver_of(each) for each in ([right], ["/kubepods/pod1/a"], [])] == [
        "systemd",
        "cgroupfs",
        "",
    ]


def test_a_koordlet_whose_gates_set_the_same_values_is_named() -> None:
    others = "NodeTopologyReport=false,CPUSetAllocator=false,BatchResource=false"
    assert list(of_programs([["/koordlet"]], proxy=False)) == [NodeCode.KOORDLET]
    argv = ["/koordlet", f"--feature-gates={others},CPUBurst=false,RdtResctrl=false"]
    assert not of_programs([argv], proxy=False)
    assert of_programs([argv], proxy=False, colocates=True) == {
        NodeCode.KOORDLET: "koordlet runs with BECPUSuppress, GroupIdentity"
    }


@pytest.mark.parametrize(
    ("argv", "proxy", "codes"),
    [
        (["/usr/bin/dracpu", "--v=4"], False, [NodeCode.DRA_CPUS]),
        (["/opt/nri/plugins/10-nri-resource-policy-balloons"], False, [NodeCode.PINNING]),
        (["nri-resource-policy-topology-aware"], False, [NodeCode.PINNING]),
        (["cri-resmgr"], False, [NodeCode.PINNING]),
        (["koord-runtime-proxy"], True, [NodeCode.PINNING]),
        (["koord-runtime-proxy"], False, []),
        (["/usr/bin/kubelet", "koordlet"], True, []),
        ([""], True, []),
        ([], True, []),
    ],
)
def test_programs_that_set_the_same_values(
    argv: list[str], proxy: bool, codes: list[NodeCode]
) -> None:
    assert list(of_programs([argv, ["sleep", "1"]], proxy=proxy)) == codes


def test_a_device_plugin_is_a_finding_only_for_cards_that_a_scheduler_allocates() -> None:
    registered = {"nvidia.com/gpu": 8, "example.com/card": 1, "nvidia.com/mig-1g.10gb": 0}
    visibility = NodeVisibility((CARD,))
    findings = of_plugins(registered, visibility)
    assert findings[NodeCode.DEVICE_PLUGIN].startswith(
        "a device plugin offers nvidia.com/gpu (8), "
    )
    assert of_plugins(registered, None) == of_plugins(registered, NodeVisibility()) == {}
    assert of_plugins({"example.com/card": 1}, visibility) == {}


def test_paths_that_this_process_may_not_use(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    file.chmod(0o600)
    # Even root can't execute a file without an execute permission.
    assert list(not_permitted([(str(file), os.R_OK), (str(tmp_path / "none"), os.W_OK)])) == []
    assert list(not_permitted([(str(file), os.X_OK)])) == [f"this process may not read {file}"]


def series(name: str, value: float, **labels: str) -> MetricSeries:
    return MetricSeries(f"topolet_{name}", labels, value)


@pytest.mark.parametrize(
    ("exported", "code", "text"),
    [
        (
            (
                series("watch_age_seconds", 300.2, resource="pods"),
                series("watch_age_seconds", 121.0, resource="nodes"),
                series("cluster_problems", 1.0),
            ),
            NodeCode.WATCH,
            "the watch of pods has had no answer for 300 s",
        ),
        (
            (series("cluster_problems", 1.0),),
            NodeCode.WATCH,
            "the agent can't read or write objects: its log has the error",
        ),
        (
            (
                series("device_healthy", 0.0, type="gpu", id="GPU-1"),
                series("device_healthy", 1.0, type="gpu", id="GPU-2"),
                series("gpu_missing", 1.0),
            ),
            NodeCode.DEVICE,
            "not healthy: gpu GPU-1, a GPU that the driver does not list",
        ),
        ((series("gpu_driver_fault", 1.0),), NodeCode.DEVICE, "not healthy: the GPU driver"),
    ],
)
def test_what_the_agent_reports_about_itself(
    exported: tuple[MetricSeries, ...], code: NodeCode, text: str
) -> None:
    assert of_agent(ProcessPage(series=exported)) == {code: text}


def test_an_agent_that_is_not_ready() -> None:
    text = "/readyz: no pass for 30 s"
    assert of_agent(ProcessPage("no pass for 30 s")) == {NodeCode.AGENT_NOT_READY: text}


def test_a_healthy_agent_has_no_findings() -> None:
    healthy = (
        series("watch_age_seconds", 61.0, resource="pods"),
        series("cluster_problems", 0.0),
        series("gpu_missing", 0.0),
    )
    assert of_agent(ProcessPage(series=healthy)) == {}


def test_a_full_file_system() -> None:
    assert of_free_bytes("/run/topolet", 1 << 20) == {}
    assert list(of_free_bytes("/run/topolet", 4096)) == [NodeCode.DISK]


def conflict(plugin: str, number: float) -> MetricSeries:
    return series("nri_conflicts_total", number, kind="error", plugin=plugin)


NOT_REGISTERED = "the plugin is not registered: "


@pytest.mark.parametrize(
    ("page", "code", "text"),
    [
        (
            ProcessPage(f"{NOT_REGISTERED}/x/nri.sock: No such file or directory"),
            NodeCode.NRI_UNAVAILABLE,
            "No such file",
        ),
        (
            ProcessPage(f"{NOT_REGISTERED}/x/nri.sock: Connection refused"),
            NodeCode.NRI_UNAVAILABLE,
            "Connection refused",
        ),
        (
            ProcessPage(f"{NOT_REGISTERED}a plugin with this name exists"),
            NodeCode.NRI_UNREGISTERED,
            "with this name",
        ),
        (
            ProcessPage("", (conflict("50-pinner", 2), conflict("", 1))),
            NodeCode.NRI_CONFLICT,
            "50-pinner (2), an unknown one (1)",
        ),
    ],
)
def test_what_the_nri_plugin_reports_about_itself(
    page: ProcessPage, code: NodeCode, text: str
) -> None:
    findings = of_nri(page)
    assert list(findings) == [code]
    assert text in findings[code]


def test_a_plugin_that_the_runtime_calls_has_no_finding() -> None:
    assert of_nri(ProcessPage("", (conflict("50-pinner", 0), MetricSeries("x", {}, 1)))) == {}


def test_findings_of_a_dra_driver() -> None:
    claims = tuple(
        PreparedClaim(f"u-{name}", "ns", name, containers=(ClaimContainer(f"p-{name}", "x"),))
        for name in ("here", "left")
    )
    unknown = PreparedClaim("u", "ns", "unknown")
    dra = ShownDra(
        "not yet",
        "a static kubelet",
        claims=tuple(ShownClaim(f"ns/{index}", refused=f"r{index}") for index in range(7)),
        low={"ns/p": "it requests 1 CPUs"},
    )
    assert node_findings.of_dra(dra, (*claims, unknown), {"p-here"}) == {
        NodeCode.DRA_UNREGISTERED: "not yet",
        NodeCode.DRA_UNOFFERED: "a static kubelet",
        NodeCode.DRA_REFUSED: "r0; r1; r2; r3; r4; and 2 more",
        NodeCode.DRA_LEFT: "ResourceClaim ns/left has CPUs ",
        NodeCode.DRA_LOW: "pod ns/p: it requests 1 CPUs",
    }
    assert node_findings.of_dra(ShownDra(), (claims[0], unknown), {"p-here"}) == {}
