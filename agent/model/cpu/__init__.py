"""CPUs as values: sets of them, the machine that they are in, and the policies by which pods, nodes
and settings say how they are shared out."""
