"""NUMA hints: where a pod's resources could lie together, and the merge that chooses one mask."""
