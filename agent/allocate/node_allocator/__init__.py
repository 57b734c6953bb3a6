"""The allocations of one node for whole pods: CPUs, NUMA amounts and devices together. `properties`
reads the properties that no pod changes from the node's objects; `assigned_pods` reads the
allocation of each pod from its annotations; `pod_request` reads the requests of a new pod. From
these the `allocator` makes an offer with all of its parts, or a refusal with its reasons
(`answer`), and commits the offer later. Devices take part in the choice of NUMA nodes as a hint
provider; pods that need no CPUs or devices from Topolet are placed by `zones`."""
