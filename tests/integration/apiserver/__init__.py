"""A real kube-apiserver with its own etcd on loopback: fixture `apiserver`."""
