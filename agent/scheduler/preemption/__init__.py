"""Preemption: which pods must leave a node so that a more important pod has room there.

`victim_selection` searches for the best set of victims on a node, with respect to the
PodDisruptionBudgets (`disruption_budgets`). `preemption` handles the verb preempt, by which
kube-scheduler asks for the victims on the nodes that it selected. `evictor` evicts victims itself,
on nodes that only the extender rejects: kube-scheduler does not preempt there."""
