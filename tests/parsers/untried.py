"""The functions with a decoding call that have no fuzz target, by the reason."""

from __future__ import annotations

from typing import Final

UNTRIED: Final[dict[str, tuple[str, ...]]] = {
    "it rounds or counts numbers of ours": (
        "allocate.devices.request:filled",
        "allocate.node_allocation:TopologyOptions.unamplified",
        "allocate.nrt.score:_balanced_allocation",
        "allocate.score:spread",
        "cgroup.limits:text",
        "http.limits:_Place.age_order",
        "kube.events:Recorder.__init__",
        "kube.listwatch:ListWatch._watch",
        "model.nrt.pod_holdings:device_portions",
        "node.devices:DeviceView.observe",
        "node.doctor:_agent_answer",
        "node.gpus:GpuView.observe",
        "nri.daemon:metrics_page",
        "nri.ttrpc:Incoming._respond",
        "nri.ttrpc:Incoming.refuse",
        "nri.ttrpc:Session.call",
        "scheduler.rebind.controller:RebindHours.contain",
        "rpc.grpc:timeout_value",
        "telemetry.audit:Trail._open",
        "telemetry.logs:Logfmt.fields",
        "telemetry.metrics:DeviceMetrics.collect",
        "telemetry.schedulermetrics:_Read.collect",
    ),
    "it decodes what the same process has encoded": (
        "cli.bundle:_snapshot",
        "model.devices.device_object:_plain",
    ),
    "the API server's answer, which kubectl has decoded before": ("cli.remote:find",),
    "the targets of its callers try it": (
        "allocate.devices.choice:_bus_order",
        "model.bounds:decode",
    ),
    "the kernel writes the text, and no process chooses it": (
        "cgroup.limits:_value",
        "cgroup.values:LimitsPass._write",
        "host.kernel_events:_decode",
        "http.peers:ipv4_gateways",
        "http.peers:ipv6_gateways",
        "nri.conflicts:_holders",
        "nri.conflicts:_sockets",
        "telemetry.frontend_metrics:_resident_bytes",
    ),
    "the service manager or the runtime that starts the process sets the variable": (
        "host.daemon:ServiceManager.__init__",
        "nri.daemon:launched",
    ),
    "the administrator writes the options": (
        "cli.options:duration_seconds",
        "cli.options:read",
        "cli.rebind:_positive",
        "model.devices.gpu_actions:_numbers",
        "model.devices.gpu_actions:parse",
        "model.settings.failure_policy:parse_deadlines",
        "scheduler.rebind.controller:RebindHours.parsed",
        "model.settings.options:_problem",
        "model.settings.options:host_port",
        "model.settings.options:parse",
        "model.settings.plugin_args:decode",
    ),
    "it is part of the installed program, or only root of the node can write it": (
        "cli.bundle:_journal",
        "install.folder:_loader",
        "install.journal:read",
        "telemetry.audit:_files",
    ),
    "NVIDIA's library or our child process answers": (
        "discover.gpuchild:EventReader.within",
        "discover.gpuchild:_Child.run",
        "discover.gpureport:InventoryReader._gpu",
        "discover.gpureport:InventoryReader._instance",
        "discover.gpureport:_recovery_action",
        "discover.gpureport:_used",
        "discover.gpuwatcher:GpuSession._answers",
    ),
    "kubelet.configuration:of_object has a target; json.loads before it": (
        "kubelet.configuration:read_configz",
    ),
    "tests/relay/fuzz_frames.py and tests/relay/fuzz_relay.py try the relay": (
        "relay.calls:HookedCalls._collect",
        "relay.streams:ReplyTap._read_prefix",
    ),
}
