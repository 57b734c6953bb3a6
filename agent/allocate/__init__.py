"""Decisions: pure functions over values. No clock, no I/O; the same input gives the same output.

For a scheduler: a pod is a request (`model.pod_request`), and a node allocator (`node_allocator`)
holds what is allocated on a node and makes offers. For its CPUs an offer takes the policies in
force for the pod on the node (`policies_in_force`), makes trial allocations on sets of NUMA nodes
whose hints are merged (`numa`), and chooses CPUs (`accumulator`). CPU sets are ints with one bit
for each CPU, and a machine is a few masks (`model.cpu.layout`), so nothing loops over CPUs.
`node_score` compares nodes.

For a node's agent: `pools` decides which pods own which CPUs, and which CPUs all other pods share.

The packages `colocation`, `devices`, `device_holders`, `visibility`, `nrt`, `kubelet`,
`node_local`, `placement`, `quiet` and `rebind` have docstrings of their own.
"""
