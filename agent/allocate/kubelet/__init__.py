"""What a kubelet with the static CPU manager policy decides (kubelet: pkg/kubelet/cm/cpumanager and
pkg/kubelet/cm/topologymanager)."""
