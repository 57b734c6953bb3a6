"""The scheduler: an extender of kube-scheduler, and the webhook for Bindings.

The scheduler watches Pods, Nodes, NodeResourceTopologies and Devices, and keeps the allocation of
every node (`state`). kube-scheduler calls the verbs of its extender API (`extender`):

- filter reads the pod and returns the nodes with room for it. The result of a node is an offer of
  its NodeAllocator, which changes nothing. The equivalence cache keeps the result for all pods of
  one equivalence class until the node changes.
- prioritize scores the nodes by the same results.
- preempt selects the victims that free CPUs, NUMA nodes and devices (`preemption`).
- bind turns an offer into a reservation and sends one Binding (`state.binder`). The reservation
  ends when a watch reports the pod as bound, or when the API server reports that it is not bound.

Pods that find no node wait in a queue, and kube-scheduler tries a pod again once a changed node has
room for it (`unschedulable`). The evictor makes room on nodes that only the extender rejects. Pods
of one group go to one node. Of several processes only the leader answers (`leader`). `process`
connects the parts; `webhook` is a separate process.
"""
