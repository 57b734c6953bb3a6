"""The scheduler: an extender of kube-scheduler, and the webhook for Bindings.

The scheduler follows pods, Nodes, NodeResourceTopologies and Devices (`watches`), decodes them into
records (`records`), and keeps from them the ledger of every node (`cluster`, `node_info`).
kube-scheduler calls the verbs of its extender API (`extender`, `handlers`):

- filter reads the pod (`pod_info`) and returns the nodes with room for it. A node answers with an
  offer of its NodeAllocator, which changes nothing; `equivalence_cache` keeps the result for all
  pods of one equivalence class until the node changes.
- prioritize makes kube-scheduler's points of the same results.
- preempt selects the victims that our rules need (`preemption`, `victim_selection`).
- bind turns an offer into a reservation and sends one Binding (`binder`). The reservation ends when
  a watch shows the pod bound, or when the API server reports that the pod is not bound.

Pods that find no node wait in `unschedulable_queue`. `retry` makes kube-scheduler try a pod again
once a changed node has room; `evictor` makes room where only our rules reject a node. Pods of one
group go to one node (`group_reservations`). Of several processes the leader answers
(`leader_election`), once it knows all pods that were bound before (`leader_gate`).
"""
