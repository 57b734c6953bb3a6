"""The cluster as the scheduler knows it: what watches show, and what it reserved itself.

`watches` follow the API server and `records` decode its objects. `cluster` keeps a `node_info` for
each node, and `zone_reports` which pods a NodeResourceTopology counts already. `pod_info` is one
pod as the verbs need it, and whether it can be placed at all. `binder` turns an offer into a
reservation and a Binding by `pods_api`, `group_reservations` keep room for the pods of a group, and
`corrections` write to pods the CPUs that a static kubelet gave them instead.
"""
