"""A real API server with its etcd, on loopback, for tests: fixture `apiserver`."""
