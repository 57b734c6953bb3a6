"""Pods without CPUs of ours on the NUMA nodes of one node: the decisions of the plugin
NodeResourceTopologyMatch (scheduler-plugins: pkg/noderesourcetopology)."""
