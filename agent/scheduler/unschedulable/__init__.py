"""Unschedulable pods: their queue, and the retries after a node changed."""
