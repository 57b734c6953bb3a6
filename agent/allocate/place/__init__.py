"""One node as a pod's whole wish meets it: CPUs, NUMA nodes and devices in one answer."""
