"""Devices of a node as values, from what drivers and sysfs report to what containers see.

`pci` and `gpus` have what was discovered. `gpu_health` decides whether a card is healthy, by the
table of `gpu_actions`. `gpu_devices` turns cards into devices, `listing` everything else.
`device_object` is Koordinator's Device object with all of them, `interconnect` the links between
GPUs in it. `device_allocation` is a scheduler's allocation of devices to a pod. `holding` lists
which pod holds which device, `device_files` and `visibility` how a container reaches it."""
