"""The state of the cluster: what the watches report, and the scheduler's own reservations.

`watches` watch the API server, and `records` decode its objects. `cluster` keeps a `node_info` for
each node, which determines which pods a NodeResourceTopology counts already.
`pod_info` is a pod as the verbs need it, with the check of a node for it. `binder` turns an offer
into a reservation and, with `pods_api`, into a Binding. `group_reservations` reserves room for the
pods of a group, and `koordinator_reservations` counts the Reservations of Koordinator's scheduler.
`pod_patches` writes to pods what the reports of their nodes contain. `pods_seen` counts the pods
for the placement.
"""
