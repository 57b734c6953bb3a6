"""Exclusive CPUs on nodes that no scheduler of ours chooses for: decided node by node, from what the
runtime and cgroupfs tell (CPU manager proposal; peers.md §3.1-3.4)."""
