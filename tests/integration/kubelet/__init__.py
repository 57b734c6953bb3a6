"""A real kubelet with its own containerd and without an API server: fixture `kubelet`."""
