"""GPUs, NICs and FPGAs of a node for one pod.

The pod's request (`model.devices.device_request`) has amounts per device type and device.
`inventory` has the devices of the node, the links between its GPUs, and the amounts that other pods
leave free; `partitions` has the machine's partition table, and `gpu_sets` finds the best set of
linked GPUs.
`need` joins both sides: the devices of a type that the pod may have. `choice` takes from these for
one type, `allocation` for all types, some of them under the same switches; it also scores the node,
gives NUMA hints and writes the annotation.
"""
