"""Cgroups v1 and v2: reads of a host's hierarchies, ordered writes, and the journal of the values
that other processes wrote.

Values are applied in five steps: read the present ones, plan the writes, record the original value
of each file in the journal, write, and read back. `writer` does this for cpusets, `limits` for
limits and memory nodes; both report an outcome for each group instead of an error
(`order`). The order of the writes keeps the CPUs of each group within those of its parent after
every single write: CPUs that groups gain are added from the top down, CPUs that they lose are
removed from the bottom up (`order`). A restore writes the journalled values back by the same rules.

`hierarchy` reads and writes single files, and keeps them open. `names` has the rules by which the
kubelet and the runtimes name groups.
"""
