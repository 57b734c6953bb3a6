"""Which devices of a node a pod gets: GPUs, NICs and FPGAs, whole or in part."""
