"""CPUs as values: sets of CPUs, the machine's topology, and the policies of pods, nodes and
settings for the allocation of CPUs."""
