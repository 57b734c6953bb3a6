"""Pods as values: their containers and QoS class, their requests, the annotations by which they
request CPUs and memory and by which a scheduler allocates them, and the resources that the kubelet
reports (`pod_resources`). `apiobjects` reads pods of the API server.

Each system reads a pod's requests in its own way, in its own module; `devices.device_request` has
that of Koordinator's DeviceShare plugin:

- `resource_request`: CPU, memory and the other resources of a pod with a QoS class, by Koordinator
- `model.pod_request`: exclusive CPUs, by the kubelet
- `numa_request`: the parts of a pod that NUMA nodes must hold, by NodeResourceTopologyMatch
"""
