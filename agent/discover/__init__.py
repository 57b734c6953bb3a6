"""Discovery of the machine's CPUs, NUMA nodes and devices.

`cpus` reads the sysfs below a root path into a frozen `Topology`, with `sysfs` for single files.
`pci` reads PCI functions, and `sysfs_devices` these and the network interfaces, RDMA devices and
FPGAs among them; a broken device is reported as a problem and does not hide the others. A child
process (`gpuchild`) reads GPUs through NVML, because the library can hang and needs much memory.
`gpuwatcher` starts and restarts the child and receives its reports; `gpumessages` has the messages
between them. In the child, `nvml` makes the calls (only it loads pynvml). `hardware` reads models
of CPUs and caches, and kinds of memory, which are only displayed."""
