"""Exclusive CPUs without our scheduler: decided on the node, from the runtime and cgroupfs (CPU
Manager proposal; kubelet: pkg/kubelet/cm/cpumanager)."""
