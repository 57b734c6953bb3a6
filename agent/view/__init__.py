"""Pictures and tables for terminals, made from values.

`node` draws the node at one moment: the picture of the machine with the owners of its CPUs, and a
line for each pod. `machine` draws the machine's tree of sockets, NUMA nodes, dies and caches, which
`nesting` builds, and folds parts that are too tall. `format` writes numbers, tables and boxes."""
