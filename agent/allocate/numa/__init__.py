"""Chooses the NUMA nodes of a pod's resources: hints and their merge, as in Koordinator's topology
manager.

Each provider (`hint`) names, by resource, the sets of NUMA nodes that the resource could come from,
and prefers some of them. A merge takes one hint of each resource; the intersection of their masks
is a candidate, and the policy decides which candidate wins and whether the pod is admitted. The
number of combinations is the product of the numbers of hints, so the merge (`koordinator_merge`)
computes the winner without trying all combinations. The kubelet's merge, which
only conformance vectors need, is `conformance/merge_hints.py`."""
