"""Leader election among the replicas of the scheduler.

`election` acquires and renews a Lease. `gate` lets the leader answer requests once it knows all
pods that were bound before its term, and labels its pod, so that a Service selects it. `candidate`
keeps the identity of a process and its Bindings without an answer in files, so that the next
process on the node can continue the term of a killed one."""
