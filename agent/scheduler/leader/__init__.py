"""Leader election: the election by a Lease, and the gate that lets the leader answer once it knows
all pods that were bound before its term."""
