"""Leader election: the election by a Lease (`election`), the gate that lets the leader answer once
it knows all pods that were bound before its term (`gate`), the label by which a Service selects the
leader's pod (`label`), and what a process leaves to the one that follows it (`lease_dir`)."""
