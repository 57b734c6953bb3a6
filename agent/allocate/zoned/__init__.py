"""Plain pods, which want no CPUs of their own from us, beside the NUMA nodes of one node: what the
plugin NodeResourceTopologyMatch of kube-scheduler decides (peers.md §2).
"""
