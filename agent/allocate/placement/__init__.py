"""Placement of pods by the GPUs that it leaves usable: the cost of each node for a pod, and the
cards that a pod with parts of GPUs gets there.

`residual` is Topolet's own placement, `rivals` has the published ones; both are built from the
kinds of pods that were seen (`demand`)."""
