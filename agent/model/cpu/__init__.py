"""CPUs as values: sets of them, the machine that they are in, and the policies of pods, nodes and
settings for their allocation."""
