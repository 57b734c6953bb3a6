"""The scheduler: an extender of kube-scheduler, and the webhook for Bindings.

The scheduler follows Pods, Nodes, NodeResourceTopologies and Devices, and keeps from them the
allocation of every node (`state`). kube-scheduler calls the verbs of its extender API (`extender`):

- filter reads the pod and returns the nodes with room for it. A node answers with an offer of its
  NodeAllocator, which changes nothing; the equivalence cache keeps the result for all pods of one
  equivalence class until the node changes.
- prioritize makes kube-scheduler's points of the same results.
- preempt selects the victims that our rules need (`preemption`).
- bind turns an offer into a reservation and sends one Binding (`state.binder`). The reservation
  ends when a watch shows the pod bound, or when the API server reports that the pod is not bound.

Pods that find no node wait in a queue, and kube-scheduler tries a pod again once a changed node has
room for it (`unschedulable`). The evictor makes room where only our rules reject a node. Pods of
one group go to one node. Of several processes the leader answers (`leader`). `process` puts the
parts together; `webhook` is a process of its own.
"""
