"""Pods that find no node: the queue in which they wait, and what makes kube-scheduler try again."""
