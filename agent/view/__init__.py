"""What people look at: text for terminals, made from values.

`node` draws the node at one moment: the picture of `machine` with the owners of its CPUs, and a
line for each pod. `machine` takes from `nesting` what contains what (sockets, NUMA nodes, dies,
caches) and draws it with `boxes`, folding what is too tall. `format` writes numbers and tables."""
