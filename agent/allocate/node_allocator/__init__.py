"""A node for a whole pod request: CPUs, NUMA nodes and devices in one answer."""
