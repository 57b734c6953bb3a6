"""Discovery of the machine's CPUs, NUMA nodes and devices.

`cpus` reads the sysfs below a root path into a frozen `Topology`, with `numa` for NUMA nodes and
`sysfs` for single files. `pci`, `network` and `fpga` read devices, and `sysfs_devices` all of
them; a broken one is reported as a problem and does not hide the others. A child process
(`gpuchild`) reads GPUs through NVML, because the library can hang and needs much memory.
`gpuwatcher` starts and restarts the child and receives its reports, in the messages of
`gpumessages`. Only `nvml` loads pynvml; `gpureport` makes values of its answers."""
