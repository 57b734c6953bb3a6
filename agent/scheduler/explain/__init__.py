"""Explains which nodes have room for a pod, and why the others have none."""
