"""Explains which nodes have room for a pod, and why the others have none.

`explainer` asks the allocator of each node for an offer, as the first filter of the pod would, and
`causes` turns a refusal into causes with the objects that an operator can change. `endpoint` serves
explanations on the scheduler's HTTP port, and has the client of the command `explain`. `saved`
builds the state of the cluster from saved objects instead."""
