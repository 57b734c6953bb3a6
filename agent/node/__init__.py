"""The agent of a node.

`daemon` builds the parts. `loop` runs a pass (`reconcile`) on every trigger (`triggers`,
`notifications`), and keeps the health that the agent reports. A pass reads views of the runtime,
the cluster, the kubelet and the devices (`runtime_view`, `cluster_view`, `kubelet_view`, `devices`,
`device_visibility`), lets `agent.allocate` decide, and carries the decision out: `enforcement`
writes cgroups and updates the runtime, `publisher` replaces the snapshot that the frontends read,
`report` and `change_log` report it to the cluster, the log, metrics and Events:
`node_resource_topology` builds the report of the node, with what pods hold by the kubelet's
PodResources API (`kubelet_view`), and `device_listing` that of its devices, with the health of GPUs
(`gpu_health`). `cpu_notices` tells containers their CPUs. `originals` and the journal keep the
values from before the agent's writes. If a source fails, only what depends on it stops
(`sources`).

`doctor`, `takeover` and `originals.restore` are commands; they need no agent.
"""
