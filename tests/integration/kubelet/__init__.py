"""A real kubelet with a containerd of its own and no API server, for tests: fixture `kubelet`."""
