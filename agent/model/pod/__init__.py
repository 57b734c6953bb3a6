"""Pods as values: their containers and QoS class, their requests, the annotations by which they
request CPUs and memory and by which a scheduler allocates them, and the resources that the kubelet
reports (`pod_resources`).

Each system reads a pod's requests in its own way: Koordinator CPU, memory and the rest of a pod
with a QoS class (`resource_request`), its device plugin the devices (`device_request`), the kubelet
the exclusive CPUs (`exclusive_cpus`), and NodeResourceTopologyMatch the parts of a pod that NUMA
nodes have to hold (`zone_request`).
"""
