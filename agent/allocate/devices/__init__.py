"""GPUs, NICs and FPGAs of a node for one pod.

`request` translates the pod's requests to amounts per device type and device. `inventory` has the
devices of the node and what other pods leave of them; `links` and `partitions` say which GPUs
belong together, and `gpu_sets` finds the best set of linked ones. `need` joins both: the devices of
a type that the pod may have. `gpus` and `choice` choose among these: a set of the partition table,
the best linked GPUs or near neighbours; other devices by the strategy; several types under the same
switches. `allocation` puts it together for all types, scores the node, and writes the annotation.
"""
