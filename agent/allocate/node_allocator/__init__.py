"""The account of one node for whole pods: CPUs, NUMA amounts and devices in one answer.

`properties` reads from the node's objects what no pod changes; `assigned_pods` reads from each
pod's annotations what it holds; `pod_request` reads what a new pod requests. From these the
`allocator` makes an offer with all of its parts, or a refusal with its reasons (`answer`), and
commits the offer later. Devices take part in the choice of NUMA nodes as a hint provider; pods that
need no CPUs or devices of ours are placed by `zones`."""
