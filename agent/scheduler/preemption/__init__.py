"""Room for a pod by the end of others: the handler of the verb preempt, the search for victims, the
budgets that protect them, and the evictor, which acts where only our rules reject a node."""
