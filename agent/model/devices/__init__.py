"""Devices of a node as values, from what drivers and sysfs report to what containers see.

`pci` and `gpus` have what was discovered, `gpu_health` decides about the health of cards by the
table of `gpu_actions`, `gpu_devices` makes devices of cards and `listing` of everything else;
`device_object` is Koordinator's Device object with all of them, and `interconnect` its links
between GPUs. `device_allocation` is a scheduler's allocation of them to a pod, `holding` which pod
holds them, `device_files` and `visible` how a container reaches them."""
