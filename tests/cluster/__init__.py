"""A whole cluster of real parts: a node in namespaces of this machine, one in an emulated guest."""
