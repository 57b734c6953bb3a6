"""Which of several processes answers: the election by a Lease, and the gate that opens once the
leader knows all pods that were bound before."""
