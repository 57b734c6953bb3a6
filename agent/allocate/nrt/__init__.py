"""Pods without CPUs of ours on the NUMA nodes of one node: the decisions of the plugin
NodeResourceTopologyMatch (scheduler-plugins: pkg/noderesourcetopology).

`pod` is what a pod requests of NUMA nodes. `node` is what the zones of its NodeResourceTopology
have left, without the pods that were assigned since the report, and whether that report is fresh.
`filter` finds a NUMA node for each part of the pod, or says why there is none; `score` compares
nodes.
"""
