"""Which NUMA nodes a pod's resources come from: hints and their merge, as in Koordinator's topology
manager.

Each provider (`hint`) names, by resource, the sets of NUMA nodes that the resource could come from,
and prefers some of them. A merge takes one hint of each resource; the intersection of their masks
is a candidate, and the policy says which candidate wins and whether it admits the pod. The number
of combinations is the product of the numbers of hints, so the merge (`koordinator_merge`) computes
the winner without trying all combinations (`combinations`). The kubelet's merge, which only vectors
need, is `conformance.merge_hints`."""
