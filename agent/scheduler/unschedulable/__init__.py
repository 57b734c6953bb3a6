"""Pods that the extender rejected on all nodes.

`queue` keeps these pods and finds those for which a changed node has room. `retry` makes
kube-scheduler try them again, and `events` records an Event with the reasons for pods that wait."""
