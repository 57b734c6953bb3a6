"""Preemption: the handler of the verb preempt, the selection of victims, the PodDisruptionBudgets,
and the evictor, which makes room on nodes that only the extender rejects."""
