"""Cgroups v1 and v2: reads of a host's hierarchies, ordered writes, and the journal of the values
that other processes wrote.

A write is a pass over the groups that it concerns: read their values, plan the writes, record the
original value of each file in the journal, write, and read back. `writer` does this for cpusets,
`values` for limits and memory nodes; both report an outcome for each group instead of an error. The
order of the writes keeps each group a part of its parent after every single write: CPUs that a
group gets are added from the top, CPUs that it loses are removed from the bottom (`order`). A
restore writes the journalled values back with the same rules.
"""
