"""Devices of a node as values, from what drivers and sysfs report to what containers see.

`pci` and `gpus` have what was discovered. `device_object` is Koordinator's Device object with all
of them, `interconnect` the links between GPUs in it. `device_request` is what a pod requests, and
`device_allocation` a scheduler's allocation of devices to a pod. `holding` lists which pod holds
which device, `device_files` and `visibility` how a container reaches it."""
