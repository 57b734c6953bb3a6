"""Pods on a node as values: their containers and QoS class, and the annotations by which they
request CPUs and memory and by which a scheduler gives them; and what the kubelet reports that they
have (`pod_resources`)."""
