"""What the machine, its pods and its containers use.

One thread takes all samples (`sampler`), so that values which are subtracted from each other belong
to one moment: the CPU time of the machine and of each pod once a second, their memory every fifteen
seconds, and that of a new pod at once; of containers both every fifteen seconds. The use of CPU is
the difference of two samples, divided by the time between them. What neither a pod nor the kernel's
idle time accounts for is the system's.

With the memory it reads the counters of the kernel: what pods wait for (`waits`), what they read,
write and send (`traffic`), and what cache they use (`resctrl`).

The samples are in rings (`series`), which the number of pods and NUMA nodes bounds; a restart loses
them. `node_metric` makes the status of Koordinator's NodeMetric of them.

`model.node_slo` reads the strategies that Koordinator's manager has for the node, `slo_config`
makes them of our own configuration where it has none, and `strategies` says which of both are in
force.

On another thread the agent looks every fifteen seconds at everything that runs and waits (`look`,
`schedstat`, `interrupts`), and computes who had the CPUs for which pods waited (`contention`), and
who presses on their memory, disks and cards (`pressure`)."""

from typing import Final

OFFERED_FILE: Final = "batch-resources.json"
"""The file of `offered` in the state folder: here, as STRATEGIES_FILE, since an agent without usage
loads no module of this package, and removes the file."""
STRATEGIES_FILE: Final = "strategies.json"
"""The file of `strategies` in the state folder."""
COLOCATION_FILE: Final = "colocation.json"
"""The file of `view.colocation` in the state folder."""
EVICTIONS_FILE: Final = "evictions.json"
"""The file of `view.evictions` in the state folder."""
WAITS_FILE: Final = "waits.json"
"""The file of `node.contention` in the state folder, which it removes too."""
QUIET_FILE: Final = "quiet.json"
"""The file of `view.quiet` in the state folder."""
