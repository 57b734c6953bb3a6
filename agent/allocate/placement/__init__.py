"""Placement of pods by the GPUs that stay usable: the cost of each node for a pod, and the cards
that a pod with parts of GPUs gets there.

`demand` counts the pods of the cluster by kind. A placement is built from these counts and from the
nodes, and gives a rating for each node: `residual` is Topolet's own placement, `published` has the
placements of other authors. It is built again after more pods have been counted."""
