"""The DRA driver for CPUs as decisions: which devices a node has, in which order, and which CPUs a
claim gets when the kubelet prepares it.

A device is a NUMA node or an L3 cache, of which many claims have a part, or a whole core. Its
capacity is what claims may have together: what other owners have, what is reserved, and what the
shared pool needs is not in it. So a scheduler that adds up the parts never gives more than the node
can hold, unless an owner came at the same moment; then the preparation is refused."""
