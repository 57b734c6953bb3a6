"""The allocations of one node for whole pods: CPUs, NUMA amounts and devices together.

`properties` reads the properties that no pod changes from the node's objects, and `assigned_pods`
reads the allocation of each pod from its annotations. From these and the request of a new pod the
`allocator` makes an offer or a refusal, and commits the offer later. It asks three parts, which
answer the same calls (`part`):

- `zones`: the node's report of its NUMA nodes, and what its kubelet admits. They alone place pods
  that need no CPUs or devices from Topolet.
- `cpus`: the CPUs and NUMA amounts.
- `devices`, which take part in the choice of NUMA nodes as a hint provider.

Each refuses or offers something at a price, and the `answer` has the offers of all."""
