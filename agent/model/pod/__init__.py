"""Pods on a node as values: their containers and QoS class, what they request (`resource_request`),
the annotations by which they request CPUs and memory and by which a scheduler allocates them, and
the resources that the kubelet reports (`pod_resources`)."""
