"""Pods without CPUs from Topolet on the NUMA nodes of one node: the decisions of the plugin
NodeResourceTopologyMatch (scheduler-plugins: pkg/noderesourcetopology).

The requests of a pod to NUMA nodes are a value (`model.pod.numa_request`). `node` has the free
amounts of the zones of its NodeResourceTopology, without the pods that were assigned since the
report, and the freshness of that report. `filter` finds a NUMA node for each part of the pod, or
the reason why there is none; `score` compares nodes.
"""
