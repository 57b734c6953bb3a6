"""Exclusive CPUs where no scheduler of ours chooses them: decided on the node, from what the
runtime and cgroupfs tell (CPU manager proposal; peers.md §3.1-3.4)."""
