"""Which container sees which of the devices that are allocated to its pod.

`pod_devices` checks the allocation of each pod against the devices of the node and against the
other pods. It divides a pod's devices over its containers by their requests, and
adds what enforces a part of a GPU."""
