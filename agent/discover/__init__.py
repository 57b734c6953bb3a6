"""What the machine has: CPUs, NUMA nodes and devices, as values.

`cpus` reads the sysfs below a root path into a frozen `Topology`, with `sockets` for cores and
caches and `sysfs` for single files. `pci`, `rdma` and `fpga` read devices; a broken one is a
problem and does not hide the others. A child process (`gpuchild`) asks NVML about GPUs, because
the library can hang and needs much memory: `gpuwatcher` starts and restarts it and takes its
reports, in the messages of `gpumessages`. Only `nvml` loads pynvml; `gpureport` makes values of its
answers."""
